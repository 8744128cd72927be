"""Tensors and sequence marks as they go from model to model of an ensemble, and to its client."""

from __future__ import annotations

from broker.calls import as_clients_see
from broker.ensemble import Memory, SequenceMark, Value
from broker.flow import Flow
from broker.model import ModelVersion
from broker.queue import Frames
from protocol.messages import SEQUENCE_END, SEQUENCE_START, Handle, Parameters, Response, TensorRef, new
from protocol.signature import TensorSpec


def inputs_of(flow: Flow) -> dict[str, Value | None]:
    request, frames = flow.pending.request, flow.pending.frames
    given: dict[str, Value | None] = {spec.name: None for spec in flow.version.config.inputs}
    for tensor in request.inputs:
        given[tensor.name] = _value(tensor, frames, flow.own)
    return given


def outputs_of(version: ModelVersion, response: Response, memory: Memory | None, frames: Frames) -> dict[str, Value]:
    mark = _mark_of(response.parameters) if response.parameters else None
    tensors = response.outputs
    if version.checker.reshaped:
        tensors = [as_clients_see(version, tensor) for tensor in tensors]
    values: dict[str, Value] = {}
    for tensor in tensors:
        values[tensor.name] = _value(tensor, frames, memory, mark)
    return values


def _value(tensor: TensorRef, frames: Frames, memory: Memory | None, mark: SequenceMark | None = None) -> Value:
    place = tensor.place
    if type(place) is Handle:
        return Value(tensor, None, memory, mark)
    return Value(tensor, frames[place] if isinstance(place, int) else None, None, mark)


def placed(
    name: str, value: Value, spec: TensorSpec | None, batching: bool, frames: list[memoryview | bytes]
) -> TensorRef:
    """For a model, or the client: with the batch dimension that it expects, inline bytes at the end of ``frames``."""
    _, datatype, shape, place, shared = value.tensor
    if spec is not None:
        shape = _batched(shape, spec, batching)
    if value.frame is not None:
        place = len(frames)
        frames.append(value.frame)
    return new(TensorRef, (name, datatype, shape, place, shared))


def _batched(shape: tuple[int, ...], spec: TensorSpec, batching: bool) -> tuple[int, ...]:
    """A batch of one comes and goes where models that batch and models that do not are joined."""
    surplus = len(shape) - len(spec.dims)
    if batching and surplus == 0:
        return (1, *shape)
    return shape[1:] if not batching and surplus == 1 and shape[0] == 1 else shape


def _mark_of(parameters: Parameters) -> SequenceMark | None:
    """Models may name another sequence, for the steps that follow, by parameters of a response."""
    if not {"sequence_id", "sequence_start", "sequence_end"} & parameters.keys():
        return None
    named = parameters.get("sequence_id", 0)
    start, end = bool(parameters.get("sequence_start")), bool(parameters.get("sequence_end"))
    return SequenceMark(named if isinstance(named, str) else int(named), SEQUENCE_START * start | SEQUENCE_END * end)


def parameters_of(correlation_id: int | str, flags: int) -> Parameters:
    return {
        "sequence_id": correlation_id,
        "sequence_start": bool(flags & SEQUENCE_START),
        "sequence_end": bool(flags & SEQUENCE_END),
    }
