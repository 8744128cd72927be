"""Requests that wait for an instance, first come first served. Pure: no clock, no socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

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


class Timing(Struct):
    """Of the execution that a request was part of; of an ensemble, summed over those of its steps."""

    sent_ns: int  # when it left for the instance, in the clock of ``now``
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0


class Pending(Struct, eq=False):
    """A request from its arrival to its one final response."""

    request: Request
    frames: Frames
    sink: ReplySink | None  # None if it has a caller, or is a step
    batch_size: int  # inferences it counts for; 1 for a model that does not batch
    arrived_ns: int
    caller: Caller | None = None
    whole: Pending | None = None  # the request to an ensemble that it is a step of
    spent: Timing | None = None  # by its steps so far, if it is one to an ensemble
    waits: bool = False  # the execution of another model cannot end before it
    window: int = 0  # responses that it may be ahead of Credit, as a step; 0: any number
    taken_over: bool = False  # from another broker, which alone knew its inputs
    requeued: bool = False  # it was behind a request whose instance died
    cancelled: bool = False  # while it was in the queue
    unwanted: bool = False  # its client has gone while it was with an instance
    holder: int = 0  # index of the instance that holds it
    error: tuple[int, str] | None = None  # the first among its responses
    answered: bool = False  # finally
    responses: int = 0  # so far, of a decoupled model
    responded_ns: int = 0  # when the last of them came; before that, when the request left for its instance


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
