"""pb_utils' look-ups by name: tensors of requests and responses, entries of the parsed model configuration."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional

from .request import InferenceRequest
from .response import InferenceResponse
from .tensor import Tensor


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Optional[Tensor]:
    """None where the request lacks it: so a model detects optional inputs."""
    for tensor in inference_request._inputs:
        if tensor._name == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Optional[Tensor]:
    for tensor in inference_response._tensors:
        if tensor._name == name:
            return tensor
    return None


def get_input_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    return _entry(model_config.get("input", []), name)


def get_output_config_by_name(model_config: Dict[str, Any], name: str) -> Optional[Dict[str, Any]]:
    return _entry(model_config.get("output", []), name)


def using_decoupled_model_transaction_policy(model_config: Dict[str, Any]) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def _entry(entries: Iterable[Dict[str, Any]], name: str) -> Optional[Dict[str, Any]]:
    for entry in entries:
        if entry.get("name") == name:
            return entry
    return None
