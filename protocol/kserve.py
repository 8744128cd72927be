"""The door to the protocol buffers of KServe v2 and of Triton, which the tritonclient package brings.

Importing ``tritonclient.grpc`` the plain way runs the whole client (grpcio, ml_dtypes, aio: 0.2 s, 15 MB more). Only
its generated modules are wanted, so while one loads the package is stood in for by an empty one. They keep their true
names: a real client imported later in this process finds them and shares the one descriptor pool.

For gateway and broker; stubs never load it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = "tritonclient.grpc"


def generated(name: str) -> Any:
    """``model_config_pb2`` or ``service_pb2`` (which needs the other), without the package's own ``__init__``. The
    generated code has no static types."""
    if _PACKAGE in sys.modules:
        return import_module(f"{_PACKAGE}.{name}")
    parent = find_spec("tritonclient")
    if parent is None or not parent.submodule_search_locations:
        raise ModuleNotFoundError("tritonclient is not installed", name="tritonclient")
    stand_in = ModuleType(_PACKAGE)
    stand_in.__path__ = [str(Path(folder) / "grpc") for folder in parent.submodule_search_locations]
    sys.modules[_PACKAGE] = stand_in
    try:
        return import_module(f"{_PACKAGE}.{name}")
    finally:
        del sys.modules[_PACKAGE]
