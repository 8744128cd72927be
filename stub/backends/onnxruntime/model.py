"""The backend ``onnxruntime``: runs ``model.onnx`` of a model's version folder with ONNX Runtime.

A Python-based backend as any user's could be, but for four modules of ours that it shares. ONNX Runtime is the user's:
the extra ``tensorbus[onnxruntime]``, or what the model's environment has.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from ...input_batch import side_by_side
    from ...shared import errors
    from ...user_model import LoadError
    from ..joined import Arrays, Joined, join
    from .execution_providers import CPU, CUDA, providers
    from .onnx_graph import Config, Graph, GraphTensor, check, complete, is_complete
    from .ragged_batch import batch_inputs, ragged_inputs, scatter, scattered_outputs
else:
    from _tensorbus_app.stub.backends.joined import join
    from _tensorbus_app.stub.input_batch import side_by_side
    from _tensorbus_app.stub.shared import errors
    from _tensorbus_app.stub.user_model import LoadError
    from execution_providers import CPU, CUDA, providers
    from onnx_graph import Graph, GraphTensor, check, complete, is_complete
    from ragged_batch import batch_inputs, ragged_inputs, scatter, scattered_outputs

_DATA_TYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float": "FP32",
    "double": "FP64",
    "string": "STRING",
}
_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}  # optimization.graph.level; else all
_NUMBERS = {  # parameter to attribute of SessionOptions
    "intra_op_thread_count": "intra_op_num_threads",
    "inter_op_thread_count": "inter_op_num_threads",
    "enable_mem_arena": "enable_cpu_mem_arena",
    "enable_mem_pattern": "enable_mem_pattern",
}
_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_DEFAULT_MAX_BATCH_SIZE = 4


class TritonPythonModel:
    """One session; its runs are serial."""

    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        described = config.as_dict()
        if not is_complete(described):
            with _refusing(errors.ErrorKind.INVALID_ARG):
                settings = _Settings(described)
                graph = _graph(_open(settings, settings.session_options(), [CPU]))
                complete(described, graph, settings.number("default-max-batch-size", _DEFAULT_MAX_BATCH_SIZE))
        return config

    def initialize(self, args: Dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        with _refusing(errors.ErrorKind.INVALID_ARG):
            settings = _Settings(config)
            available = settings.runtime.get_available_providers()
            kind, device = args["model_instance_kind"], args["model_instance_device_id"]
            self._session = _open(settings, settings.session_options(), providers(config, kind, device, available))
            graph = _graph(self._session)
            check(config, graph)
        if kind == "GPU" and CUDA not in available:
            pb_utils.Logger.log_warn("model '{}' runs on the CPU: this onnxruntime has no CUDA".format(config["name"]))
        self._run_options = settings.run_options()
        self._config = config
        self._batching = config.get("max_batch_size", 0) > 0
        self._ragged = ragged_inputs(config) if self._batching else frozenset()
        self._scattered = scattered_outputs(config)
        self._states = [state["output_name"] for state in config.get("sequence_batching", {}).get("state", [])]
        self._scalars = {tensor.name for tensor in graph.inputs if tensor.dims == ()}

    def execute(self, requests: List[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        responses: Dict[int, pb_utils.InferenceResponse] = {}
        inputs = [self._arrays(request) for request in requests]

        def concatenate(name: str, members: List[int], arrays: List[Any]) -> Any:
            tensors = [pb_utils.get_input_tensor_by_name(requests[position], name) for position in members]
            view = None if name in self._ragged | self._scalars else side_by_side(tensors)
            return np.concatenate(arrays) if view is None else view

        for joined in join(inputs, self._batching, concatenate, self._ragged):
            members = [requests[position] for position in joined.members]
            given = [inputs[position] for position in joined.members]
            responses.update(zip(joined.members, self._run(joined, members, given)))
        return [responses[position] for position in range(len(requests))]

    def _arrays(self, request: pb_utils.InferenceRequest) -> Arrays:
        arrays = {tensor.name(): _fed(tensor.as_numpy()) for tensor in request.inputs()}
        for name in self._scalars & arrays.keys():
            if arrays[name].size == 1:
                arrays[name] = arrays[name].reshape(())
        return arrays

    def _run(self, joined: Joined, requests: List[Any], given: List[Arrays]) -> List[pb_utils.InferenceResponse]:
        asked = {name for request in requests for name in request.requested_output_names()}
        outputs = [entry for entry in self._config["output"] if entry["name"] in asked]
        outputs += [{"name": name} for name in self._states if name not in asked]
        names = [entry["name"] for entry in outputs]
        try:
            inputs = {**joined.inputs, **batch_inputs(self._config, given)}
            arrays = self._session.run(names, inputs, self._run_options)
            parts = [self._parts(joined, entry, array, given) for entry, array in zip(outputs, arrays)]
        except Exception as error:  # ONNX Runtime's have no common class of their own
            failed = pb_utils.TritonError(_text(error))
            return [pb_utils.InferenceResponse(error=failed) for _ in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(name, part[n]) for name, part in zip(names, parts)])
            for n in range(len(requests))
        ]

    def _parts(self, joined: Joined, output: Config, array: Any, given: List[Arrays]) -> List[Any]:
        """Of an output, one for each request. Raises ValueError."""
        source = self._scattered.get(output["name"])
        if source is None:
            return joined.split(output["name"], np.atleast_1d(array))
        return scatter(output["name"], array, output["dims"], [arrays[source].shape for arrays in given])


def _fed(array: Any) -> Any:
    """Strings go to ONNX Runtime as str; those that are no UTF-8 as NumPy's, which lose zeros at their ends."""
    if array.dtype != np.object_:
        return array
    elements = array.reshape(-1).tolist()
    with contextlib.suppress(UnicodeDecodeError):
        text = np.empty(len(elements), np.object_)
        text[:] = [element.decode() for element in elements]
        return text.reshape(array.shape)
    return np.array(elements, np.bytes_).reshape(array.shape)


