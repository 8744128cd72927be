"""``pb_utils.InferenceResponseSender``: answers a request at any time, from any thread, instead of by the list that
``execute`` returns."""

from __future__ import annotations

from typing import Any, Optional

from .arguments import incompatible, int_argument
from .open_request import OpenRequest
from .response import InferenceResponse
from .triton_error import TritonModelException

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class InferenceResponseSender:
    """Of a received request; that of a request which the model has made itself only says so."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_open")

    def __init__(self, open_request: Optional[OpenRequest]) -> None:
        self._open = open_request

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Takes the response's tensors as they are now. Raises TritonModelException."""
        if response is not None and not isinstance(response, InferenceResponse):
            raise incompatible("send", "send(response: InferenceResponse = None, flags: int = 0)", response, flags)
        final = _is_final(flags)
        if response is None and not final:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if self._open is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        self._open.respond(response, final)

    def is_cancelled(self) -> bool:
        """Whether the client is gone or no longer wants a response."""
        return self._open is not None and self._open.is_cancelled()


def _is_final(flags: Any) -> bool:
    number = int_argument("send", flags, 0, (1 << 32) - 1)
    if number not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
        raise TritonModelException("Unable to send response. Unsupported flag provided.")
    return number == TRITONSERVER_RESPONSE_COMPLETE_FINAL
