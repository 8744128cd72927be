"""``pb_utils.input_batch_as_numpy``: an input of all requests of a batch as one array; an extension, Triton has none.

The server places the inputs of requests that come one after the other side by side where it can
(gateway/batch_rows.py). Then the array is a view of them all; else they are copied.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from .lookup import get_input_tensor_by_name
from .request import InferenceRequest
from .triton_error import TritonModelException

# Below, copying costs less than to find out where an array lies (1 microsecond each).
_LOOK_FROM_NBYTES = 16 << 10


def input_batch_as_numpy(requests: Sequence[InferenceRequest], name: str) -> NDArray[Any]:
    """The input ``name`` of all requests, in their order, joined along the first dimension. It may share the memory of
    their arrays, and be written to as they may.

    Raises TritonModelException if a request lacks the input, or its shape or datatype does not fit."""
    arrays: List[NDArray[Any]] = []
    for request in requests:
        tensor = get_input_tensor_by_name(request, name)
        if tensor is None:
            raise TritonModelException("a request of the batch has no input '{}'".format(name))
        arrays.append(tensor.as_numpy())
    try:
        return join(arrays)
    except ValueError as error:
        raise TritonModelException("the inputs '{}' of a batch do not fit: {}".format(name, error)) from None


def join(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """As ``numpy.concatenate``, but for a view where they lie side by side in their order. Raises ValueError."""
    if len(arrays) == 1:
        return arrays[0]
    view = side_by_side(arrays) if arrays else None
    return np.concatenate(arrays) if view is None else view


def side_by_side(arrays: Sequence[NDArray[Any]]) -> Optional[NDArray[Any]]:
    """A view of them all, if they lie so and are large enough to be worth it."""
    if arrays[0].nbytes >= _LOOK_FROM_NBYTES and _lie_side_by_side(arrays):
        return np.asarray(_Run(arrays))
    return None


def _lie_side_by_side(arrays: Sequence[NDArray[Any]]) -> bool:
    first = arrays[0]
    form, dtype, at = first.shape[1:], first.dtype, _address(first)
    for array in arrays:
        if array.shape[1:] != form or array.dtype != dtype or not array.flags.c_contiguous or _address(array) != at:
            return False
        at += array.nbytes
    return bool(first.ndim) and not dtype.hasobject


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class _Run:
    """What the joined array is made of; as long as it lives, so do the arrays, whose memory is on lease."""

    __slots__ = ("__array_interface__", "_arrays")

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        first = arrays[0]
        read_only = not all(array.flags.writeable for array in arrays)
        self._arrays = list(arrays)
        self.__array_interface__: Dict[str, Any] = {
            "version": 3,
            "shape": (sum(array.shape[0] for array in arrays), *first.shape[1:]),
            "typestr": first.dtype.str,
            "data": (_address(first), read_only),
        }
