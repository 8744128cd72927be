"""POST infer without HTTP: a body becomes an InferCall, a Reply becomes the buffers of a body.

A body is a JSON header, then the binary tensors in the order of the inputs that declare ``binary_data_size``; or, in
a raw request, nothing but the bytes of the model's only input.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from gateway import http_json, http_tensors
from gateway.calls import InferCall, InputTensor, Reply
from gateway.http_header import InferHeader, decode
from protocol.datatypes import ITEMSIZE
from protocol.errors import InvalidArgument
from protocol.messages import Parameters
from protocol.signature import Signature
from shm.store import Block

Buffer = bytes | memoryview
# The buffers of a body, the bytes of all, and how many of them are JSON in front of binary tensors; 0: JSON alone.
InferAnswer = tuple[list[Buffer], int, int]
_ALIGNED = 16  # a tensor in the block may start at a multiple of this; elsewhere it is copied

_RAW_HEADER = InferHeader([], default_binary=True)


def read_request(
    view: memoryview,
    header_nbytes: int,
    signature: Signature,
    max_input_size: int,
    block: Block | None = None,
    offset: int = 0,
    apart: bytes = b"",
) -> tuple[InferCall, InferHeader]:
    """``view`` spans the whole body, whose header has so many bytes (0: a raw request), or all behind the header if
    that lies ``apart``. If it lies in a block, ``offset`` says where it begins in it.

    Raises ServingError; the block stays the caller's then."""
    if header_nbytes == 0:
        tensor = _raw_tensor(view, _place(block, offset), signature, max_input_size)
        return InferCall(signature.model, signature.version, [tensor], block=block, signature=signature), _RAW_HEADER
    position, end = 0 if apart else header_nbytes, len(view)
    header = decode(apart or view[:position], max_input_size, position < end)
    inputs: list[InputTensor] = []
    for name, datatype, shape, nbytes, data in header.inputs:
        if nbytes < 0:
            inputs.append(InputTensor(name, datatype, shape, data))
            continue
        stop = position + nbytes
        if stop > end:
            raise InvalidArgument(
                f"unexpected size for input '{name}', expecting {stop - end} additional bytes for model "
                f"'{signature.model}'"
            )
        place = -1 if block is None else _place(block, offset + position)
        inputs.append(InputTensor(name, datatype, shape, view[position:stop], place))
        position = stop
    if position != end:
        raise InvalidArgument(f"unexpected additional input data for model '{signature.model}'")
    call = InferCall(
        signature.model,
        signature.version,
        inputs,
        header.request_id,
        header.outputs,
        header.parameters,
        header.correlation_id,
        header.flags,
        header.priority,
        header.timeout_us,
        block,
        signature,
        header.classes,
    )
    return call, header


def _place(block: Block | None, offset: int) -> int:
    """Of a tensor that begins there in the block, for InputTensor.offset."""
    return offset if block is not None and offset % _ALIGNED == 0 else -1


def _raw_tensor(view: memoryview, place: int, signature: Signature, max_input_size: int) -> InputTensor:
    """The body as the model's only input, its shape deduced from the size."""

    def refusal(text: str) -> InvalidArgument:
        return InvalidArgument(f"[request id: <id_unknown>] {text}")

    model, nbytes = signature.model, len(view)
    if nbytes > max_input_size:
        raise InvalidArgument(
            f"Raw input has a byte_size ({nbytes} bytes) that exceeds the maximum allowed value of {max_input_size} "
            "bytes. Use --http-max-input-size to increase the limit."
        )
    if len(signature.inputs) != 1:
        raise refusal(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(signature.inputs)} inputs in "
            f"'{model}' model configuration"
        )
    spec = signature.inputs[0]
    lead = [1] if signature.max_batch_size > 0 else []
    itemsize = ITEMSIZE[spec.datatype]
    if itemsize is None:
        if spec.dims != (1,):
            raise refusal(f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]")
        data = nbytes.to_bytes(4, "little") + bytes(view)
        return InputTensor(spec.name, spec.datatype, [*lead, 1], data)
    if spec.dims.count(-1) > 1:
        raise refusal(
            f"The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    fixed = itemsize * prod(dim for dim in spec.dims if dim != -1)
    variable = nbytes // fixed if fixed else 0
    shape = [*lead, *(variable if dim == -1 else dim for dim in spec.dims)]
    if prod(shape) * itemsize != nbytes:
        raise refusal(
            f"input byte size mismatch for input 'raw_input' for model '{model}'. Expected {prod(shape) * itemsize}, "
            f"got {nbytes}"
        )
    return InputTensor(spec.name, spec.datatype, shape, view, place)


# --- replies ----------------------------------------------------------------------------------------------------


def write_reply(reply: Reply, header: InferHeader) -> InferAnswer:
    """Buffers may be views that ``Reply.release`` ends. Raises InvalidArgument for what JSON cannot carry."""
    forms, default = header.binary, header.default_binary
    described: list[bytes] = []
    buffers: list[Buffer] = [b""]
    nbytes = 0
    for name, datatype, shape, data in reply.outputs:
        if forms.get(name, default):
            size = len(data)
            described.append(_binary_output(name, datatype, shape, size))
            if size:
                buffers.append(data)
                nbytes += size
        else:
            described.append(
                _described(name, datatype, shape) + b',"data":' + http_tensors.to_json(datatype, data) + b"}"
            )
    text = _opening(reply) + b",".join(described) + b"]}"
    buffers[0] = text
    return buffers, nbytes + len(text), len(text) if nbytes else 0


def _opening(reply: Reply) -> bytes:
    """All before the outputs."""
    signature = reply.signature
    opening = _model_opening(signature.model, signature.version)
    if reply.request_id:
        opening = b'{"id":' + http_json.string(reply.request_id) + b"," + opening[1:]
    if reply.parameters:
        opening += b'"parameters":' + _parameters(reply.parameters) + b","
    return opening + b'"outputs":['


def _parameters(parameters: Parameters) -> bytes:
    return http_json.members([(name, http_json.scalar(value)) for name, value in parameters.items()])


# Names, types and shapes recur from reply to reply; at 32 clients their text was a tenth of a request's cost.
@lru_cache(maxsize=1024)
def _model_opening(model: str, version: int) -> bytes:
    return b'{"model_name":%b,"model_version":"%d",' % (http_json.string(model), version)


@lru_cache(maxsize=4096)
def _described(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    texts = http_json.string(name), http_json.string(datatype), http_json.encode(shape)
    return b'{"name":%b,"datatype":%b,"shape":%b' % texts


@lru_cache(maxsize=4096)
def _binary_output(name: str, datatype: str, shape: tuple[int, ...], nbytes: int) -> bytes:
    return _described(name, datatype, shape) + b',"parameters":{"binary_data_size":%d}}' % nbytes
