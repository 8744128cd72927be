"""Requests that wait for an instance, first come first served. Pure: no clock, no socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from protocol.messages import Request, Response

Frames = Sequence[memoryview | bytes]


class Sink(Protocol):
    """Where a request's replies go; the gateway's side of the bus."""

    def on_response(self, response: Response, origin: str, frames: Frames) -> None: ...

    def on_inputs_released(self) -> None: ...


class Pending:
    """A request from its arrival to its one final response."""

    __slots__ = ("arrived_ns", "batch_size", "cancelled", "dispatched", "frames", "request", "requeued", "sink")

    def __init__(self, request: Request, frames: Frames, sink: Sink, batch_size: int, arrived_ns: int) -> None:
        self.request = request
        self.frames = frames
        self.sink = sink
        self.batch_size = batch_size  # inferences it counts for; 1 for a model that does not batch
        self.arrived_ns = arrived_ns
        self.requeued = False  # it was behind a request whose instance died
        self.cancelled = False
        self.dispatched = False  # an instance holds it


class RequestQueue:
    """A FIFO that forgets cancelled requests. A cancelled one keeps its place until it is reached."""

    __slots__ = ("_cancelled", "_queue")

    def __init__(self) -> None:
        self._queue: deque[Pending] = deque()
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._queue) - self._cancelled

    def push(self, pending: Pending) -> None:
        self._queue.append(pending)

    def push_front(self, pendings: Sequence[Pending]) -> None:
        """Gives back what was taken, in its order."""
        self._queue.extendleft(reversed(pendings))

    def pop(self) -> Pending | None:
        while self._queue:
            pending = self._queue.popleft()
            if not pending.cancelled:
                return pending
            self._cancelled -= 1
        return None

    def cancel(self, pending: Pending) -> None:
        """The caller knows that ``pending`` is in this queue and not yet cancelled."""
        pending.cancelled = True
        self._cancelled += 1

    def drain(self) -> list[Pending]:
        """Takes everything that still waits."""
        waiting = [pending for pending in self._queue if not pending.cancelled]
        self._queue.clear()
        self._cancelled = 0
        return waiting

    def check(self) -> None:
        assert self._cancelled == sum(pending.cancelled for pending in self._queue)
