"""What a Triton Python-backend model imports, in a stub process and in a unit test without a server alike.

    import triton_python_backend_utils as pb_utils

Only names; the code is in ``stub/``, reached under the private package so that no name of the user's is taken.
"""
# mypy: disable-error-code="import-not-found,import-untyped"

from _tensorbus_app.stub.bytes_tensor import deserialize_bytes_tensor, serialize_byte_tensor
from _tensorbus_app.stub.input_batch import input_batch_as_numpy
from _tensorbus_app.stub.logger import Logger
from _tensorbus_app.stub.lookup import (
    get_input_config_by_name,
    get_input_tensor_by_name,
    get_output_config_by_name,
    get_output_tensor_by_name,
    using_decoupled_model_transaction_policy,
)
from _tensorbus_app.stub.metric_family import MetricFamily
from _tensorbus_app.stub.model_config import ModelConfig
from _tensorbus_app.stub.model_control import is_model_ready, load_model, unload_model
from _tensorbus_app.stub.numpy_types import (
    TRITON_STRING_TO_NUMPY,
    numpy_to_triton_type,
    triton_string_to_numpy,
    triton_to_numpy_type,
)
from _tensorbus_app.stub.request import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
    PreferredMemory,
)
from _tensorbus_app.stub.response import InferenceResponse
from _tensorbus_app.stub.sender import TRITONSERVER_RESPONSE_COMPLETE_FINAL
from _tensorbus_app.stub.tensor import Tensor
from _tensorbus_app.stub.triton_error import TritonError, TritonModelException
from _tensorbus_app.stub.user_model import get_model_dir

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "input_batch_as_numpy",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]