# --- the session ------------------------------------------------------------------------------------------------


class _Settings:
    """What a configuration says of the session. Raises ValueError where it makes no sense."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.model = config["name"]
        self.parameters = {key: value.get("string_value", "") for key, value in config.get("parameters", {}).items()}
        # It reports its use to its maker by default, and leaves a file in the folder for temporary ones.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        try:
            import onnxruntime
        except ImportError as error:
            raise LoadError(
                "model '{}' needs the Python package onnxruntime, which the interpreter of its backend lacks; "
                "tensorbus[onnxruntime] installs it: {}".format(self.model, error)
            ) from None
        self.runtime = onnxruntime

    def number(self, key: str, default: int = 0) -> int:
        try:
            return int(self.parameters.get(key, default))
        except ValueError:
            text = "parameter '{}' of model '{}' must be an integer, not '{}'"
            raise ValueError(text.format(key, self.model, self.parameters[key])) from None

    def session_options(self) -> Any:
        options = self.runtime.SessionOptions()
        level = int(self.config.get("optimization", {}).get("graph", {}).get("level", 0))
        levels = self.runtime.GraphOptimizationLevel
        options.graph_optimization_level = getattr(levels, _LEVELS.get(level, "ORT_ENABLE_ALL"))
        for key, attribute in _NUMBERS.items():
            if key in self.parameters:
                setattr(options, attribute, type(getattr(options, attribute))(self.number(key)))
        if self.number("execution_mode"):
            options.execution_mode = self.runtime.ExecutionMode.ORT_PARALLEL
        for key, value in self.parameters.items():
            if key.startswith("session."):
                options.add_session_config_entry(key, value)
        return options

    def run_options(self) -> Any:
        if _SHRINKAGE not in self.parameters:
            return None
        options = self.runtime.RunOptions()
        options.add_run_config_entry(_SHRINKAGE, self.parameters[_SHRINKAGE])
        return options


def _open(settings: _Settings, options: Any, providers: List[Any]) -> Any:
    """The model is a file, or a folder that holds one with what it refers to. Raises ValueError, LoadError."""
    path = os.path.join(pb_utils.get_model_dir(), settings.config.get("default_model_filename") or "model.onnx")
    path = os.path.join(path, "model.onnx") if os.path.isdir(path) else path
    if not os.path.exists(path):
        raise LoadError("unable to find '{}' for model '{}'".format(path, settings.model), errors.ErrorKind.UNAVAILABLE)
    try:
        return settings.runtime.InferenceSession(path, options, providers)
    except Exception as error:
        raise LoadError(_text(error)) from None


def _graph(session: Any) -> Graph:
    inputs = [_tensor(node) for node in session.get_inputs()]
    optional = [_tensor(node)._replace(optional=True) for node in session.get_overridable_initializers()]
    return Graph(inputs + optional, [_tensor(node) for node in session.get_outputs()])


def _tensor(node: Any) -> GraphTensor:
    container, element = _type(node.type)
    if container != "tensor":
        text = "Unsupported ONNX Type 'ONNX_TYPE_{}' for I/O '{}', expected 'ONNX_TYPE_TENSOR'."
        raise ValueError(text.format({"seq": "SEQUENCE"}.get(container, container.upper()), node.name))
    if element not in _DATA_TYPES:
        raise ValueError("unsupported datatype '{}' of tensor '{}'".format(element, node.name))
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in node.shape)
    return GraphTensor(node.name, "TYPE_" + _DATA_TYPES[element], dims)


def _type(text: str) -> Tuple[str, str]:
    """``tensor(float)`` to its two words."""
    container, _, element = text.partition("(")
    return container, element.rstrip(")")


# --- errors -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _refusing(kind: errors.ErrorKind) -> Iterator[None]:
    """A ValueError is what is wrong with the configuration, told without a traceback."""
    try:
        yield
    except ValueError as error:
        raise LoadError(str(error), kind) from None


_ONNX_RUNTIME_ERROR = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", re.DOTALL)
_FAIL = "1"  # ONNX Runtime's code for what has none


def _text(error: Exception) -> str:
    match = _ONNX_RUNTIME_ERROR.search(str(error))
    code, text = match.groups() if match else (_FAIL, str(error))
    return "onnx runtime error {}: {}".format(code, text)
