"""NumPy arrays as the inputs of a request, and the outputs of a reply as NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.calls import InputTensor, OutputTensor
from protocol.datatypes import BY_CONFIG_NAME, BY_NAME
from protocol.errors import InvalidArgument
from stub.bytes_tensor import join_elements, object_array, split_elements
from stub.numpy_types import DATATYPE, DTYPE
from stub.tensor import Tensor

Array = NDArray[Any]

_BF16_BITS = np.dtype(np.uint16)


def input_tensor(name: str, array: Array) -> InputTensor:
    """A copy for strings and for an array that is not contiguous, else a view. Raises InvalidArgument for a dtype that
    has no datatype; arrays of str, bytes or objects are BYTES."""
    array = np.asarray(array)
    datatype = DATATYPE.get(array.dtype)
    if datatype is None and array.dtype.kind in "OSU":
        return InputTensor(name, "BYTES", list(array.shape), join_elements(array))
    if datatype is None and array.dtype.name == "bfloat16":  # of the package ml_dtypes
        datatype, array = "BF16", array.view(_BF16_BITS)
    if datatype is None:
        raise InvalidArgument(f"input '{name}' has dtype {array.dtype}, which no datatype stands for")
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b""
    return InputTensor(name, datatype, list(array.shape), data)


def output_array(output: OutputTensor) -> Array:
    """A copy. BYTES become an object array of bytes, BF16 the bits as uint16."""
    _, datatype, shape, data = output
    if datatype == "BYTES":
        return object_array(split_elements(data), shape)
    dtype = _BF16_BITS if datatype == "BF16" else DTYPE[datatype]
    return np.frombuffer(bytearray(data), dtype).reshape(shape)


def datatype_of(name: str, dtype: Any) -> str:
    """The datatype of a NumPy dtype, or of a datatype's own name ("BYTES", "TYPE_STRING"). Raises InvalidArgument, for
    BF16 too: NumPy has no such dtype."""
    named = BY_NAME.get(dtype, BY_CONFIG_NAME.get(dtype)) if isinstance(dtype, str) else None
    if named is not None and named.name != "BF16":
        return named.name
    try:
        given = np.dtype(dtype)
    except TypeError:
        raise InvalidArgument(f"'{dtype}' of tensor '{name}' is no dtype") from None
    datatype = "BYTES" if given.kind in "OSU" else DATATYPE.get(given)
    if datatype is None:
        raise InvalidArgument(f"tensor '{name}' has dtype {given}, which no datatype stands for")
    return datatype


def output_tensor(function: str, name: str, datatype: str, value: Any) -> Tensor:
    """What a function has returned; lists and numbers become arrays. Raises TypeError for another dtype."""
    if not isinstance(value, np.ndarray):
        value = np.asarray(value, DTYPE.get(datatype, np.dtype(object)))
    if value.dtype.kind == "U":
        value = value.astype(object)
    if datatype_of(name, value.dtype) != datatype:
        raise TypeError(f"output '{name}' of function '{function}' is to be {datatype}, not {value.dtype}")
    return Tensor(name, value)


def concatenated(parts: Sequence[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def split(result: Any, sizes: Sequence[int]) -> list[Array]:
    """Shares of so many entries each."""
    return [result] if len(sizes) == 1 else np.split(np.asarray(result), np.cumsum(sizes)[:-1])


def read_npz(path: str) -> list[InputTensor]:
    """An input for each array of the file, by its name. Raises OSError, ValueError and InvalidArgument."""
    with np.load(path, allow_pickle=False) as arrays:
        return [input_tensor(name, arrays[name]) for name in arrays.files]
