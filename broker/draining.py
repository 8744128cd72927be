"""Model versions on their way out: those that were unloaded or replaced, and those that never came to serve.

UNLOADING --nothing in flight, outputs read--> its processes finalize --all gone--> UNAVAILABLE "unloaded"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.events import Action, Discard, Say
from broker.instance import Instance
from broker.model import UNLOADED, ModelVersion, VersionState
from broker.processes import end_processes
from broker.registry import Registry
from broker.settings import BrokerSettings
from metrics.recorder import Recorder


class Draining:
    """Invariant: a version that is UNLOADING is in ``_draining`` or ``_ending``; the latter has those that failed, too,
    for as long as they have processes."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        recorder: Recorder,
        lends: Callable[[Iterable[Instance]], bool],
    ) -> None:
        """``lends`` tells whether other models still look at outputs of the instances."""
        self._settings = settings
        self._registry = registry
        self._recorder = recorder
        self._lends = lends
        self._draining: dict[ModelVersion, None] = {}  # ordered sets
        self._ending: dict[ModelVersion, None] = {}

    def __contains__(self, version: ModelVersion) -> bool:
        return version in self._draining or version in self._ending

    def __bool__(self) -> bool:
        return bool(self._draining or self._ending)

    def drain(self, version: ModelVersion) -> None:
        """It takes no new requests, answers those it has, then goes."""
        version.state, version.reason = VersionState.UNLOADING, ""
        self._recorder.remove(version.config.name, version.version, version.source.namespace)
        self._draining[version] = None

    def end(self, versions: Iterable[ModelVersion]) -> None:
        """They hold no request, and their processes have been told, or are about to be."""
        self._ending.update(dict.fromkeys(versions))

    def leave(self, now: int) -> list[Action]:
        """Whatever can go a step further does."""
        actions: list[Action] = []
        for version in [one for one in self._draining if not self._must_stay(one, now)]:
            del self._draining[version]
            self._ending[version] = None
            actions += end_processes(version, finish=True)
        for version in [one for one in self._ending if one.gone()]:
            actions += self._gone(version)
        return actions

    def _must_stay(self, version: ModelVersion, now: int) -> bool:
        """An answer that another model has not mapped yet would be lost with its process; one that it keeps is not."""
        if now < version.accepts_until:
            return True
        version.accepts_until = 0
        if version.in_flight() or version.expected:
            return True
        if version.replaced and version.sequences is not None and version.sequences.live:
            return True
        if not self._lends(version.every_instance()):
            return False
        version.stays_until = version.stays_until or now + self._settings.patience_ns
        return now < version.stays_until

    def _gone(self, version: ModelVersion) -> list[Action]:
        actions: list[Action] = []
        if version.state is VersionState.UNLOADING:
            version.state, version.reason = VersionState.UNAVAILABLE, UNLOADED
            actions.append(Say("info", f"successfully unloaded '{version.name}' version {version.version}", {}))
        del self._ending[version]
        version.instances.clear()
        version.leaving.clear()
        self._registry.drop(version)
        generation = version.generation
        if generation.private_directory and not any(one in self for one in generation.versions):
            actions.append(Discard(generation.private_directory))
        return actions

    def next_deadline(self) -> int | None:
        """Of those that only the clock keeps from leaving."""
        return min(filter(None, (one.accepts_until or one.stays_until for one in self._draining)), default=None)
