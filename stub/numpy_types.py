"""Datatypes as NumPy types: the table of tensors and pb_utils' conversion functions."""

from __future__ import annotations

from typing import Any, Dict, Optional, Type

import numpy as np

# TYPE_BOOL is the builtin in the original; models compare with it.
TRITON_STRING_TO_NUMPY: Dict[str, Any] = {
    "TYPE_BOOL": bool,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}

_BY_NUMBER: Dict[int, Type[Any]] = {
    1: np.bool_,
    2: np.uint8,
    3: np.uint16,
    4: np.uint32,
    5: np.uint64,
    6: np.int8,
    7: np.int16,
    8: np.int32,
    9: np.int64,
    10: np.float16,
    11: np.float32,
    12: np.float64,
    13: np.object_,
}

# Fixed-size wire datatypes, both ways. A dtype of foreign byte order is unequal to its native one, so it is not found.
DTYPE: Dict[str, np.dtype[Any]] = {
    name[5:]: np.dtype(numpy_type) for name, numpy_type in TRITON_STRING_TO_NUMPY.items() if name != "TYPE_STRING"
}
DATATYPE: Dict[np.dtype[Any], str] = {dtype: name for name, dtype in DTYPE.items()}


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The NumPy type of a configuration's ``data_type``; KeyError where there is none (TYPE_BF16)."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Optional[Type[Any]]:
    return _BY_NUMBER.get(data_type)


def numpy_to_triton_type(data_type: Any) -> Optional[int]:
    """The datatype's number for a NumPy type or dtype, else None."""
    for number, numpy_type in _BY_NUMBER.items():
        if data_type == numpy_type:
            return number
    return 13 if data_type == np.bytes_ or getattr(data_type, "kind", "") == "S" else None
