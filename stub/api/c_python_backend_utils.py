"""The original's C++ module by name: some models import it for what ``triton_python_backend_utils`` lacks."""
# mypy: disable-error-code="import-not-found,import-untyped"

import os

from _tensorbus_app.stub.logger import Logger
from _tensorbus_app.stub.metric_family import Metric, MetricFamily, MetricKind
from _tensorbus_app.stub.model_control import is_model_ready, load_model, unload_model
from _tensorbus_app.stub.request import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    InferenceRequest,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
)
from _tensorbus_app.stub.response import InferenceResponse
from _tensorbus_app.stub.response_iterator import ResponseIterator
from _tensorbus_app.stub.sender import InferenceResponseSender
from _tensorbus_app.stub.tensor import Tensor
from _tensorbus_app.stub.triton_error import TritonError, TritonModelException
from _tensorbus_app.stub.user_model import get_model_dir

COUNTER, GAUGE, HISTOGRAM = MetricKind


class SharedMemory:
    """Models ask it how much is left."""

    def free_memory(self) -> int:
        """Free bytes of the shared memory's file system."""
        status = os.statvfs("/dev/shm" if os.path.isdir("/dev/shm") else "/")
        return status.f_bavail * status.f_frsize


shared_memory = SharedMemory()

__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "PreferredMemory",
    "ResponseIterator",
    "SharedMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "get_model_dir",
    "is_model_ready",
    "load_model",
    "shared_memory",
    "unload_model",
]
