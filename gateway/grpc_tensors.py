"""ModelInferRequest bytes to an InferCall, and a Reply to ModelInferResponse bytes (KServe v2 with Triton's additions).

Tensor data must not be copied more often than needed, and protobuf copies twice (into the message, then into a bytes
object). So raw contents never enter a message: on the way in they are cut out of the request as views, on the way out
they are appended behind the serialized rest. On the wire both are plain repeated bytes fields:

    ModelInferRequest   | fields 1..6 ...            | 0x3A varint(nbytes) raw | 0x3A varint(nbytes) raw | ...
    ModelInferResponse  | fields 1..5 ...            | 0x32 varint(nbytes) raw | 0x32 varint(nbytes) raw | ...
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy

from gateway.calls import InferCall, InputTensor, OutputTensor
from gateway.proto import service_pb2
from gateway.tensors import prefixed
from protocol.datatypes import ITEMSIZE
from protocol.errors import InternalError, InvalidArgument, NotFound
from protocol.messages import SEQUENCE_END, SEQUENCE_START, Parameters, new
from protocol.signature import Signature

MAX_MESSAGE_NBYTES = 2**31 - 1
RAW_INPUT_TAG = 0x3A  # field 7, length-delimited
MODEL_NAME_TAG = 0x0A  # field 1, length-delimited
RAW_OUTPUT_TAG = b"\x32"  # field 6, length-delimited
EMPTY_FINAL = "triton_enable_empty_final_response"
UINT64_MASK = 2**64 - 1

_ModelInferRequest = service_pb2.ModelInferRequest
_ModelInferResponse = service_pb2.ModelInferResponse

Pieces = list["bytes | memoryview"]


class HeadInput(NamedTuple):
    """``tensor`` has more to say of where the data is; None: it is the next of the raw contents."""

    name: str
    datatype: str
    shape: list[int]
    tensor: Any


class RequestHead(NamedTuple):
    """A ModelInferRequest without its raw_input_contents. Shared between requests with the same one: never changed.
    ``outputs`` are the names of those that are requested; None if there is more to say of one."""

    message: Any
    inputs: list[HeadInput]
    outputs: list[str] | None


class ParsedRequest(NamedTuple):
    """``raw`` are the contents, as views of the request's bytes."""

    head: RequestHead
    raw: Pieces

    @property
    def message(self) -> Any:
        return self.head.message


class DecodedParameters(NamedTuple):
    """Request parameters, the reserved ones told apart. ``empty_final``: the client opted in to empty final
    responses."""

    free: Parameters
    correlation_id: int | str
    flags: int
    priority: int
    timeout_us: int
    empty_final: bool


# --- wire format --------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """Protocol buffers' base 128 number, least significant group first."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def parse_request(data: bytes | memoryview) -> ParsedRequest:
    """Raises InternalError (as gRPC does) where the bytes are no message."""
    rest: Pieces = []
    raw: Pieces = []
    view = memoryview(data)
    end = len(data)
    begun = bytes(view[:_REMEMBERED_NBYTES])
    known = begun.find(RAW_INPUT_TAG)
    # What is a head are whole fields: behind one that is known stands a tag indeed.
    head = _heads.get(begun[:known]) if known > 0 else None
    position = kept = known if head is not None else 0
    while position < end:
        start = position
        tag = data[start]
        position += 2
        if tag & 7 != 2 or tag > 0x7F or position > end:  # no field of it: protobuf decides what to make of it
            return _parse_whole(data)
        length = data[start + 1]
        if length > 0x7F:
            length, position = _length(data, start + 1)
        if position + length > end:
            return _parse_whole(data)
        if tag == RAW_INPUT_TAG:
            rest.append(view[kept:start])
            raw.append(view[position : position + length])
            kept = position + length
        position += length
    rest.append(view[kept:])
    if head is None:
        head = _head(b"".join(rest), bool(raw))
    elif any(rest):
        head = _head(begun[:known] + b"".join(rest))
    return new(ParsedRequest, (head, raw))


