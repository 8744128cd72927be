"""``pb_utils.input_batch_as_numpy``: an input of all requests of a batch as one array; an extension, Triton has none.

The server places the inputs of requests that come one after the other side by side where it can
(gateway/batch_rows.py). Then the array is a view of them all; else they are copied.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from .lookup import get_input_tensor_by_name
from .numpy_types import DTYPE
from .request import InferenceRequest
from .tensor import Tensor
from .triton_error import TritonModelException

_FROM_NBYTES = 16 << 10  # below, copying costs as much as to find out where all of them lie


def input_batch_as_numpy(requests: Sequence[InferenceRequest], name: str) -> NDArray[Any]:
    """The input ``name`` of all requests, in their order, joined along the first dimension. It may share the memory of
    their arrays, and be written to as they may.

    Raises TritonModelException if a request lacks the input, or its shape or datatype does not fit."""
    tensors = [get_input_tensor_by_name(request, name) for request in requests]
    arrays = [tensor.as_numpy() for tensor in tensors if tensor is not None]
    if len(arrays) < len(tensors):
        raise TritonModelException("a request of the batch has no input '{}'".format(name))
    if len(arrays) == 1:
        return arrays[0]
    view = side_by_side(tensors)
    if view is not None:
        return view
    try:
        return np.concatenate(arrays)
    except ValueError as error:
        raise TritonModelException("the inputs '{}' of a batch do not fit: {}".format(name, error)) from None


def side_by_side(tensors: Sequence[Optional[Tensor]]) -> Optional[NDArray[Any]]:
    """A view of them all, whose arrays the model has seen, if they lie so and are large enough to be worth it."""
    first = tensors[0] if tensors else None
    if first is None or first._handle is None or first._handle.nbytes < _FROM_NBYTES or first._datatype not in DTYPE:
        return None
    segment, at, _ = first._handle
    datatype, row = first._datatype, first._shape[1:]
    for tensor in tensors:
        handle = None if tensor is None else tensor._handle
        if tensor is None or handle is None or handle.offset != at or handle.segment != segment:
            return None
        if tensor._shape[1:] != row or tensor._datatype != datatype:
            return None
        at += handle.nbytes
    return np.asarray(_Run([tensor.as_numpy() for tensor in tensors if tensor is not None])) if first._shape else None


class _Run:
    """What the joined array is made of; as long as it lives, so do the arrays, whose memory is on lease."""

    __slots__ = ("__array_interface__", "_arrays")

    def __init__(self, arrays: List[NDArray[Any]]) -> None:
        self._arrays = arrays
        first = arrays[0]
        self.__array_interface__: Dict[str, Any] = {
            **first.__array_interface__,
            "shape": (sum([array.shape[0] for array in arrays]), *first.shape[1:]),
        }
