"""One version of one model: its configuration, state, instances and queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from broker.instance import Instance, InstanceState
from broker.model_config import ModelConfig
from broker.queue import RequestQueue
from metrics.recorder import ModelRecorder
from protocol.errors import ServingError
from protocol.signature import Signature


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

    @property
    def version_directory(self) -> str:
        return f"{self.directory}/{self.version}"

    @property
    def model_file(self) -> str:
        return f"{self.version_directory}/{self.config.default_model_filename}"


class ModelVersion:
    """``signature``, ``recorder`` and instances exist from the time its configuration is complete."""

    __slots__ = (
        "config",
        "configuring",
        "instances",
        "load_started_ns",
        "queue",
        "reason",
        "recorder",
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
        self.queue = RequestQueue()
        self.signature: Signature | None = None
        self.recorder = ModelRecorder(source.model, source.version, source.config.metric_tags)
        self.load_started_ns = now

    @property
    def name(self) -> str:
        return self.source.model

    @property
    def version(self) -> int:
        return self.source.version

    def healthy(self) -> bool:
        """Every instance has a living, initialised process."""
        return all(instance.state is InstanceState.READY for instance in self.instances)

    def dead_instance(self) -> Instance | None:
        """An instance to name in the error, if none serves or is about to: waiting would be in vain."""
        return self.instances[0] if self.instances and all(one.hopeless for one in self.instances) else None

    def in_flight(self) -> int:
        held = sum(len(batch.requests) for instance in self.instances for batch in instance.outstanding)
        return held + len(self.queue)

    def gone(self) -> bool:
        return self.configuring is None and all(one.state is InstanceState.GONE for one in self.instances)

    def check(self) -> None:
        self.queue.check()
        for instance in self.instances:
            instance.check()
        assert self.state is not VersionState.READY or self.signature is not None
