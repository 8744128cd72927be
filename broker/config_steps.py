"""Rules for an ensemble and the models of its steps: what is mapped exists and fits. What comes out is its Plan.

The texts are Triton's, which names models and tensors here without quotes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker.ensemble import Part, Plan, Step
from broker.model_config import ModelConfig, from_message
from broker.proto import Message
from protocol.errors import InvalidArgument
from protocol.signature import TensorSpec


class _Seen(NamedTuple):
    """What is known of a tensor of the ensemble, and the model that says so."""

    datatype: str
    dims: tuple[int, ...]
    full_dims: tuple[int, ...]  # with the batch dimension
    model: str


def step_models(config: ModelConfig) -> list[tuple[str, int]]:
    """Model and version of each step."""
    return [(step.model_name, step.model_version) for step in config.message.ensemble_scheduling.step]


def make_plan(config: ModelConfig, parts: Sequence[Part], models: Sequence[str] = ()) -> Plan:
    """``parts`` are the models of the steps, in order, and ``models`` what they are known by if not by their names.
    Raises InvalidArgument."""
    scheduling = config.message.ensemble_scheduling
    seen = {spec.name: _seen(spec, config.name, config.max_batch_size) for spec in (*config.inputs, *config.outputs)}
    steps = []
    models = models or [step.model_name for step in scheduling.step]
    for step, part, model in zip(scheduling.step, parts, models, strict=True):
        _check_batch_size(config, step.model_name, part)
        _check_inputs(config.name, step, part, seen)
        _check_outputs(config.name, step, part, seen)
        steps.append(Step(model, step.model_version, _pairs(step.input_map), _pairs(step.output_map), part))
    outputs = tuple(spec.name for spec in config.outputs)
    plan = Plan(config.name, tuple(steps), outputs, scheduling.max_inflight_requests)
    _check_streams(plan, [spec.name for spec in config.inputs], seen)
    return plan


def complete(config: ModelConfig, plan: Plan) -> ModelConfig:
    """An ensemble is decoupled if one of its models is."""
    message = type(config.message)()
    message.CopyFrom(config.message)
    message.model_transaction_policy.decoupled = plan.decoupled
    return from_message(message)


def _pairs(tensor_map: Message) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(tensor_map.items()))


def _seen(spec: TensorSpec, model: str, max_batch_size: int) -> _Seen:
    full_dims = (-1, *spec.dims) if max_batch_size > 0 else spec.dims
    return _Seen(spec.datatype, spec.dims, full_dims, model)


def _check_batch_size(config: ModelConfig, model: str, part: Part) -> None:
    if 0 < part.max_batch_size < config.max_batch_size:
        raise InvalidArgument(
            f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model {model} "
            f"which only allows maximum batch size to be {part.max_batch_size}"
        )


def _check_inputs(ensemble: str, step: Message, part: Part, seen: dict[str, _Seen]) -> None:
    where = f"in ensemble {ensemble}, "
    known = {spec.name for spec in part.inputs}
    for name, tensor in _pairs(step.input_map):
        if name not in known:
            raise InvalidArgument(
                f"{where}ensemble tensor {tensor} is mapping to non-existing input {name} in model {step.model_name}"
            )
    for spec in part.inputs:
        if spec.name in step.input_map:
            tensor = step.input_map[spec.name]
            _check_consistency(ensemble, tensor, _seen(spec, step.model_name, part.max_batch_size), seen)
        elif not spec.optional:
            raise InvalidArgument(
                f"{where}input {spec.name} in model {step.model_name} is not mapped to any ensemble tensors"
            )


def _check_outputs(ensemble: str, step: Message, part: Part, seen: dict[str, _Seen]) -> None:
    where = f"in ensemble {ensemble}, "
    specs = {spec.name: spec for spec in part.outputs}
    for name, tensor in _pairs(step.output_map):
        if name not in specs:
            raise InvalidArgument(
                f"{where}ensemble tensor {tensor} is mapped from non-existing output {name} in model {step.model_name}"
            )
        _check_consistency(ensemble, tensor, _seen(specs[name], step.model_name, part.max_batch_size), seen)


def _check_consistency(ensemble: str, tensor: str, new: _Seen, seen: dict[str, _Seen]) -> None:
    """Dimensions that vary are checked when a tensor comes. A model without batches may have the batch dimension as
    one of its own."""
    old = seen.setdefault(tensor, new)
    where = f"in ensemble {ensemble}, ensemble tensor {tensor}: "
    if old.datatype != new.datatype:
        raise InvalidArgument(
            f"{where}inconsistent data type: {_type_name(old)} is inferred from model {old.model} while "
            f"{_type_name(new)} is inferred from model {new.model}"
        )
    if not (_agree(old.dims, new.dims) or _agree(old.full_dims, new.full_dims)):
        raise InvalidArgument(
            f"{where}inconsistent shape: {_text(old.full_dims)} is inferred from model {old.model} while "
            f"{_text(new.full_dims)} is inferred from model {new.model}"
        )


def _type_name(one: _Seen) -> str:
    return "TYPE_STRING" if one.datatype == "BYTES" else f"TYPE_{one.datatype}"


def _agree(left: Sequence[int], right: Sequence[int]) -> bool:
    return len(left) == len(right) and all(-1 in (a, b) or a == b for a, b in zip(left, right, strict=True))


def _text(dims: Sequence[int]) -> str:
    return "[" + ",".join(map(str, dims)) + "]"


def _check_streams(plan: Plan, inputs: Sequence[str], seen: Mapping[str, _Seen]) -> None:
    """What a step reads, and what a response holds, must come about equally often."""
    streams: dict[str, int] = dict.fromkeys(inputs, -1)  # of each tensor, the step whose responses it comes with
    left = list(range(len(plan.steps)))
    while left:
        ready = [index for index in left if all(tensor in streams for _, tensor in plan.steps[index].inputs)]
        if not ready:
            raise InvalidArgument(f"in ensemble {plan.ensemble}, steps wait for each other")
        for index in ready:
            step = plan.steps[index]
            stream = _one_stream(plan.ensemble, seen[step.outputs[0][1]].model, step.inputs, streams)
            streams.update({tensor: index if step.part.decoupled else stream for _, tensor in step.outputs})
        left = [index for index in left if index not in ready]
    _one_stream(plan.ensemble, plan.ensemble, [(name, name) for name in plan.outputs], streams)


def _one_stream(ensemble: str, model: str, tensors: Sequence[tuple[str, str]], streams: Mapping[str, int]) -> int:
    found = {streams[tensor] for _, tensor in tensors}
    if len(found) > 1:
        raise InvalidArgument(
            f"in ensemble {ensemble}, step of model '{model}' receives inputs originated from different decoupled "
            "models"
        )
    return found.pop() if found else -1
