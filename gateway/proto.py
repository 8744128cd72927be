"""The door to the protocol buffers of KServe v2 (and Triton's extensions), which the tritonclient package brings.

Importing ``tritonclient.grpc`` the plain way runs the whole client (grpcio, ml_dtypes, aio: 0.2 s, 15 MB more). Only
its two generated modules are wanted, so while they load the package is stood in for by an empty one. They keep their
true names: a real client imported later in this process finds them and shares the one descriptor pool.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = "tritonclient.grpc"


def _load(name: str) -> Any:
    """One generated module of the package, without the package's own ``__init__``."""
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


model_config_pb2: Any = _load("model_config_pb2")
service_pb2: Any = _load("service_pb2")
