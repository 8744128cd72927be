"""A request that an instance has received, until its final response.

The model has it in two shapes, the InferenceRequest and its response sender; both hold this, and nothing of ours does
once ``execute`` has returned: when both have gone without a final response, nobody can send it any more.

    decoupled:  any number of responses, the last of them or a flag alone is final
    default:    one response, final as it is; the flag may come with it or after it
"""

from __future__ import annotations

import contextlib
from threading import Lock
from typing import List, Optional

from .delivery import Delivery, Roots, failed, no_more
from .implicit_state import SlotState
from .response import InferenceResponse
from .shared import messages
from .triton_error import TritonModelException

MORE_THAN_ONE = "Unable to send response. Non-decoupled model cannot send more than one response."
_NOT_BEFORE_RESPONSE = (
    "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
)
_CLOSED = "Unable to send response. Response sender has been closed."


class OpenRequest:
    """Invariant: exactly one final response leaves, unless the request is to be executed again.

    ``ended``: it has left, or is in the hands of the session. ``closed``: the model may send nothing more."""

    __slots__ = (
        "_closed",
        "_delivery",
        "_ended",
        "_is_cancelled",
        "_lock",
        "_responded",
        "message",
        "release",
        "roots",
        "state",
    )

    def __init__(self, message: messages.Request, delivery: Delivery, null: bool = False) -> None:
        """``null``: nobody has sent it, and what answers it goes nowhere."""
        self.message = message
        self.roots: Roots = []
        self.state: Optional[SlotState] = None  # the implicit state of its sequence
        self.release = 0  # what the model has said by set_release_flags
        self._delivery = delivery
        self._lock = Lock()
        self._responded = self._closed = self._is_cancelled = False
        self._ended = null

    @property
    def is_null(self) -> bool:
        return not self.message.id

    def respond(self, response: Optional[InferenceResponse], final: bool) -> None:
        """Sends, from any thread, once not too many responses are ahead of the client: one of the two may be missing.
        Raises TritonModelException."""
        if self._delivery.decoupled and response is not None:
            self._wait_for_room()
        with self._lock:
            self._check(response)
            if not self._ended:
                ends = final or not self._delivery.decoupled
                frames: List[bytes] = []
                message = no_more(self.message.id)
                if response is not None:
                    message = self._delivery.convert(self.message, response, ends, frames)
                    if self.state is not None and message.error is None:
                        self.state.update(response)
                self._ended = ends
                self._send(message, frames)
            self._responded = True
            self._closed = final

    def _wait_for_room(self) -> None:
        try:
            self._delivery.pacing.wait(self.message.id)
        except TritonModelException as error:
            self.send_failure(str(error))
            raise

    def _send(self, message: messages.Response, frames: List[bytes]) -> None:
        alive = [root() for root in self.roots]  # until it is sent: that the inputs are free comes after it
        self._delivery.send(self._delivery.end(message, self.roots) if message.final else message, frames)
        del alive

    def _check(self, response: Optional[InferenceResponse]) -> None:
        if not self._delivery.decoupled:
            if response is not None and self._responded:
                raise TritonModelException(MORE_THAN_ONE)
            if response is None and not self._responded:
                raise TritonModelException(_NOT_BEFORE_RESPONSE)
        if self._closed:
            raise TritonModelException(_CLOSED)

    def returned(self, response: InferenceResponse, frames: List[bytes]) -> Optional[messages.Response]:
        """The final response, which ``execute`` has returned; None if one was sent before."""
        lock = self._lock
        lock.acquire()  # half the time of ``with``
        try:
            self._closed = True
            if self._ended:
                return None
            self._responded = self._ended = True
        finally:
            lock.release()
        message = self._delivery.convert(self.message, response, True, frames)
        if self.state is not None and message.error is None:
            self.state.update(response)
        return message

    def fail(self, text: str) -> Optional[messages.Response]:
        """The final response, an error; None if there was one before."""
        with self._lock:
            self._closed = True
            if self._ended:
                return None
            self._ended = True
        return failed(self.message.id, text)

    def send_failure(self, text: str) -> bool:
        """The same, sent at once; whether there was anything to send."""
        failure = self.fail(text)
        if failure is not None:
            with contextlib.suppress(TritonModelException):  # it is too late
                self._send(failure, [])
        return failure is not None

    def remain(self) -> None:
        """``execute`` has returned."""
        if not self._ended:
            self._delivery.open.add(self.message.id)
            if self._ended:  # a thread has just been quicker
                self._delivery.open.discard(self.message.id)

    def reschedule(self) -> bool:
        """To be answered when it comes again; False if it has been already."""
        with self._lock:
            self._closed = True
        if not self._ended:
            self._delivery.open.discard(self.message.id)
        return not self._ended

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more. It stays so."""
        if not self._is_cancelled and not self._ended:
            self._is_cancelled = self._delivery.is_cancelled(self.message.id)
        return self._is_cancelled

    def __del__(self) -> None:
        if not (self._ended or self._closed):
            self._delivery.abandon(self.message.id, self.roots)
