"""Instances that a version which serves has no more use for: they end what they hold, finalize, and are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.events import Action
from broker.instance import Instance, InstanceState
from broker.model import ModelVersion, VersionState
from broker.processes import end_process
from broker.settings import BrokerSettings


class Leaving:
    """Invariant: a READY version with instances in ``leaving`` is in here, or when its update is over."""

    def __init__(self, settings: BrokerSettings, lends: Callable[[Iterable[Instance]], bool]) -> None:
        """``lends`` tells whether other models still look at outputs of the instances."""
        self._settings = settings
        self._lends = lends
        self._versions: dict[ModelVersion, None] = {}  # an ordered set
        self._stays_until: dict[Instance, int] = {}  # of those that only their readers keep

    def __contains__(self, version: ModelVersion) -> bool:
        return version in self._versions

    def __bool__(self) -> bool:
        return bool(self._versions)

    def add(self, version: ModelVersion) -> None:
        if version.leaving:
            self._versions[version] = None

    def leave(self, now: int) -> list[Action]:
        """Whatever can go does. Of a version that goes itself, this is its own affair."""
        actions: list[Action] = []
        for version in list(self._versions):
            if version.state is VersionState.READY:
                for instance in version.leaving:
                    if not self._must_stay(version, instance, now):
                        actions += end_process(instance, finish=True)
                version.leaving[:] = [one for one in version.leaving if one.state is not InstanceState.GONE]
            if version.state is not VersionState.READY or not version.leaving:
                self._forget(version)
        return actions

    def _forget(self, version: ModelVersion) -> None:
        del self._versions[version]
        for instance in version.leaving:
            self._stays_until.pop(instance, None)

    def _must_stay(self, version: ModelVersion, instance: Instance, now: int) -> bool:
        """An answer that another model has not mapped yet would be lost with its process; one that it keeps is not."""
        if instance.outstanding or instance.open or has_sequences(version, instance):
            return True
        if instance.state is InstanceState.READY and self._lends([instance]):
            return now < self._stays_until.setdefault(instance, now + self._settings.patience_ns)
        self._stays_until.pop(instance, None)
        return False

    @staticmethod
    def is_awaited(version: ModelVersion) -> bool:
        """Whether an instance is about to go; how long its sequences last nobody knows."""
        return any(not has_sequences(version, one) or one.outstanding for one in version.leaving)

    def next_deadline(self) -> int | None:
        return min(self._stays_until.values(), default=None)


def has_sequences(version: ModelVersion, instance: Instance) -> bool:
    """Whose requests no other instance may take."""
    return version.sequences is not None and version.sequences.holds(instance)
