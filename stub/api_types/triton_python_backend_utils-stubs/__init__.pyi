"""Types of the module for checkers: an installed single-file module is typed by such a folder only."""

from stub.bytes_tensor import deserialize_bytes_tensor as deserialize_bytes_tensor
from stub.bytes_tensor import serialize_byte_tensor as serialize_byte_tensor
from stub.input_batch import input_batch_as_numpy as input_batch_as_numpy
from stub.logger import Logger as Logger
from stub.lookup import get_input_config_by_name as get_input_config_by_name
from stub.lookup import get_input_tensor_by_name as get_input_tensor_by_name
from stub.lookup import get_output_config_by_name as get_output_config_by_name
from stub.lookup import get_output_tensor_by_name as get_output_tensor_by_name
from stub.lookup import using_decoupled_model_transaction_policy as using_decoupled_model_transaction_policy
from stub.metric_family import MetricFamily as MetricFamily
from stub.model_config import ModelConfig as ModelConfig
from stub.model_control import is_model_ready as is_model_ready
from stub.model_control import load_model as load_model
from stub.model_control import unload_model as unload_model
from stub.numpy_types import TRITON_STRING_TO_NUMPY as TRITON_STRING_TO_NUMPY
from stub.numpy_types import numpy_to_triton_type as numpy_to_triton_type
from stub.numpy_types import triton_string_to_numpy as triton_string_to_numpy
from stub.numpy_types import triton_to_numpy_type as triton_to_numpy_type
from stub.request import TRITONSERVER_REQUEST_FLAG_SEQUENCE_END as TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
from stub.request import TRITONSERVER_REQUEST_FLAG_SEQUENCE_START as TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
from stub.request import TRITONSERVER_REQUEST_RELEASE_ALL as TRITONSERVER_REQUEST_RELEASE_ALL
from stub.request import TRITONSERVER_REQUEST_RELEASE_RESCHEDULE as TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
from stub.request import InferenceRequest as InferenceRequest
from stub.request import MemoryType as MemoryType
from stub.request import PreferredMemory as PreferredMemory
from stub.response import InferenceResponse as InferenceResponse
from stub.sender import TRITONSERVER_RESPONSE_COMPLETE_FINAL as TRITONSERVER_RESPONSE_COMPLETE_FINAL
from stub.tensor import Tensor as Tensor
from stub.triton_error import TritonError as TritonError
from stub.triton_error import TritonModelException as TritonModelException
from stub.user_model import get_model_dir as get_model_dir

TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