def _length(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number that stands there, and where it ends; one that is none leads beyond the end of the data."""
    length = shift = 0
    while position < len(data) and shift <= 28:
        group = data[position]
        length |= (group & 0x7F) << shift
        position += 1
        if group < 0x80:
            return length, position
        shift += 7
    return 0, len(data) + 1


# Clients repeat what is not data. By their bytes, those of requests that had raw contents.
_heads: dict[bytes, RequestHead] = {}
_MAX_HEADS, _REMEMBERED_NBYTES = 1024, 1024


def _head(data: bytes, recurring: bool = False) -> RequestHead:
    """``recurring``: worth remembering, because the tensors' data is not in it. Raises InternalError."""
    message = parse_message(_ModelInferRequest, data)
    inputs = []
    for tensor in message.inputs:
        datatype = tensor.datatype if tensor.datatype in ITEMSIZE else "<invalid>"
        is_plain = not (tensor.HasField("contents") or len(tensor.parameters))
        inputs.append(HeadInput(tensor.name, datatype, list(tensor.shape), None if is_plain else tensor))
    plain = [output.name for output in message.outputs if not len(output.parameters)]
    head = RequestHead(message, inputs, plain if len(plain) == len(message.outputs) else None)
    if recurring and len(data) < _REMEMBERED_NBYTES:
        if len(_heads) >= _MAX_HEADS:
            _heads.clear()
        _heads[data] = head
    return head


def model_at_the_start(data: memoryview) -> str | None:
    """The name of the model, of a request whose first bytes these are; None if it stands elsewhere."""
    if len(data) < 2 or data[0] != MODEL_NAME_TAG or data[1] > 0x7F or len(data) < 2 + data[1]:
        return None
    return str(data[2 : 2 + data[1]], "utf-8", "replace")


def _parse_whole(data: bytes | memoryview) -> ParsedRequest:
    head = _head(bytes(data))
    return ParsedRequest(head, list(head.message.raw_input_contents))


def parse_message(kind: Any, data: bytes) -> Any:
    """Raises InternalError where the bytes are no message of that kind."""
    try:
        return kind.FromString(data)
    except Exception as error:  # DecodeError's home differs between protobuf's implementations
        raise InternalError("Unable to parse request") from error


# --- requests -----------------------------------------------------------------------------------------------------


def decode_call(parsed: ParsedRequest, signature: Signature, parameters: DecodedParameters) -> InferCall:
    """The call; its inputs view the request's bytes. Raises InvalidArgument, NotFound or Unsupported."""
    (message, described, outputs), raw = parsed
    model = message.model_name
    classes: dict[str, int] = {}
    next_raw = iter(raw)
    inputs: list[InputTensor] = []
    for name, datatype, shape, tensor in described:
        data: bytes | memoryview | None = None if tensor is None else _data_beside_raw(tensor, model, raw)
        if data is None:
            data = next(next_raw, None)
        if data is None:
            raise InvalidArgument(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
        inputs.append(new(InputTensor, (name, datatype, shape, data, -1)))
    if outputs is None:
        outputs = [_requested_output(output, classes) for output in message.outputs]
    return InferCall(
        model,
        signature.version,
        inputs,
        message.id,
        outputs,
        parameters.free,
        parameters.correlation_id,
        parameters.flags,
        parameters.priority,
        parameters.timeout_us,
        None,
        signature,
        classes,
    )


def decode_parameters(message: Any) -> DecodedParameters:
    """Raises InvalidArgument where a value has the wrong type or a key is reserved."""
    if not len(message.parameters):
        return DecodedParameters({}, 0, 0, 0, 0, False)
    free: Parameters = {}
    correlation_id: int | str = 0
    flags = priority = timeout_us = 0
    empty_final = False
    for name, parameter in message.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if name == "sequence_id":
            value = _expect(name, parameter, kind, "int64_param", "string_param")
            correlation_id = value if isinstance(value, str) else value & UINT64_MASK
        elif name == "sequence_start":
            flags |= SEQUENCE_START if _expect(name, parameter, kind, "bool_param") else 0
        elif name == "sequence_end":
            flags |= SEQUENCE_END if _expect(name, parameter, kind, "bool_param") else 0
        elif name == "priority":
            priority = _expect(name, parameter, kind, "int64_param", "uint64_param")
            if priority < 0:
                raise InvalidArgument("invalid value for 'priority', expected value >= 0.")
        elif name == "timeout":
            timeout_us = _expect(name, parameter, kind, "int64_param") & UINT64_MASK
        elif name == EMPTY_FINAL:
            empty_final = _expect(name, parameter, kind, "bool_param")
        elif name.startswith("triton_"):
            raise InvalidArgument(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {EMPTY_FINAL}"
            )
        elif kind is None or kind == "uint64_param":
            raise InvalidArgument(
                f"invalid value type for '{name}' parameter, expected int64_param, bool_param, or string_param."
            )
        else:
            free[name] = getattr(parameter, kind)
    return DecodedParameters(free, correlation_id, flags, priority, timeout_us, empty_final)


def _expect(name: str, parameter: Any, kind: str | None, *kinds: str) -> Any:
    if kind not in kinds:
        raise InvalidArgument(f"invalid value type for '{name}' parameter, expected {' or '.join(kinds)}.")
    return getattr(parameter, kind)


def _data_beside_raw(tensor: Any, model: str, raw: Pieces) -> bytes | None:
    """An input's bytes if they are not among the raw contents."""
    typed = tensor.HasField("contents")
    if len(tensor.parameters):
        region = _region(tensor)
        if region is not None and typed:
            raise InvalidArgument(
                f"unexpected 'content' provided when using shared memory for input tensor '{tensor.name}' "
                f"for model '{model}'"
            )
        if region is not None:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
    if not typed:
        return None
    if raw:
        raise InvalidArgument(
            f"contents field must not be specified when using raw_input_contents for '{tensor.name}' "
            f"for model '{model}'"
        )
    return _typed_data(tensor, model)


# Field of InferTensorContents, the datatype it carries, its numpy type, and narrower datatypes cut from its elements.
_CONTENTS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("bool_contents", "BOOL", "?", {}),
    ("int_contents", "INT32", "<i4", {"INT8": "i1", "INT16": "<i2"}),
    ("int64_contents", "INT64", "<i8", {}),
    ("uint_contents", "UINT32", "<u4", {"UINT8": "u1", "UINT16": "<u2"}),
    ("uint64_contents", "UINT64", "<u8", {}),
    ("fp32_contents", "FP32", "<f4", {}),
    ("fp64_contents", "FP64", "<f8", {}),
    ("bytes_contents", "BYTES", "", {}),
)


def _typed_data(tensor: Any, model: str) -> bytes:
    """Typed contents in binary form; integers wrap when cut to a narrower datatype, as in C++."""
    data = b""
    contents = tensor.contents
    datatype = tensor.datatype
    for field, carried, number, narrower in _CONTENTS:
        elements = getattr(contents, field)
        count = len(elements)
        if not count:
            continue
        refusal = f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model}'"
        if data:
            raise InvalidArgument(f"{refusal}, binary data was already supplied.")
        if datatype != carried and datatype not in narrower:
            expected = datatype if datatype in ITEMSIZE else "<invalid>"
            raise InvalidArgument(f"{refusal} of type '{carried}', expected datatype '{expected}'")
        if carried == "BYTES":
            data = prefixed(elements)
        else:
            array = numpy.fromiter(elements, number, count)
            data = array.astype(narrower.get(datatype, number), copy=False).tobytes()
    return data


