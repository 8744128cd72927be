"""The backend ``pytorch``: runs ``model.pt`` (TorchScript) or ``model.pt2`` of a model's version folder.

A Python-based backend as any user's could be, but for four modules of ours that it shares. PyTorch is the user's.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional

import triton_python_backend_utils as pb_utils

if TYPE_CHECKING:
    from ...input_batch import side_by_side
    from ...shared import errors
    from ...user_model import LoadError
    from ..joined import Arrays, Joined, join
    from .torch_names import places
else:
    from _tensorbus_app.stub.backends.joined import join
    from _tensorbus_app.stub.input_batch import side_by_side
    from _tensorbus_app.stub.shared import errors
    from _tensorbus_app.stub.user_model import LoadError
    from torch_names import places

_DATA_TYPES = {
    "TYPE_BOOL": "bool",
    "TYPE_UINT8": "uint8",
    "TYPE_UINT16": "uint16",
    "TYPE_UINT32": "uint32",
    "TYPE_UINT64": "uint64",
    "TYPE_INT8": "int8",
    "TYPE_INT16": "int16",
    "TYPE_INT32": "int32",
    "TYPE_INT64": "int64",
    "TYPE_FP16": "float16",
    "TYPE_FP32": "float32",
    "TYPE_FP64": "float64",
    "TYPE_BF16": "bfloat16",
}


class TritonPythonModel:
    """One module on one device."""

    def initialize(self, args: Dict[str, str]) -> None:
        self._config = json.loads(args["model_config"])
        self._torch = _torch(self._config["name"])
        self._device = self._chosen_device(args["model_instance_kind"], args["model_instance_device_id"])
        try:
            self._set_threads()
            self._module = _load(self._config, self._device)
            self._check_tensors()
            inputs, outputs = ([entry["name"] for entry in self._config[kind]] for kind in ("input", "output"))
            sequence = self._config.get("sequence_batching", {})
            states = sequence.get("state", [])
            inputs += [control["name"] for control in sequence.get("control_input", [])]
            self._inputs = places(inputs + [state["input_name"] for state in states], self._module.arguments)
            self._states = [
                {"name": state["output_name"], "data_type": state["data_type"]}
                for state in states
                if state["output_name"] not in outputs
            ]
            self._outputs = places(outputs + [state["name"] for state in self._states])
            self._kept = {state["output_name"] for state in states}
        except ValueError as error:
            raise LoadError(str(error), errors.ErrorKind.INVALID_ARG) from None
        self._batching = self._config.get("max_batch_size", 0) > 0

    def execute(self, requests: List[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        responses: Dict[int, pb_utils.InferenceResponse] = {}

        def concatenate(name: str, members: List[int], arrays: List[Any]) -> Any:
            view = side_by_side([pb_utils.get_input_tensor_by_name(requests[position], name) for position in members])
            return self._torch.cat(arrays) if view is None else self._torch.from_numpy(view)

        for joined in join([self._tensors(request) for request in requests], self._batching, concatenate):
            members = [requests[position] for position in joined.members]
            responses.update(zip(joined.members, self._run(joined, members)))
        return [responses[position] for position in range(len(requests))]

    def _tensors(self, request: pb_utils.InferenceRequest) -> Arrays:
        return {tensor.name(): self._torch.from_dlpack(tensor) for tensor in request.inputs()}

    def _run(self, joined: Joined, requests: List[Any]) -> List[pb_utils.InferenceResponse]:
        asked = {name for request in requests for name in request.requested_output_names()}
        try:
            inputs = {self._inputs[name]: self._placed(tensor) for name, tensor in joined.inputs.items()}
            with self._mode(), self._optimization():
                results = self._named(self._module(inputs), asked)
            parts = {name: joined.split(name, tensor) for name, tensor in results.items()}
        except Exception as error:
            failed = pb_utils.TritonError("PyTorch execute failure: {}".format(error))
            return [pb_utils.InferenceResponse(error=failed) for _ in requests]
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor.from_dlpack(name, part[n].contiguous()) for name, part in parts.items()]
            )
            for n in range(len(requests))
        ]

    def _placed(self, tensor: Any) -> Any:
        return tensor if self._device is None else tensor.to(self._device)

    def _named(self, result: Any, asked: Any) -> Arrays:
        """What ``forward`` returned, by the names of the configuration. Raises ValueError."""
        found: Arrays = {}
        for entry in (*self._config["output"], *self._states):
            if entry["name"] in asked or entry["name"] in self._kept:
                tensor = self._picked(result, entry["name"])
                self._check_result(entry, tensor)
                found[entry["name"]] = self._torch.atleast_1d(tensor.detach().cpu())
        return found

    def _picked(self, result: Any, name: str) -> Any:
        if isinstance(result, dict):
            if name not in result:
                raise ValueError("the model returns no '{}', but {}".format(name, ", ".join(map(str, result))))
            return result[name]
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if self._outputs[name] >= len(results):
            text = "output '{}' is number {}, but the model returns {}"
            raise ValueError(text.format(name, self._outputs[name], len(results)))
        return results[self._outputs[name]]

    def _check_result(self, entry: Dict[str, Any], tensor: Any) -> None:
        expected = _DATA_TYPES[entry["data_type"]]
        if not isinstance(tensor, self._torch.Tensor):
            raise ValueError("output '{}' must be a tensor, not {}".format(entry["name"], type(tensor).__name__))
        given = str(tensor.dtype)[len("torch.") :]
        if given != expected:
            shown = {value: key for key, value in _DATA_TYPES.items()}.get(given, given)
            text = "unexpected datatype {} for inference output '{}', expecting {}"
            raise ValueError(text.format(shown, entry["name"], entry["data_type"]))

    # --- what the configuration says ------------------------------------------------------------------------------

    def _parameter(self, key: str) -> str:
        return str(self._config.get("parameters", {}).get(key, {}).get("string_value", ""))

    def _chosen_device(self, kind: str, device: str) -> Optional[Any]:
        """None leaves to the module where it runs."""
        if kind == "MODEL":
            return None
        if kind == "GPU" and not self._torch.cuda.is_available():
            pb_utils.Logger.log_warn("model '{}' runs on the CPU: PyTorch sees no GPU".format(self._config["name"]))
        on_gpu = kind == "GPU" and self._torch.cuda.is_available()
        return self._torch.device("cuda:" + device if on_gpu else "cpu")

    def _set_threads(self) -> None:
        for key, set_threads in (
            ("INTRA_OP_THREAD_COUNT", self._torch.set_num_threads),
            ("INTER_OP_THREAD_COUNT", self._torch.set_num_interop_threads),
        ):
            text = self._parameter(key)
            if text and not text.isdecimal():
                raise ValueError("parameter '{}' must be an integer, not '{}'".format(key, text))
            if int(text or 0):
                set_threads(int(text))

    def _check_tensors(self) -> None:
        for kind in ("input", "output"):
            for entry in self._config[kind]:
                if entry["data_type"] not in _DATA_TYPES:
                    text = "the pytorch backend has no {} for {} '{}' of model '{}'"
                    raise ValueError(text.format(entry["data_type"], kind, entry["name"], self._config["name"]))

    def _mode(self) -> Any:
        inference = self._parameter("INFERENCE_MODE").lower() != "false"
        return self._torch.inference_mode() if inference else self._torch.no_grad()

    def _optimization(self) -> Any:
        """PyTorch asks for it in the thread that runs the module."""
        if self._parameter("DISABLE_OPTIMIZED_EXECUTION").lower() == "true":
            return self._torch.jit.optimized_execution(False)
        return contextlib.nullcontext()


def _torch(model: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise LoadError(
            "model '{}' needs the Python package torch, which the interpreter of its backend lacks: {}".format(
                model, error
            )
        ) from None
    return torch


def _load(config: Dict[str, Any], device: Optional[Any]) -> Any:
    """Raises LoadError."""
    if TYPE_CHECKING:
        from .torch_module import load
    else:
        from torch_module import load

    path = os.path.join(pb_utils.get_model_dir(), config.get("default_model_filename") or "model.pt")
    if not os.path.exists(path):
        raise LoadError("unable to find '{}' for model '{}'".format(path, config["name"]), errors.ErrorKind.UNAVAILABLE)
    try:
        return load(path, device)
    except Exception as error:  # of torch, zipfile or json
        raise LoadError("failed to load model '{}': {}".format(config["name"], error)) from None
