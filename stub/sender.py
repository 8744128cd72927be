"""``pb_utils.InferenceResponseSender``: answers a request from inside ``execute`` instead of by the returned list.

Each request of a batch has at most one sender; all share the batch's Delivery, closed when ``execute`` has returned.
A later capability (decoupled models, sending from threads afterwards) replaces the Delivery, not the sender.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, Callable, List, Optional

from .arguments import incompatible, int_argument
from .response import InferenceResponse
from .shared import messages
from .triton_error import TritonModelException

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
MORE_THAN_ONE = "Unable to send response. Non-decoupled model cannot send more than one response."

Answer = Callable[[messages.Request, InferenceResponse], messages.Response]


class Delivery:
    """Turns responses into messages while its batch is being executed. Threads of the model may send at once."""

    __slots__ = ("answer", "lock", "open")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.lock = Lock()
        self.open = True

    def close(self) -> None:
        """From here on every ``send`` raises; waits for one in progress."""
        with self.lock:
            self.open = False


class InferenceResponseSender:
    """Accepts one response, then or with it the final flag."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_delivery", "_final", "_request", "responses")

    def __init__(self, request: Optional[messages.Request], delivery: Optional[Delivery]) -> None:
        self._request = request
        self._delivery = delivery
        self._final = False
        self.responses: List[messages.Response] = []

    def send(self, response: Optional[InferenceResponse] = None, flags: int = 0) -> None:
        """Takes the response's tensors as they are now. Raises TritonModelException."""
        if response is not None and not isinstance(response, InferenceResponse):
            raise incompatible("send", "send(response: InferenceResponse = None, flags: int = 0)", response, flags)
        final = _is_final(flags)
        if response is None and not final:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if self._delivery is None or self._request is None:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        with self._delivery.lock:
            self._check_order(response)
            if response is not None:
                self.responses.append(self._delivery.answer(self._request, response))
            self._final = final

    def _check_order(self, response: Optional[InferenceResponse]) -> None:
        if response is not None and self.responses:
            raise TritonModelException(MORE_THAN_ONE)
        if response is None and not self.responses:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )
        if self._final or self._delivery is None or not self._delivery.open:
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def is_cancelled(self) -> bool:
        """False for now: cancellation is not passed on to models yet."""
        return False


def _is_final(flags: Any) -> bool:
    number = int_argument("send", flags, 0, (1 << 32) - 1)
    if number not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
        raise TritonModelException("Unable to send response. Unsupported flag provided.")
    return number == TRITONSERVER_RESPONSE_COMPLETE_FINAL
