"""Requests that wait for an instance, first come first served. Pure: no clock, no socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from broker.queue_policy import ANYTHING, QueuePolicy
from protocol.messages import Request, Response

Frames = Sequence[memoryview | bytes]


class ReplySink(Protocol):
    """Where a request's replies go; the gateway's side of the bus."""

    def on_response(self, response: Response, origin: str, frames: Frames) -> None: ...

    def on_inputs_released(self) -> None: ...


class Caller(NamedTuple):
    """The model that made a request; a gateway's request has a ReplySink instead."""

    key: str  # of the socket that the call came by and its answers go to; "" once the process is dead
    call: int  # its number there
    instance: int  # index of the instance
    shared: bool  # its answers' tensors may lie in shared memory
    waits: bool  # the batch that the call is part of cannot end before it
    parents: tuple[Pending, ...]  # what it was made for: nobody wants it any more if nobody wants any of these


class Pending:
    """A request from its arrival to its one final response."""

    __slots__ = (
        "answered",
        "arrived_ns",
        "batch_size",
        "caller",
        "cancelled",
        "error",
        "frames",
        "holder",
        "request",
        "requeued",
        "responded_ns",
        "responses",
        "sink",
        "taken_over",
        "unwanted",
        "waits",
        "whole",
        "window",
    )

    def __init__(
        self,
        request: Request,
        frames: Frames,
        sink: ReplySink | None,
        batch_size: int,
        arrived_ns: int,
        caller: Caller | None = None,
    ) -> None:
        self.request = request
        self.frames = frames
        self.sink = sink  # None if it has a caller, or is a step
        self.caller = caller
        self.waits = caller is not None and caller.waits  # the execution of another model cannot end before it
        self.taken_over = False  # from another broker, which alone knew its inputs
        self.whole: Pending | None = None  # the request to an ensemble that it is a step of
        self.window = 0  # responses that it may be ahead of Credit, as a step; 0: any number
        self.batch_size = batch_size  # inferences it counts for; 1 for a model that does not batch
        self.arrived_ns = arrived_ns
        self.requeued = False  # it was behind a request whose instance died
        self.cancelled = False  # while it was in the queue
        self.unwanted = False  # its client has gone while it was with an instance
        self.holder = 0  # index of the instance that holds it
        self.error: tuple[int, str] | None = None  # the first among its responses
        self.answered = False  # finally
        self.responses = 0  # so far, of a decoupled model
        self.responded_ns = 0  # when the last of them came; before that, when the request left for its instance


class RequestQueue:
    """A FIFO that forgets cancelled requests. A cancelled one keeps its place until it is reached."""

    __slots__ = ("_cancelled", "_policy", "_queue", "limited", "timed")

    def __init__(self, policy: QueuePolicy = ANYTHING) -> None:
        """Of a ``policy`` that rejects."""
        self._queue: deque[Pending] = deque()
        self._cancelled = 0
        self._policy = policy
        self.limited = policy.max_size > 0  # ``is_full`` may be True
        self.timed = policy.default_timeout_us > 0  # ``timeout_ns`` may be more than 0

    def __len__(self) -> int:
        return len(self._queue) - self._cancelled

    def __iter__(self) -> Iterator[Pending]:
        """Those who wait, in the order of ``pop``."""
        return (pending for pending in self._queue if not pending.cancelled)

    def is_full(self, request: Request) -> bool:
        """Whether there is no room for ``request``."""
        return 0 < self._policy.max_size <= len(self)

    def timeout_ns(self, request: Request) -> int:
        """How long it may wait; 0: for ever."""
        return self._policy.timeout_ns(request)

    def expire(self, pending: Pending) -> bool:
        """The time of one that waits here is up: whether it is to be rejected, and out of the queue then."""
        self.cancel(pending)
        return True

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

    def take(self, count: int) -> list[Pending]:
        """So many ``pop``s; the caller knows that there are as many."""
        taken = [self.pop() for _ in range(count)]
        return [pending for pending in taken if pending is not None]

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
