"""``pb_utils.InferenceResponse``: the outputs or the error of one request."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .arguments import incompatible, list_argument
from .parameters import checked_parameters
from .shared import messages
from .tensor import Tensor
from .triton_error import ErrorCode, TritonError, TritonModelException

_NONE: Dict[str, messages.ParameterValue] = {}
_OF_ERROR: Dict[str, messages.ParameterValue] = {}  # a received error's, which are no JSON


class InferenceResponse:
    """With an error, the outputs are ignored."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: Optional[TritonError] = None,
        parameters: Optional[Mapping[str, Any]] = None,
    ) -> None:
        given: Any = output_tensors
        tensors: List[Tensor] = given[:] if type(given) is list else list_argument("__init__", given)
        for tensor in tensors:
            if type(tensor) is not Tensor:
                _refuse(tensor)
        if error is not None and not isinstance(error, TritonError):
            raise incompatible("__init__", "InferenceResponse(error: TritonError)", error)
        self._tensors = tensors
        self._error = error
        self._parameters = _NONE if parameters is None else checked_parameters(parameters)

    def output_tensors(self) -> List[Tensor]:
        return self._tensors[:]

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> Optional[TritonError]:
        return self._error

    def parameters(self) -> str:
        """JSON text; "" for the error of a call to another model."""
        return "" if self._parameters is _OF_ERROR else json.dumps(self._parameters)


def receive(
    tensors: List[Tensor], error: Optional[Tuple[int, str]], parameters: Dict[str, messages.ParameterValue]
) -> InferenceResponse:
    """What another model has answered."""
    response = InferenceResponse.__new__(InferenceResponse)
    response._tensors = tensors
    response._error = None if error is None else TritonError(error[1], _code(error[0]))
    response._parameters = parameters if error is None else _OF_ERROR
    return response


def _code(kind: int) -> ErrorCode:
    try:
        return ErrorCode(kind)
    except ValueError:
        return ErrorCode.UNKNOWN


def _refuse(tensor: object) -> None:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    if not isinstance(tensor, Tensor):
        raise incompatible("__init__", "InferenceResponse(output_tensors: List[Tensor])", tensor)
