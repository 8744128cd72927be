"""BYTES elements between arrays and the binary form: each is prefixed by its 4-byte little-endian length."""

from __future__ import annotations

from struct import Struct
from typing import Any, List, Tuple, Union

import numpy as np
from numpy.typing import NDArray

_LENGTH = Struct("<I")


def join_elements(array: NDArray[Any]) -> bytes:
    """The binary form of an object or S array in C order. Elements that are no bytes go as ``str(element)``."""
    parts: List[bytes] = []
    for element in array.ravel().tolist():
        data = element if isinstance(element, bytes) else str(element).encode()
        parts.append(_LENGTH.pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def split_elements(encoded: Union[bytes, bytearray, memoryview]) -> List[bytes]:
    """The elements of a binary form. Raises ValueError where a length points past the end."""
    data = bytes(encoded)
    elements: List[bytes] = []
    append, read, start, end = elements.append, _LENGTH.unpack_from, 0, len(data)
    while start + 4 <= end:
        stop = start + 4 + read(data, start)[0]
        append(data[start + 4 : stop])
        start = stop
    if start != end:
        raise ValueError("unexpected end of the elements of a BYTES tensor")
    return elements


def object_array(elements: List[bytes], shape: Tuple[int, ...]) -> NDArray[np.object_]:
    array: NDArray[np.object_] = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array.reshape(shape)


def serialize_byte_tensor(input_tensor: NDArray[Any]) -> Union[bytes, Tuple[()], None]:
    """``pb_utils.serialize_byte_tensor``: the binary form; ``()`` for size 0, None for other dtypes."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype != np.object_ and input_tensor.dtype.kind != "S":
        return None
    return join_elements(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: Union[bytes, bytearray, memoryview]) -> NDArray[np.object_]:
    """``pb_utils.deserialize_bytes_tensor``: a 1-D object array of bytes."""
    elements = split_elements(encoded_tensor)
    return object_array(elements, (len(elements),))
