"""Rules for inputs, outputs, batch inputs and batch outputs. Every text ends in ``for <model>``."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from broker.proto import DATA_TYPES, BatchInputMessage, BatchOutputMessage, Message, ModelInputMessage
from protocol.errors import InvalidArgument

_KNOWN_TYPES = frozenset(DATA_TYPES.values()) - {DATA_TYPES.Value("TYPE_INVALID")}
_NEED_THREE_DIMS = (ModelInputMessage.FORMAT_NHWC, ModelInputMessage.FORMAT_NCHW)


def check_io(message: Message) -> None:
    """Raises InvalidArgument. Done last, as auto-completion may provide inputs and outputs."""
    for text in _faults(message):
        raise InvalidArgument(f"{text} for {message.name}")


def _faults(message: Message) -> Iterable[str]:
    """Lazily, in the order in which the original looks."""
    for io in message.input:
        yield from _shape_faults(io, f"model input '{io.name}' " if io.name else "model input ", message.max_batch_size)
        if io.format in _NEED_THREE_DIMS and len(io.dims) != 3:
            yield "model input NHWC/NCHW require 3 dims"
        yield from _tensorrt_faults(io)
    for io in message.output:
        where = f"model output '{io.name}' " if io.name else "model output "
        yield from _shape_faults(io, where, message.max_batch_size)
        yield from _tensorrt_faults(io)
    yield from _batch_input_faults(message)
    yield from _batch_output_faults(message)


def _shape_faults(io: Message, where: str, max_batch_size: int) -> Iterable[str]:
    if not io.name:
        yield f"{where}must specify 'name'"
    if io.data_type not in _KNOWN_TYPES:
        yield f"{where}must specify 'data_type'"
    if not io.dims:
        yield f"{where}must specify 'dims'"
    if io.HasField("reshape") and not io.reshape.shape and max_batch_size == 0:
        yield f"{where}cannot have empty reshape for non-batching model as scalar tensors are not supported"
    if any(dim < 1 and dim != -1 for dim in io.dims):
        yield f"{where}dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
    if io.HasField("reshape"):
        yield from _reshape_faults(list(io.dims), list(io.reshape.shape), where)


def _reshape_faults(dims: list[int], shape: list[int], where: str) -> Iterable[str]:
    """Between variable-size dimensions the element counts must agree pairwise; [1] may become a scalar."""
    if any(dim < 1 and dim != -1 for dim in shape):
        yield f"{where}reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"
    is_variable = -1 in dims
    if is_variable != (-1 in shape) or (not is_variable and prod(dims) != prod(shape)):
        yield f"{where}has different size for dims and reshape"
    if is_variable:
        counts, reshaped = _counts_between_variables(dims), _counts_between_variables(shape)
        if len(counts) != len(reshaped):
            yield f"{where}has different number of variable-size dimensions for dims and reshape"
        if counts != reshaped:
            yield f"{where}has different size for dims and reshape"


def _counts_between_variables(dims: list[int]) -> list[int]:
    counts = [1]
    for dim in dims:
        if dim == -1:
            counts.append(1)
        else:
            counts[-1] *= dim
    return counts


def _tensorrt_faults(io: Message) -> Iterable[str]:
    if io.is_shape_tensor:
        yield "shape tensors are only supported for TensorRT platform"
    if io.is_non_linear_format_io:
        yield "Non-linear IO format is only supported for the TensorRT platform"


def _batch_input_faults(message: Message) -> Iterable[str]:
    names = {io.name for io in message.input}
    for batch in message.batch_input:
        yield from _source_faults(batch, "input", BatchInputMessage.Kind)
        if batch.data_type not in (DATA_TYPES.Value("TYPE_INT32"), DATA_TYPES.Value("TYPE_FP32")):
            yield "batch input data type must be TYPE_INT32 or TYPE_FP32"
        yield from (f"unknown source input name '{name}'" for name in batch.source_input if name not in names)


def _batch_output_faults(message: Message) -> Iterable[str]:
    inputs, outputs = {io.name for io in message.input}, {io.name for io in message.output}
    for batch in message.batch_output:
        yield from _source_faults(batch, "output", BatchOutputMessage.Kind)
        yield from (f"unknown source input name '{name}'" for name in batch.source_input if name not in inputs)
        for position, name in enumerate(batch.target_name):
            if name not in outputs:
                yield f"unknown target output name '{name}'"
            if name in batch.target_name[:position]:
                yield f"target output name '{name}' can only be specified once"


def _source_faults(batch: Message, side: str, kinds: Message) -> Iterable[str]:
    if batch.kind not in kinds.values():
        yield f"unknown batch {side} kind ''"
    elif len(batch.source_input) != 1:
        yield f"batch {side} kind '{kinds.Name(batch.kind)}' expects 1 source input, got {len(batch.source_input)}"
