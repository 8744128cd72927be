"""All a broker can be told, with its defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.backends import Backend


def _never() -> bool:
    return False


class DelayScheduler(NamedTuple):
    """For tests that need exact batches: none is executed until so many requests wait. Of a model with sequences
    ``backlog`` are those without a slot, which ``requests`` does not count then."""

    requests: int = 0  # TRITONSERVER_DELAY_SCHEDULER
    backlog: int = 0  # TRITONSERVER_BACKLOG_DELAY_SCHEDULER; without ``requests`` it counts for nothing


NO_DELAY = DelayScheduler()


class ResourceLimit(NamedTuple):
    """How much there is of a resource, of each device or of one."""

    name: str  # in lower case
    available: int
    device: int | None = None


@dataclass(frozen=True)
class BrokerSettings:
    """Times are nanoseconds."""

    bus: str  # ZeroMQ endpoint that stubs dial, e.g. "ipc:///run/.../bus"
    shm_directory: str
    auto_complete: bool = True
    strict_readiness: bool = True
    explicit_control: bool = False  # models may be loaded and unloaded at run time
    load_concurrency: int = 4
    response_cache: bool = False  # the server has one
    max_queued_requests: int = 0  # of all models together; 0: any number
    max_unread_bytes: int = 0  # that the responses to one client may be ahead of it; 0: any number
    small_nbytes: int = 0  # tensors of fewer bytes go with the messages of stubs
    rate_limits: tuple[ResourceLimit, ...] | None = None  # None: instances execute whenever they can
    load_retries: int = 0  # of each version
    namespaces: tuple[str, ...] = ()  # those of the repositories, if models of one name are told apart by theirs
    backends: Mapping[str, Backend] = field(default_factory=dict)  # the Python-based ones, by name
    gpus: tuple[int, ...] = ()  # CUDA device ids that models may have
    hosted: bool = False  # instances run on stub hosts that join, not on the server's own
    # Of instances, batches and, below 0, requests of models: beyond any of an earlier broker whose stubs may be alive.
    first_number: int = 0
    train_ns: int = 1_000_000  # how much expected work the only instance of a model may hold
    train_requests: int = 32
    release_delay_ns: int = 100_000_000  # leases ride on the next message, or leave alone after this
    restart_delay_ns: int = 500_000_000  # after the second death in a row; doubles up to restart_delay_max_ns
    restart_delay_max_ns: int = 30_000_000_000
    patience_ns: int = 1_000_000_000  # a request waits for a restart that begins within this, else it is refused
    is_ready_timeout_ns: int = 5_000_000_000  # how long somebody waits for a model's is_ready
    healthy_ns: int = 30_000_000_000  # an instance that served this long has earned an immediate restart
    delay_scheduler: DelayScheduler = NO_DELAY
    explains: Callable[[], bool] = _never  # whether the log wants to know why each batch was closed
