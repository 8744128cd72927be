"""Rules for ensembles that need no other model: the tensors of the steps form a graph from inputs to outputs.

Raises InvalidArgument. What depends on the composing models is checked when they are loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.proto import Message
from protocol.errors import InvalidArgument


@dataclass(slots=True)
class _Tensor:
    """A tensor of the ensemble. ``sources`` are the tensors that the step writing it reads."""

    name: str
    is_written: bool = False
    is_read: bool = False
    is_connected: bool = False
    sources: list[_Tensor] = field(default_factory=list)


def check_ensemble(message: Message) -> None:
    ensemble = message.name
    if message.instance_group:
        raise InvalidArgument(f"instance group should not be specified for ensemble '{ensemble}'")
    if message.HasField("optimization"):
        raise InvalidArgument(f"optimization should not be specified for ensemble '{ensemble}'")
    if message.model_warmup:
        raise InvalidArgument(f"model_warmup can not be specified for ensemble '{ensemble}'")
    if not message.ensemble_scheduling.step:
        raise InvalidArgument(f"must specify 'step' for ensemble '{ensemble}'")
    tensors = _graph(message)
    _connect(message, tensors)
    _check_outputs(message, tensors)
    outputs = {io.name for io in message.output}
    for tensor in tensors.values():
        if tensor.name not in outputs and not (tensor.is_connected and tensor.is_read):
            raise InvalidArgument(f"ensemble tensor '{tensor.name}' is unused in ensemble '{ensemble}'")
    for io in message.input:
        if tensors[io.name].is_written:  # the step would run for ever
            raise InvalidArgument(
                f"ensemble input '{io.name}' can not appear in an output map of ensemble '{ensemble}'"
            )


def _graph(message: Message) -> dict[str, _Tensor]:
    tensors: dict[str, _Tensor] = {}
    for index, step in enumerate(message.ensemble_scheduling.step):
        for required in ("model_name", "input_map", "output_map"):
            if not getattr(step, required):
                raise InvalidArgument(f"must specify '{required}' in step {index} of ensemble '{message.name}'")
        written = [tensors.setdefault(name, _Tensor(name)) for name in _values(step.output_map)]
        for tensor in written:
            if tensor.is_written:
                raise InvalidArgument(
                    f"ensemble tensor '{tensor.name}' can appear in an output map only once for ensemble "
                    f"'{message.name}' step {index}"
                )
            tensor.is_written = True
        for name in _values(step.input_map):
            source = tensors.setdefault(name, _Tensor(name))
            source.is_read = True
            for tensor in written:
                tensor.sources.append(source)
    return tensors


def _values(tensor_map: Message) -> list[str]:
    """By ascending key, so that the same configuration always gives the same text."""
    return [value for _, value in sorted(tensor_map.items())]


def _connect(message: Message, tensors: dict[str, _Tensor]) -> None:
    """Mark what can be computed from the ensemble's inputs."""
    for io in message.input:
        if io.name not in tensors:
            raise InvalidArgument(f"ensemble input '{io.name}' for ensemble {message.name}' is not used")
        tensors[io.name].is_connected = True
    progress = True
    while progress:
        progress = False
        for tensor in tensors.values():
            ready = bool(tensor.sources) and all(source.is_connected for source in tensor.sources)
            if ready and not tensor.is_connected:
                tensor.is_connected = progress = True


def _check_outputs(message: Message, tensors: dict[str, _Tensor]) -> None:
    for io in message.output:
        if io.name not in tensors:
            raise InvalidArgument(f"ensemble output '{io.name}' for ensemble {message.name}' is not used")
        output = tensors[io.name]
        if not output.is_connected:
            text = f"output '{io.name}' for ensemble '{message.name}' is not written"
            culprit = _disconnected_source(output)
            if culprit is not output:
                text += f": at least one of its depending tensors, '{culprit.name}', is not connected"
            raise InvalidArgument(text)


def _disconnected_source(tensor: _Tensor) -> _Tensor:
    """Follow the first disconnected source upwards until there is none left that was not seen."""
    seen: set[str] = set()
    while True:
        upstream = next((one for one in tensor.sources if not one.is_connected and one.name not in seen), None)
        if upstream is None:
            return tensor
        seen.add(upstream.name)
        tensor = upstream
