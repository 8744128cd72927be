"""One version of one model: its configuration, state, instances and queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from broker.batcher import Batching, batching
from broker.instance import Instance, InstanceState
from broker.model_config import ModelConfig
from broker.queue import RequestQueue
from broker.queue_policy import QueuePolicy, queue_policy
from metrics.recorder import ModelRecorder
from protocol.errors import ServingError
from protocol.interpreters import Interpreter
from protocol.messages import Request
from protocol.signature import Signature
from protocol.validation import Checker


class VersionState(Enum):
    """As the repository index spells them."""

    LOADING = "LOADING"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    UNLOADING = "UNLOADING"


Labels = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class VersionSource:
    """Where a model version comes from."""

    model: str
    version: int
    directory: str  # <repository>/<model>
    config: ModelConfig
    labels: Labels = field(default_factory=dict)  # by output, from its label file
    refusal: ServingError | None = None  # why it cannot be loaded, if that is known already
    requirements: str = ""  # path of the requirements.txt beside its config.pbtxt, if there is one

    @property
    def version_directory(self) -> str:
        return f"{self.directory}/{self.version}"

    @property
    def model_file(self) -> str:
        return f"{self.version_directory}/{self.config.default_model_filename}"


class ModelVersion:
    """``signature``, ``recorder`` and instances exist from the time its configuration is complete."""

    __slots__ = (
        "_batching",
        "_checker",
        "_queue_policy",
        "config",
        "configuring",
        "instances",
        "interpreter",
        "load_started_ns",
        "queue",
        "reason",
        "recorder",
        "sequences",
        "signature",
        "source",
        "state",
    )

    def __init__(self, source: VersionSource, now: int) -> None:
        self.source = source
        self.config = source.config
        self.state = VersionState.LOADING
        self.reason = ""
        self.configuring: str | None = None  # key of the process that runs auto_complete_config
        self.instances: list[Instance] = []
        self.interpreter: Interpreter | None = None  # that all its processes run in; None: the server's own
        self.queue = RequestQueue()
        self.signature: Signature | None = None
        self.recorder = ModelRecorder(source.model, source.version, source.config.metric_tags)
        self.load_started_ns = now
        self.sequences = 0  # of iterative requests, so far
        self._checker: Checker | None = None
        self._batching: Batching | None = None
        self._queue_policy: QueuePolicy | None = None

    @property
    def name(self) -> str:
        return self.source.model

    @property
    def version(self) -> int:
        return self.source.version

    @property
    def checker(self) -> Checker:
        """The checks of a request; of a READY version."""
        if self._checker is None:
            assert self.signature is not None
            self._checker = Checker(self.signature)
        return self._checker

    @property
    def batching(self) -> Batching:
        """Of a READY version with dynamic batching."""
        if self._batching is None:
            self._batching = batching(self.config)
        return self._batching

    @property
    def queue_policy(self) -> QueuePolicy:
        """Of a READY version."""
        if self._queue_policy is None:
            self._queue_policy = queue_policy(self.config)
        return self._queue_policy

    def batch_size(self, request: Request) -> int:
        """The inferences that a (checked) request counts for."""
        return request.inputs[0].shape[0] if self.config.max_batch_size > 0 and request.inputs else 1

    def healthy(self) -> bool:
        """Every instance has a living, initialised process."""
        return all(instance.state is InstanceState.READY for instance in self.instances)

    def dead_instance(self) -> Instance | None:
        """An instance to name in the error, if none serves or is about to: waiting would be in vain."""
        return self.instances[0] if self.instances and all(one.hopeless for one in self.instances) else None

    def in_flight(self) -> int:
        """Requests that are not answered finally."""
        held = sum(len(batch.unanswered()) for instance in self.instances for batch in instance.outstanding)
        return held + sum(len(instance.open) for instance in self.instances) + len(self.queue)

    def gone(self) -> bool:
        return self.configuring is None and all(one.state is InstanceState.GONE for one in self.instances)

    def check(self) -> None:
        self.queue.check()
        for instance in self.instances:
            instance.check()
        assert self.state is not VersionState.READY or self.signature is not None
