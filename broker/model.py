"""One version of one model: its configuration, state, instances and queue."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from broker.batcher import REASONS, Batching, batching, queue
from broker.ensemble import Plan
from broker.instance import Instance, InstanceState, unserved
from broker.model_config import ModelConfig, Scheduler, without_instances
from broker.policy_queue import PolicyQueue
from broker.queue import RequestQueue
from broker.response_order import ResponseOrder
from broker.sequence_rules import sequence_rules
from broker.sequences import Sequences
from broker.settings import DelayScheduler
from broker.step_slots import StepSlots
from metrics.recorder import ModelRecorder
from protocol.errors import ServingError, Unavailable
from protocol.interpreters import Interpreter
from protocol.messages import Request
from protocol.services import Environment, Given
from protocol.signature import Signature
from protocol.validation import Checker


def files_of(stamp: str) -> str:
    """VersionSource.files of VersionSource.stamp."""
    return stamp.rpartition(" ")[0]


class VersionState(Enum):
    """As the repository index spells them."""

    LOADING = "LOADING"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    UNLOADING = "UNLOADING"


UNLOADED = "unloaded"  # the reason of a version that is UNAVAILABLE on purpose

OutputLabels = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class VersionSource:
    """Where a model version comes from."""

    model: str
    version: int
    directory: str  # <repository>/<model>
    config: ModelConfig
    labels: OutputLabels = field(default_factory=dict)  # by output, from its label file
    refusal: ServingError | None = None  # why it cannot be loaded, if that is known already
    requirements: str = ""  # path of the requirements.txt beside its config.pbtxt, if there is one
    fingerprint: str = ""  # of all files of the model; another one when any has changed
    files: str = ""  # the same of those that its processes may have read
    private_directory: str = ""  # was made for this load and goes with it
    given_config: str | None = None  # JSON that a request has given in place of its config.pbtxt

    @property
    def stamp(self) -> str:
        """Another one if an instance of it would be another: its files, or its configuration as it was read."""
        config = without_instances(self.config.message).SerializeToString(deterministic=True)
        return f"{self.files} {hashlib.blake2b(config, digest_size=16).hexdigest()}"

    @property
    def given(self) -> Given | None:
        if self.given_config is None and not self.private_directory:
            return None
        return Given(self.given_config, bool(self.private_directory))

    @property
    def namespace(self) -> str:
        """The repository it is from, if models are told apart by that; ``model`` begins with it then."""
        return self.model.removesuffix(self.config.name).removesuffix("::")

    @property
    def version_directory(self) -> str:
        return f"{self.directory}/{self.version}"

    @property
    def model_file(self) -> str:
        return f"{self.version_directory}/{self.config.default_model_filename}"


class InstanceUpdate:
    """What a version that serves is to become, though nothing but its instances is to change."""

    __slots__ = ("config", "error", "generation", "is_up", "source", "surplus")

    def __init__(self, source: VersionSource, generation: Generation) -> None:
        self.source = source
        self.generation = generation  # that the version is to be part of
        self.config: ModelConfig | None = None  # complete; None until the update has begun
        self.surplus: list[Instance] = []  # go when the new ones are up
        self.is_up = False
        self.error: ServingError | None = None  # why it cannot be; what has served goes on as it was


class ModelVersion:
    """``signature``, ``recorder`` and instances exist from the time its configuration is complete.

    ``instances`` are those that do its work. Those of an update that is under way stand in ``joining`` until all of
    them are up, those that are superfluous in ``leaving`` until they are gone, and those of a stub host that has come
    later in ``arriving``, each until it is up."""

    __slots__ = (
        "_batching",
        "_checker",
        "accepts_until",
        "arriving",
        "cached",
        "config",
        "configuring",
        "environment",
        "expected",
        "flows",
        "generation",
        "held_back",
        "instances",
        "interpreter",
        "is_up",
        "joining",
        "leaving",
        "load_started_ns",
        "may_lead",
        "order",
        "plan",
        "queue",
        "reason",
        "recorder",
        "replaced",
        "sequences",
        "signature",
        "source",
        "state",
        "stays_until",
        "step_slots",
        "taken",
        "tries",
        "update",
    )

    def __init__(self, source: VersionSource, generation: Generation, now: int) -> None:
        self.source = source
        self.generation = generation
        self.config = source.config
        self.state = VersionState.LOADING
        self.reason = ""
        self.configuring: str | None = None  # key of the process that runs auto_complete_config
        self.instances: list[Instance] = []
        self.joining: list[Instance] = []
        self.arriving: list[Instance] = []
        self.leaving: list[Instance] = []
        self.update: InstanceUpdate | None = None
        self.interpreter: Interpreter | None = None  # that all its processes run in; None: the server's own
        self.environment: Environment | None = None  # what each stub host makes its interpreter from
        self.queue: RequestQueue | PolicyQueue = RequestQueue()
        self.order: ResponseOrder | None = None
        self.may_lead = False  # a batch may be closed before an instance is free
        self.held_back = 0  # until so many wait, none is given to an instance; for tests that need exact batches
        self.plan: Plan | None = None  # of an ensemble, which has no instances
        self.step_slots: StepSlots | None = None  # of an ensemble that has had a request
        # What a step of an ensemble gave it last, if all lay in shared memory, and the shapes of that for the model.
        self.taken: tuple[list[object], list[tuple[int, ...]]] = ([], [])
        self.cached = False  # its responses are
        self.flows = 0  # requests that run through it, of an ensemble, or that the cache works for
        self.expected = 0  # requests to ensembles that may still come to it
        self.signature: Signature | None = None
        self.recorder = ModelRecorder(source.config.name, source.version, source.config.metric_tags, source.namespace)
        self.load_started_ns = now
        self.tries = 0  # to load it again, after it has failed
        self.is_up = False  # all its instances have come up; it serves once its whole generation is
        self.accepts_until = 0  # of one that has been replaced: a gateway may have found it before
        self.stays_until = 0  # of one that drains: callers still look at its outputs
        self.sequences: Sequences | None = None  # in place of the queue, with sequence batching
        self.replaced = False  # another generation serves; sequences that run here may go on
        self._checker: Checker | None = None
        self._batching: Batching | None = None

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

    def schedule(self, delay: DelayScheduler) -> None:
        """Its configuration is complete."""
        if self.config.scheduler is Scheduler.DYNAMIC:
            self.queue = queue(self.config)
            self.held_back = delay.requests
            self.may_lead = not (self.queue.limited or self.queue.timed)
            self.recorder.closed = dict.fromkeys(REASONS, 0)
            if self.config.message.dynamic_batching.preserve_ordering:
                self.order = ResponseOrder()
        elif self.config.scheduler is Scheduler.SEQUENCE:
            self.sequences = Sequences(sequence_rules(self.config), self.instances, delay, self.leaving)
            if self.config.message.sequence_batching.oldest.preserve_ordering:
                self.order = ResponseOrder()

    def batch_size(self, request: Request) -> int:
        """The inferences that a (checked) request counts for; a client's own batch may be empty."""
        return request.inputs[0].shape[0] or 1 if self.config.max_batch_size > 0 and request.inputs else 1

    def healthy(self) -> bool:
        """Every instance has a living, initialised process, and there is one."""
        return bool(self.instances) and all(instance.state is InstanceState.READY for instance in self.instances)

    def unserved(self) -> ServingError | None:
        """The error for requests, if no instance serves or is about to: waiting would be in vain."""
        for one in self.instances:
            if not one.hopeless and not one.spec.passive:
                return None
        there = self.instances + self.arriving
        if any(not one.hopeless and not one.spec.passive for one in self.arriving):
            return None
        dead = [one for one in there if not one.spec.passive] or there
        return unserved(self.name, dead[0]) if dead else no_host(self.name)

    def every_instance(self) -> list[Instance]:
        return [*self.instances, *self.joining, *self.arriving, *self.leaving]

    def in_flight(self) -> int:
        """Requests that are not answered finally."""
        instances = self.every_instance()
        held = sum(len(batch.unanswered()) for instance in instances for batch in instance.outstanding)
        return held + sum(len(instance.open) for instance in instances) + self.waiting() + self.flows

    def waiting(self) -> int:
        """Requests that no instance has yet."""
        return len(self.queue) if self.sequences is None else len(self.sequences)

    def gone(self) -> bool:
        gone = all(one.state is InstanceState.GONE for one in self.every_instance())
        return gone and self.configuring is None and not self.flows

    def check(self) -> None:
        self.queue.check()
        if self.order is not None:
            self.order.check()
        if self.sequences is not None:
            self.sequences.check()
        for instance in self.every_instance():
            instance.check()
        assert not self.joining or self.update is not None
        assert self.state is not VersionState.READY or self.signature is not None


