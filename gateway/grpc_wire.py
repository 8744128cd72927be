"""The bytes of a ModelInferRequest, told apart: the head, which is a message, and the contents of its tensors.

Tensor data must not be copied more often than needed, and protobuf copies twice (into the message, then into a bytes
object). So raw contents never enter a message: on the way in they are cut out of the request as views, on the way out
(grpc_responses.py) they are appended behind the serialized rest. On the wire both are plain repeated bytes fields:

    ModelInferRequest   | fields 1..6 ...            | 0x3A varint(nbytes) raw | 0x3A varint(nbytes) raw | ...
    ModelInferResponse  | fields 1..5 ...            | 0x32 varint(nbytes) raw | 0x32 varint(nbytes) raw | ...
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.proto import service_pb2
from protocol.datatypes import ITEMSIZE
from protocol.errors import InternalError
from protocol.messages import new

RAW_INPUT_TAG = 0x3A  # field 7, length-delimited
MODEL_NAME_TAG = 0x0A  # field 1, length-delimited

_ModelInferRequest = service_pb2.ModelInferRequest

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
