"""How far the responses of a request may be ahead of who reads them: beyond that, ``send`` waits.

A client's request may have so many bytes unread, in shared memory or in frames. That they have been read is told with
other messages, or late; a ``send`` that waits asks for it. A request that is *paced*, a step of an ensemble whose next
step has a limit, may have so many responses that the broker has not credited yet. Nobody waits for a request that is
cancelled.
"""

from __future__ import annotations

import threading
import time
from typing import Callable, Dict, Protocol, Sequence, Set, Tuple

from .closed import Closed
from .shared import messages
from .triton_error import TritonModelException

_LONGEST_S = 300.0  # that a client may read nothing at all


class PacingPort(Protocol):
    """What of the bus is needed here (bus.py)."""

    @property
    def is_ours(self) -> bool: ...
    def send(self, message: messages.ToBroker) -> None: ...
    def wait(self, done: Callable[[], object], timeout_s: float) -> bool: ...


class Pacing:
    """Of all requests of an instance; used by any thread. Invariant: ``_unread`` are the bytes in ``_leases`` by
    request; none is 0."""

    def __init__(self, port: PacingPort, cancelled: Set[int], max_unread: int) -> None:
        """``max_unread`` bytes, 0 is no bound; ``cancelled`` are the requests that nobody waits for."""
        self._port = port
        self._cancelled = cancelled
        self._max_unread = max_unread
        self._lock = threading.Lock()
        self._unread: Dict[int, int] = {}
        self._leases: Dict[int, Tuple[int, int]] = {}  # request and bytes of each
        self._releases = 0  # so far
        self._credit: Dict[int, int] = {}  # of paced requests: how many responses may leave

    def begin(self, paced: Sequence[Tuple[int, int]]) -> None:
        """Requests that are about to be executed and their credit."""
        self._credit.update(paced)

    def add_credit(self, request: int, responses: int) -> None:
        with self._lock:
            if request in self._credit:
                self._credit[request] += responses

    def released(self, leases: Sequence[int]) -> None:
        """Their readers have done with them."""
        with self._lock:
            for lease in leases:
                request, nbytes = self._leases.pop(lease, (0, 0))
                left = self._unread.get(request, 0) - nbytes
                if left > 0:
                    self._unread[request] = left
                elif nbytes:
                    del self._unread[request]
            self._releases += 1

    def wait(self, request: int) -> None:
        """Until a response may leave. Raises TritonModelException if the client does not read, or the model goes."""
        if not self._port.is_ours:
            return
        try:
            if request in self._credit:
                self._wait_for_credit(request)
            elif self._has_too_much(request):
                self._wait_for_reader(request)
        except Closed:
            raise TritonModelException("Unable to send response. The model has been unloaded.") from None

    def _wait_for_credit(self, request: int) -> None:
        def done() -> bool:
            return self._credit.get(request, 1) > 0 or request in self._cancelled

        while not done():
            self._port.send(messages.Starved(messages.STARVED))
            self._port.wait(done, _LONGEST_S)

    def _has_too_much(self, request: int) -> bool:
        return 0 < self._max_unread <= self._unread.get(request, 0)

    def _wait_for_reader(self, request: int) -> None:
        unread = self._unread.get(request, 0)
        deadline = time.monotonic() + _LONGEST_S
        while self._has_too_much(request) and request not in self._cancelled:
            self._wait_for_releases(request, deadline)
            left = self._unread.get(request, 0)
            if left < unread:
                unread, deadline = left, time.monotonic() + _LONGEST_S
            elif time.monotonic() >= deadline:
                raise TritonModelException(
                    "Unable to send response. The client has read none of {} bytes for {:.0f} s.".format(
                        unread, _LONGEST_S
                    )
                )

    def _wait_for_releases(self, request: int, deadline: float) -> None:
        seen = self._releases
        self._port.send(messages.Starved(messages.STARVED))
        self._port.wait(
            lambda: self._releases != seen or request in self._cancelled, max(0.0, deadline - time.monotonic())
        )

    def ended(self, request: int) -> None:
        """Its final response is about to leave."""
        if self._credit:
            self._credit.pop(request, None)

    def is_bounded(self, request: int) -> bool:
        """Whether it counts how much its client has unread: then each of its responses needs a lease."""
        return request > 0 and self._max_unread > 0

    def sends(self, response: messages.Response, nbytes_inline: int = 0) -> None:
        """It is about to leave, with so many bytes in frames."""
        request = response.request
        with self._lock:
            if request in self._credit:
                self._credit[request] -= 1
            if response.lease and self.is_bounded(request):
                nbytes = messages.unread_nbytes(response.outputs, nbytes_inline)
                self._leases[response.lease] = (request, nbytes)
                self._unread[request] = self._unread.get(request, 0) + nbytes
