"""The broker's door to protocol buffers: Triton's ModelConfig message, out of the tritonclient package.

The module is loaded by path under its own name, because importing its package would run the whole client
(0.2 s of start-up on two cores, where the message alone takes 0.04 s). A later ``import tritonclient.grpc`` finds
this very module, so there is one descriptor pool and one class.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias


def _load(name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    package, *folders, stem = name.split(".")
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    path = Path(found.submodule_search_locations[0], *folders, f"{stem}.py")
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_pb2: Any = _load("tritonclient.grpc.model_config_pb2")

Message: TypeAlias = Any  # an instance of ModelConfig or of a message inside it; the generated code is untyped
ModelConfigMessage = _pb2.ModelConfig
InstanceGroupMessage = _pb2.ModelInstanceGroup
DATA_TYPES = _pb2.DataType
ModelInputMessage = _pb2.ModelInput
BatchInputMessage = _pb2.BatchInput
BatchOutputMessage = _pb2.BatchOutput
QueuePolicyMessage = _pb2.ModelQueuePolicy
SequenceControlMessage = _pb2.ModelSequenceBatching.Control