def no_host(model: str) -> Unavailable:
    """For a request to a model whose last stub host has gone."""
    return Unavailable(f"no stub host runs model '{model}' now")


class Generation:
    """The versions of one model that are loaded together: they serve together or not at all.

    ``kept`` are those that serve already, in the generation before, and stay with an update of their instances. Of a
    ``quiet`` one the log has said already why it fails."""

    __slots__ = ("first", "kept", "quiet", "versions")

    def __init__(self, sources: Sequence[VersionSource], now: int, kept: Sequence[ModelVersion] = ()) -> None:
        self.first = sources[0]
        self.quiet = False
        self.kept = list(kept)
        stays = {one.version: one for one in kept}
        for source in sources:
            if source.version in stays:
                stays[source.version].update = InstanceUpdate(source, self)
        self.versions = [ModelVersion(source, self, now) for source in sources if source.version not in stays]

    @property
    def model(self) -> str:
        return self.first.model

    @property
    def fingerprint(self) -> str:
        return self.first.fingerprint

    @property
    def private_directory(self) -> str:
        return self.first.private_directory

    def settled(self) -> bool:
        """Each version is up or has failed."""
        updates = [one.update for one in self.kept if one.update is not None]
        return all(one.is_up or one.state is not VersionState.LOADING for one in self.versions) and all(
            update.is_up or update.error is not None for update in updates
        )

    def take_kept(self) -> list[ModelVersion]:
        """They are versions of it like the others now."""
        kept, self.kept = self.kept, []
        self.versions = sorted([*self.versions, *kept], key=lambda one: one.version)
        return kept

    def came_up(self) -> bool:
        return all(one.is_up and one.state is VersionState.LOADING for one in self.versions) and all(
            one.update is not None and one.update.is_up for one in self.kept
        )

    def serves(self) -> bool:
        return all(one.state is VersionState.READY for one in self.versions)
