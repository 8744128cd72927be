"""The models that an ensemble is made of, as the registry has them."""

from __future__ import annotations

from collections.abc import Mapping

from broker.config_steps import make_plan, step_models
from broker.ensemble import Part, Plan
from broker.model import UNLOADED, VersionSource, VersionState
from broker.registry import Registry
from protocol.errors import InvalidArgument, ServingError
from protocol.signature import Signature


def plan_of(source: VersionSource, registry: Registry, refused: Mapping[str, ServingError]) -> Plan:
    """``refused`` are the ensembles that were found wrong. Raises InvalidArgument."""
    ensemble, steps = source.model, step_models(source.config)
    unknown = sorted({model for model, _ in steps if not registry.knows(model) and model not in refused})
    if unknown:
        raise InvalidArgument(
            f"ensemble {ensemble} contains models that are not available or ambiguous: {', '.join(unknown)}"
        )
    parts = []
    for model, version in steps:
        if model in refused:
            raise InvalidArgument(
                f"ensemble '{ensemble}' depends on '{model}' which is not valid. Model '{model}' failed with error: "
                f"{refused[model]}"
            )
        try:
            parts.append(_part(registry.signature(model, version)))
        except ServingError:
            raise _missing(ensemble, model, version, registry) from None
    return make_plan(source.config, parts)


def _missing(ensemble: str, model: str, version: int, registry: Registry) -> InvalidArgument:
    where = f"ensemble '{ensemble}' depends on '{model}'"
    rows = registry.rows(model)
    if version >= 0 and any(row.state is VersionState.READY for row in rows):
        return InvalidArgument(f"{where} whose required version {version} is not loaded.")
    failed = [row for row in rows if row.state is VersionState.UNAVAILABLE and row.reason != UNLOADED]
    clauses = "".join(f"version {row.version} is at {row.state.value} state: {row.reason};" for row in failed)
    why = f". Model '{model}' loading failed with error: {clauses}" if failed else ""
    return InvalidArgument(f"{where} which has no loaded version{why}")


def _part(one: Signature) -> Part:
    return Part(one.max_batch_size, one.decoupled, one.inputs, one.outputs, one.labels)
