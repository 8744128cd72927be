"""The ``data`` member of a tensor in JSON, to and from KServe's binary form (little-endian, row-major).

``from_json`` is for the common case and gives up on anything odd; ``from_values`` takes what Triton takes and has its
error texts.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gateway import http_json
from gateway.http_json import JsonError, Members
from gateway.tensors import ARRAY_CODE, elements, numbers, prefixed
from protocol.datatypes import ITEMSIZE
from protocol.errors import InvalidArgument

MAX_NESTING = 100
_UNSIGNED_CODE = {1: "B", 2: "H", 4: "I", 8: "Q"}
_LISTS: dict[str, Any] = dict.fromkeys(ARRAY_CODE, list[int])
_LISTS |= {"BOOL": list[bool], "FP32": list[float], "FP64": list[float], "BYTES": list[str]}
_DECODERS = {datatype: msgspec.json.Decoder(kind) for datatype, kind in _LISTS.items()}
_WRONG_COUNT = "Unable to parse 'data': Shape does not match true shape of 'data' field"
ODD = (msgspec.DecodeError, msgspec.ValidationError, OverflowError, RecursionError, ValueError)


def from_json(datatype: str, count: int, text: msgspec.Raw) -> bytes:
    """Raises one of ODD for whatever is not plainly right."""
    decoder = _DECODERS.get(datatype)
    if decoder is None:
        raise ValueError("a type that JSON cannot carry")
    try:
        values = decoder.decode(text)
    except msgspec.ValidationError:
        nested = msgspec.json.decode(text)
        if not isinstance(nested, list):
            raise ValueError("not an array") from None
        values = msgspec.convert(list(_flat(nested)), _LISTS[datatype])
    if datatype == "BYTES":
        return prefixed(value.encode() for value in values)
    if len(values) != count:
        raise ValueError("wrong number of elements")
    return _packed(ARRAY_CODE[datatype], values)


def from_values(datatype: str, count: int, tree: Any) -> bytes:
    """From parsed JSON in any nesting: only the number of elements counts, and integers wrap. Raises JsonError and
    InvalidArgument."""
    try:
        values = _flat(http_json.as_array(tree))
    except JsonError as error:
        raise JsonError(f"Unable to parse 'data': {error}") from None
    if datatype == "BYTES":
        try:
            return prefixed(map(http_json.as_bytes, values))
        except JsonError as error:
            raise JsonError(f"Unable to parse JSON bytes array: {error}") from None
    read, code = _reader(datatype)
    out: list[Any] = []
    for value in values:
        if len(out) == count:
            raise JsonError(_WRONG_COUNT)
        try:
            out.append(read(value))
        except JsonError as error:
            raise JsonError(f"Unable to parse 'data': {error}") from None
    if len(out) != count:
        raise JsonError(_WRONG_COUNT)
    return _packed(code, out)


def to_json(datatype: str, data: bytes | memoryview) -> bytes:
    """A flat JSON array. Raises InvalidArgument for the types that JSON cannot carry."""
    if datatype == "BYTES":
        return b"[" + b",".join(map(http_json.string, elements(data))) + b"]"
    values = numbers(datatype, data)
    if values is None:
        raise InvalidArgument(
            f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
        )
    return http_json.doubles(values) if datatype in ("FP32", "FP64") else http_json.encode(values)


def _flat(values: list[Any]) -> Iterator[Any]:
    """Row-major, whatever the nesting."""
    stack = [iter(values)]
    while stack:
        for value in stack[-1]:
            if isinstance(value, list) and not isinstance(value, Members):
                if len(stack) == MAX_NESTING:
                    raise InvalidArgument(f"JSON nesting depth exceeds maximum allowed limit ({MAX_NESTING})")
                stack.append(iter(value))
                break
            yield value
        else:
            stack.pop()


def _reader(datatype: str) -> tuple[Callable[[Any], Any], str]:
    """How to read one element, and the array code of what that gives."""
    if datatype == "BOOL":
        return http_json.as_bool, "B"
    if datatype in ("FP32", "FP64"):
        return http_json.as_double, ARRAY_CODE[datatype]
    itemsize = ITEMSIZE[datatype] or 0
    mask = (1 << 8 * itemsize) - 1
    read = http_json.as_uint if datatype.startswith("U") else http_json.as_int
    return lambda value: read(value) & mask, _UNSIGNED_CODE[itemsize]


def _packed(code: str, values: list[Any]) -> bytes:
    """Raises OverflowError for an integer out of range."""
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
