"""``pb_utils.ModelConfig``: what ``auto_complete_config`` receives and returns. The texts are the original's."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Tuple

_SCHEDULERS = ("sequence_batching", "ensemble_scheduling")
_IN_FUNCTION = "in auto-complete-config function for model"


class ModelConfig:
    """A parsed configuration. Setters raise ValueError where they contradict what is configured already."""

    def __init__(self, model_config: str) -> None:
        self._model_config: Dict[str, Any] = json.loads(model_config)

    @property
    def name(self) -> str:
        return str(self._model_config.get("name", ""))

    def as_dict(self) -> Dict[str, Any]:
        """The live dictionary."""
        return self._model_config

    def to_json(self) -> str:
        return json.dumps(self._model_config)

    def set_max_batch_size(self, max_batch_size: int) -> None:
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                "configuration specified max_batch_size {}, but {} '{}' specified max_batch_size {}".format(
                    configured, _IN_FUNCTION, self.name, max_batch_size
                )
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        for scheduler in _SCHEDULERS:
            if scheduler in self._model_config:
                raise ValueError(
                    "Configuration specified scheduling_choice as '{}', but auto-complete-config function for "
                    "model '{}' tries to set scheduling_choice as 'dynamic_batching'".format(scheduler, self.name)
                )
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        if any(key != "decoupled" for key in transaction_policy_dict):
            raise ValueError(
                "model transaction property {} '{}' contains property other than 'decoupled'.".format(
                    _IN_FUNCTION, self.name
                )
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        for decoupled in transaction_policy_dict.values():
            if policy.setdefault("decoupled", decoupled) != decoupled:
                raise ValueError(
                    "trying to change decoupled property in auto-complete-config for model '{}', "
                    "which is already set to '{}'.".format(self.name, policy["decoupled"])
                )

    def add_input(self, input: Mapping[str, Any]) -> None:
        """``name``, ``data_type``, ``dims`` (without the batch dimension) and perhaps ``optional``."""
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """``name``, ``data_type`` and ``dims`` (without the batch dimension)."""
        self._add("output", output, ("name", "data_type", "dims"))

    def _add(self, kind: str, given: Mapping[str, Any], allowed: Tuple[str, ...]) -> None:
        self._check_properties(kind, given, allowed)
        entries: List[Dict[str, Any]] = self._model_config.setdefault(kind, [])
        for entry in entries:
            if entry.get("name") == given["name"]:
                self._check_agreement(kind, given, entry)
                entry.update(given)
                return
        entries.append(dict(given))

    def _check_properties(self, kind: str, given: Mapping[str, Any], allowed: Tuple[str, ...]) -> None:
        if any(key not in allowed for key in given):
            quoted = ["'{}'".format(key) for key in allowed]
            raise ValueError(
                "{} '{}' {} '{}' contains property other than {} and {}.".format(
                    kind, given["name"], _IN_FUNCTION, self.name, ", ".join(quoted[:-1]), quoted[-1]
                )
            )
        if "name" not in given:
            raise ValueError("{} {} '{}' is missing 'name' property.".format(kind, _IN_FUNCTION, self.name))
        for key in ("data_type", "dims"):
            if key not in given:
                raise ValueError(
                    "{} '{}' {} '{}' is missing '{}' property.".format(
                        kind, given["name"], _IN_FUNCTION, self.name, key
                    )
                )

    def _check_agreement(self, kind: str, given: Mapping[str, Any], entry: Mapping[str, Any]) -> None:
        """TYPE_INVALID and empty dims mean "not configured"."""
        configured = entry.get("data_type", "TYPE_INVALID")
        if configured not in ("TYPE_INVALID", given["data_type"]):
            raise ValueError(
                "unable to load model '{}', configuration expects datatype {} for {} '{}', model provides {}".format(
                    self.name, configured, kind, given["name"], given["data_type"]
                )
            )
        for key, default in (("dims", []), ("optional", False)):
            present = entry.get(key, default)
            if key in given and present != given[key] and not (key == "dims" and present == []):
                raise ValueError(
                    "model '{}', tensor '{}': the model expects {} {} but the model configuration specifies "
                    "{} {}".format(self.name, given["name"], key, given[key], key, present)
                )
