"""The KServe v2 datatypes: wire name, config enum name, number and element size (KServe v2; Triton adds BF16)."""

from __future__ import annotations

from typing import NamedTuple, Optional


class Datatype(NamedTuple):
    """One row of the datatype table; ``itemsize`` is bytes per element, None where elements vary (BYTES)."""

    name: str  # on the wire, e.g. "FP32"
    config_name: str  # in config.pbtxt, e.g. "TYPE_FP32"
    number: int  # TRITONSERVER_DataType and the config enum
    itemsize: Optional[int]


_ROWS = (
    Datatype("BOOL", "TYPE_BOOL", 1, 1),
    Datatype("UINT8", "TYPE_UINT8", 2, 1),
    Datatype("UINT16", "TYPE_UINT16", 3, 2),
    Datatype("UINT32", "TYPE_UINT32", 4, 4),
    Datatype("UINT64", "TYPE_UINT64", 5, 8),
    Datatype("INT8", "TYPE_INT8", 6, 1),
    Datatype("INT16", "TYPE_INT16", 7, 2),
    Datatype("INT32", "TYPE_INT32", 8, 4),
    Datatype("INT64", "TYPE_INT64", 9, 8),
    Datatype("FP16", "TYPE_FP16", 10, 2),
    Datatype("FP32", "TYPE_FP32", 11, 4),
    Datatype("FP64", "TYPE_FP64", 12, 8),
    Datatype("BYTES", "TYPE_STRING", 13, None),
    Datatype("BF16", "TYPE_BF16", 14, 2),
)

BY_NAME = {row.name: row for row in _ROWS}
BY_CONFIG_NAME = {row.config_name: row for row in _ROWS}
ITEMSIZE = {row.name: row.itemsize for row in _ROWS}
