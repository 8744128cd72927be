"""KServe's binary form of a tensor (little-endian, row-major; BYTES elements length-prefixed), element by element."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from struct import Struct
from typing import Any

from protocol.errors import InvalidArgument

_LENGTH = Struct("<I")

# Codes of array and memoryview; FP16, BF16 and BYTES have none.
ARRAY_CODE = {
    "BOOL": "B",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP32": "f",
    "FP64": "d",
}


def numbers(datatype: str, data: bytes | memoryview) -> list[Any] | None:
    """The elements as Python numbers, FP32 widened; None for a type that has no array code."""
    code = "?" if datatype == "BOOL" else ARRAY_CODE.get(datatype)
    if code is None:
        return None
    view: Any = memoryview(data)
    values: list[Any] = view.cast(code).tolist() if data else []
    return values


def prefixed(items: Iterable[bytes]) -> bytes:
    """Elements to a BYTES tensor."""
    return b"".join(chain.from_iterable((_LENGTH.pack(len(item)), item) for item in items))


def elements(data: bytes | memoryview) -> Iterator[bytes | memoryview]:
    """The elements of a BYTES tensor; InvalidArgument where they do not add up."""
    position, end = 0, len(data)
    while position < end:
        start = position + 4
        if start > end:
            raise InvalidArgument("incomplete string length indicator in an output of the model")
        position = start + _LENGTH.unpack_from(data, start - 4)[0]
        if position > end:
            raise InvalidArgument("incomplete string data in an output of the model")
        yield data[start:position]