def _requested_output(output: Any, classes: dict[str, int]) -> str:
    """The name; if it is to be classified, it is put in ``classes`` too. Client shared memory is not served."""
    name: str = output.name
    if len(output.parameters):
        region = _region(output)
        classification = output.parameters.get("classification")
        if classification is not None:
            if classification.WhichOneof("parameter_choice") != "int64_param":
                raise InvalidArgument("invalid value type for 'classification' parameter, expected int64_param")
            if classification.int64_param <= 0:
                raise InvalidArgument("invalid value for 'classification' parameter, expected >= 0")
            if region is not None:
                raise InvalidArgument("output can't set both 'shared_memory_region' and 'classification'")
            classes[name] = classification.int64_param
        if region is not None:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
    return name


def _region(tensor: Any) -> str | None:
    """The client's shared memory region that a tensor names, with the types of its parameters checked."""
    parameters = tensor.parameters
    region: str | None = None
    if "shared_memory_region" in parameters:
        region = _region_parameter(tensor, "shared_memory_region", "string_param")
    for name in ("shared_memory_offset", "shared_memory_byte_size"):
        if name in parameters:
            if region is None:
                raise InvalidArgument(
                    f"'{name}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor.name}'"
                )
            _region_parameter(tensor, name, "int64_param")
    if region is not None and "shared_memory_byte_size" not in parameters:
        raise InvalidArgument(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor.name}'"
        )
    return region


def _region_parameter(tensor: Any, name: str, kind: str) -> Any:
    parameter = tensor.parameters[name]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidArgument(f"invalid value type for '{name}' parameter for tensor '{tensor.name}', expected {kind}.")
    return getattr(parameter, kind)


# --- responses ----------------------------------------------------------------------------------------------------


def encode_response(
    model: str, version: str, request_id: str, parameters: Parameters, outputs: list[OutputTensor]
) -> Pieces:
    """A ModelInferResponse in pieces (tensor data by reference), for one join. Raises InvalidArgument if too large."""
    head = _opening(model, version)
    if request_id or parameters:
        message = _ModelInferResponse(id=request_id)
        for name, value in parameters.items():
            set_parameter(message.parameters[name], value)
        head += message.SerializeToString()
    data: Pieces = []
    nbytes = 0
    for name, datatype, shape, raw in outputs:
        head += _described(name, datatype, shape)
        opening = _raw_opening(len(raw))
        data += (opening, raw)
        nbytes += len(opening) + len(raw)
    nbytes += len(head)
    if nbytes > MAX_MESSAGE_NBYTES:
        raise InvalidArgument(
            f"Response has byte size {nbytes} which exceeds gRPC's byte size limit {MAX_MESSAGE_NBYTES}."
        )
    return [head, *data]


# Names, types, shapes and sizes recur from response to response.
@lru_cache(maxsize=1024)
def _opening(model: str, version: str) -> bytes:
    opening: bytes = _ModelInferResponse(model_name=model, model_version=version).SerializeToString()
    return opening


@lru_cache(maxsize=4096)
def _described(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    message = _ModelInferResponse()
    message.outputs.add(name=name, datatype=datatype, shape=shape)
    described: bytes = message.SerializeToString()
    return described


@lru_cache(maxsize=1024)
def _raw_opening(nbytes: int) -> bytes:
    return RAW_OUTPUT_TAG + varint(nbytes)


def set_parameter(target: Any, value: bool | int | float | str) -> None:
    """An InferParameter of the value's type (bool before int: it is one in Python)."""
    if isinstance(value, bool):
        target.bool_param = value
    elif isinstance(value, int):
        target.int64_param = value
    elif isinstance(value, float):
        target.double_param = value
    else:
        target.string_param = value
