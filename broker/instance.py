"""The life of one model instance, across the processes that serve it one after the other.

    STARTING --hello--> LOADING --ready--> READY --died--> BACKOFF --retry--> STARTING
        |                  |                 |                |
        +------died--------+--> BACKOFF      +--finish--> FINISHING --died--> GONE

An instance is one Instance for the life of its model version; each of its processes has a key of its own, so a late
message of a dead process is never taken for one of its successor. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from broker.model_config import InstanceSpec
from broker.queue import Pending, ReplySink, Timing
from broker.settings import BrokerSettings
from protocol.errors import InternalError, ServingError, Unavailable
from protocol.messages import Executed


class InstanceState(Enum):
    STARTING = "starting"  # a process was asked for; it has not said Hello
    LOADING = "loading"  # Load was sent
    READY = "ready"
    BACKOFF = "backoff"  # its process died; the next one starts at retry_at
    FINISHING = "finishing"  # Finish was sent, or its process is being killed for good
    GONE = "gone"


class InstanceEvent(Enum):
    HELLO = "hello"
    READY = "ready"
    DIED = "died"
    RETRY = "retry"
    FINISH = "finish"


_S, _E = InstanceState, InstanceEvent

# What is not in the table is a fault of the peer or of ours, and raises.
TABLE: dict[tuple[InstanceState, InstanceEvent], InstanceState] = {
    (_S.STARTING, _E.HELLO): _S.LOADING,
    (_S.STARTING, _E.DIED): _S.BACKOFF,
    (_S.STARTING, _E.FINISH): _S.FINISHING,
    (_S.LOADING, _E.READY): _S.READY,
    (_S.LOADING, _E.DIED): _S.BACKOFF,
    (_S.LOADING, _E.FINISH): _S.FINISHING,
    (_S.READY, _E.DIED): _S.BACKOFF,
    (_S.READY, _E.FINISH): _S.FINISHING,
    (_S.BACKOFF, _E.RETRY): _S.STARTING,
    (_S.BACKOFF, _E.FINISH): _S.GONE,
    (_S.FINISHING, _E.DIED): _S.GONE,
}


LOCAL = ""  # the host of the server itself

_SHORT_NS = _LEAD_NS = 1_000_000


class IllegalTransition(Exception):
    """An event that the state does not know: the peer broke the protocol, or we did."""


class Dispatched(Struct, eq=False):
    """A batch that an instance holds. ``ended`` are those of its requests that a response sender has answered before
    ``execute`` returned, and when; they count once their times are known."""

    id: int
    requests: list[Pending]
    sent_ns: int
    places: int = 0  # of the batch, where there are more than requests (null requests of sequences)
    ended: list[tuple[Pending, int]] = []

    @property
    def batch_size(self) -> int:
        return self.places or sum([pending.batch_size for pending in self.requests])

    def unanswered(self) -> list[Pending]:
        return [pending for pending in self.requests if not pending.answered]


class Open(NamedTuple):
    """A request whose ``execute`` has returned without a final response."""

    pending: Pending
    batch: int
    timing: Timing


class Instance:
    """``outstanding`` is what it has still to execute, in the order sent, ``open`` what it has executed and still to
    answer; only a READY or FINISHING instance holds anything."""

    __slots__ = (
        "answered",
        "asks_ready",
        "barred",
        "began_ns",
        "cycle_ns",
        "deaths",
        "execute_ns",
        "hopeless",
        "host",
        "incarnation",
        "index",
        "key",
        "open",
        "outstanding",
        "ready_since",
        "released",
        "retained",
        "retry_at",
        "shared",
        "sink_of",
        "spec",
        "state",
    )

    def __init__(self, spec: InstanceSpec, index: int, host: str = LOCAL) -> None:
        self.spec = spec
        self.host = host  # the stub host that its processes run on
        self.index = index  # unique for the broker
        self.incarnation = 0
        self.key = f"{index}.0"  # the ZeroMQ routing id of its present process
        self.state = InstanceState.STARTING
        self.outstanding: deque[Dispatched] = deque()
        self.open: dict[int, Open] = {}
        self.retained: dict[int, Pending] = {}  # answered, but the model still looks at the inputs
        self.released: list[int] = []  # leases of read outputs, to ride on the next Execute
        self.asks_ready = False  # the model has is_ready
        self.barred = False  # the rate limiter does not let it execute now
        self.sink_of: Callable[[int], ReplySink] | None = None  # if another broker has started it: of its requests
        self.shared = False  # it proved that it shares our shared memory
        self.hopeless = False  # its last process did not come up, or the next one has long to wait: until READY
        self.answered = False  # its present process has, at least once
        self.deaths = 0  # in a row
        self.ready_since = 0
        self.retry_at = 0
        self.execute_ns = 0  # estimate of one execution; 0 = none seen
        self.began_ns = 0  # about when it began with the oldest batch that it holds
        self.cycle_ns = 0  # estimate of how long a batch keeps it; 0 = none seen

    def on(self, event: InstanceEvent) -> InstanceState:
        """The new state. Raises IllegalTransition."""
        state = TABLE.get((self.state, event))
        if state is None:
            raise IllegalTransition(f"instance {self.spec.name}: {event.value} while {self.state.value}")
        self.state = state
        if state is InstanceState.STARTING:
            self.incarnation += 1
            self.key = f"{self.index}.{self.incarnation}"
        return state

    def back_off(self, now: int, settings: BrokerSettings) -> None:
        """Sets ``retry_at``: at once after a death in service, later and later while its processes do nothing but die.

        One that has answered proves that the next one can, so bad requests among good ones never slow a model down."""
        came_up = self.ready_since > 0
        if came_up and (self.answered or now - self.ready_since >= settings.healthy_ns):
            self.deaths = 0
        self.deaths += 1
        self.ready_since, self.answered = 0, False
        delay = settings.restart_delay_ns << min(self.deaths - 2, 16) if self.deaths > 1 else 0
        self.retry_at = now + min(delay, settings.restart_delay_max_ns)
        self.hopeless = not came_up or delay > settings.patience_ns

    def take(self, executed: Executed) -> Dispatched:
        """The executed batch: the oldest it holds. Raises IllegalTransition."""
        if not self.outstanding or self.outstanding[0].id != executed.batch:
            raise IllegalTransition(f"instance {self.spec.name} answered batch {executed.batch} out of order")
        self.answered = True
        return self.outstanding.popleft()

    def held(self, request: int) -> Dispatched | Open:
        """Where a request is that it has not finally answered. Raises IllegalTransition."""
        found = self.open.get(request)
        if found is not None:
            return found
        for batch in self.outstanding:
            if any(pending.request.id == request and not pending.answered for pending in batch.requests):
                return batch
        raise IllegalTransition(f"instance {self.spec.name} answered request {request}, which it does not hold")

    def requests_of(self, batch: int) -> tuple[Pending, ...]:
        """What it holds of a batch; of all for 0 (somebody does not know)."""
        waiting = [pending for one in self.outstanding if batch in (0, one.id) for pending in one.unanswered()]
        return (*waiting, *(one.pending for one in self.open.values() if batch in (0, one.batch)))

    def observe(self, execute_ns: int) -> None:
        """Moves the estimate up at once and down slowly: a long execution must not be prefetched behind."""
        estimate = self.execute_ns
        self.execute_ns = execute_ns if execute_ns >= estimate else estimate - (estimate - execute_ns) // 8

    def freed(self, ended_ns: int, now: int) -> None:
        """The oldest batch that it held is over since ``ended_ns``, as its process says: we may notice much later."""
        ended_ns = ended_ns if self.began_ns < ended_ns < now else now
        took_ns = ended_ns - self.began_ns
        self.cycle_ns += (took_ns - self.cycle_ns) // 8 if self.cycle_ns else took_ns
        self.began_ns = ended_ns

    def next_due_ns(self) -> int:
        """When to send what it executes next, so that it comes just in time; 0: not before the last one is over.

        What comes sooner might have become a larger batch. Of batches that are over in less than a millisecond none is
        worth that. The lead is for the message, and for a server that is busy with other things."""
        if len(self.outstanding) != 1 or self.cycle_ns < _SHORT_NS:
            return 0
        return self.began_ns + self.cycle_ns - min(self.cycle_ns // 3, _LEAD_NS)

    def room(self, settings: BrokerSettings) -> int:
        """How many more batches its process may hold if it is the only instance of its model.

        Work goes ahead only as far as it is expected to be done within ``train_ns``: one message then carries many
        short executions, while a slow model never holds a request that could still be cancelled or go elsewhere.
        """
        held = settings.train_ns // self.execute_ns if self.execute_ns else 1
        return max(1, min(held, settings.train_requests)) - len(self.outstanding)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert not (self.outstanding or self.open) or self.state in (_S.READY, _S.FINISHING), self.state
        ids = [batch.id for batch in self.outstanding]
        assert ids == sorted(set(ids)), ids
        assert self.retry_at or self.state is not _S.BACKOFF


def unserved(model: str, dead: Instance) -> ServingError:
    """For a request to a model that has no other instance than such as ``dead``."""
    if dead.spec.passive:
        return Unavailable(f"all instances of model '{model}' are passive: none executes requests")
    return not_healthy(dead.spec.name)


def not_healthy(name: str) -> InternalError:
    """What clients and the repository index are told of an instance whose process has died; Triton's sentence."""
    return InternalError(f"Stub process '{name}' is not healthy.")
