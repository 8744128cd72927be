"""Which generation of each model serves, how the next one takes its place, and how one goes.

    take_over: LOADING, all of it up -> READY; what it replaces drains; what it keeps has its new instances
    withdraw:  READY -> UNLOADING, and so for every ensemble that needs the model

An ensemble that has gone with one of its models comes back with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from broker.assembly import models_of, only_for, sources_of
from broker.draining import Draining
from broker.events import Action, Say
from broker.instance import Instance
from broker.instance_update import is_enough
from broker.leaving import Leaving
from broker.model import UNLOADED, Generation, ModelVersion, VersionSource, VersionState
from broker.registry import Registry
from broker.settings import BrokerSettings
from broker.signature import signature
from broker.startup import Startup
from metrics.recorder import Recorder
from protocol.errors import ServingError


class Serving:
    """Invariant: all versions of a generation in here are READY, until the server stops."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        recorder: Recorder,
        startup: Startup,
        lends: Callable[[Iterable[Instance]], bool],
        changed: Callable[[str], None],
    ) -> None:
        """``lends`` tells whether other models still look at outputs of the instances; ``changed`` is told of a model
        when the versions that serve are about to be others, or none."""
        self._changed = changed
        self._settings = settings
        self._registry = registry
        self._recorder = recorder
        self._startup = startup
        self._serving: dict[str, Generation] = {}
        self._draining = Draining(settings, registry, recorder, lends)
        self.leaving = Leaving(settings, lends)
        self._lost: dict[str, list[VersionSource]] = {}  # ensembles that went with a model, and come back with it
        self.refused: dict[str, ServingError] = {}  # ensembles whose last load failed, and why
        self._by_name: set[str] = set()  # what somebody has asked for; other models were loaded for an ensemble

    def get(self, model: str) -> Generation | None:
        return self._serving.get(model)

    def name(self, model: str) -> None:
        """Somebody has asked for it by its name."""
        self._by_name.add(model)

    def is_unchanged(self, model: str, sources: list[VersionSource]) -> bool:
        """Whether it serves what would be loaded. A configuration that came with a request stays until the files
        change; files that did until the next load."""
        serving = self._serving.get(model)
        return serving is not None and not serving.private_directory and serving.fingerprint == sources[0].fingerprint

    def kept(self, sources: list[VersionSource]) -> list[ModelVersion]:
        """The versions that need not be loaded anew for these sources: other instances will do."""
        serving = self._serving.get(sources[0].model)
        wanted = {source.version: source for source in sources}
        versions = serving.versions if serving is not None else []
        return [one for one in versions if one.version in wanted and is_enough(one, wanted[one.version])]

    # --- coming -----------------------------------------------------------------------------------------------------

    def take_over(self, generation: Generation, now: int) -> list[Action]:
        model = generation.model
        self._changed(model)
        for row in self._registry.rows(model):
            if row.state is VersionState.READY and row not in generation.kept:
                row.accepts_until = now + self._settings.release_delay_ns
                row.replaced = True
                self._draining.drain(row)
        for version in generation.versions:
            version.state = VersionState.READY
            self._registry.give_row(version)
            self._recorder.add(version.recorder)
        self._changed(model)
        for version in generation.take_kept():
            self._keep(version, generation)
        for version in generation.versions:
            self.leaving.add(version)
        self._serving[model] = generation
        self._lost.pop(model, None)
        self.refused.pop(model, None)
        self.forgive(model)
        return [Say("info", f"successfully loaded '{model}'", {})]

    @staticmethod
    def _keep(version: ModelVersion, generation: Generation) -> None:
        """It serves on, with the instances of its update."""
        update, version.update = version.update, None
        assert update is not None and update.config is not None
        version.generation, version.source, version.config = generation, update.source, update.config
        version.signature = signature(version.config, version.version, version.source.labels)
        for instance in update.surplus:
            version.instances.remove(instance)
        version.instances += version.joining
        version.leaving += update.surplus
        version.joining = []

    def is_settled(self, model: str) -> bool:
        """Whether the instances that an update has made superfluous are gone, if they can."""
        serving = self._serving.get(model)
        return serving is None or not any(map(self.leaving.is_awaited, serving.versions))

    def abandon(self, generation: Generation, now: int) -> list[Action]:
        """One that does not come to serve."""
        self._draining.end(generation.versions)
        actions = self._startup.give_up(generation, now)
        for version in generation.kept:
            self.leaving.add(version)
        return actions

    def forgive(self, model: str) -> None:
        """That a load of it has failed is no complaint any more."""
        self._registry.forget_failure(model)
        for row in self._registry.rows(model):
            if row.state is VersionState.UNAVAILABLE:
                row.reason = UNLOADED

    def ensembles(self) -> Iterator[tuple[str, list[VersionSource]]]:
        """All that serve, and those that wait for a model that has gone."""
        serving = {name: sources_of(one) for name, one in self._serving.items() if models_of(one)}
        yield from {**self._lost, **serving}.items()

    # --- going ------------------------------------------------------------------------------------------------------

    def going(self, model: str, with_dependents: bool) -> list[str]:
        """The model, and with its dependents the models of an ensemble that nobody else needs."""
        return [model, *only_for(model, self._serving, self._by_name)] if with_dependents else [model]

    def unload(self, model: str) -> None:
        self._lost.pop(model, None)
        self._by_name.discard(model)
        self._withdraw(model)

    def refuse(self, model: str, sources: list[VersionSource], error: ServingError) -> None:
        """An ensemble does not fit. As Triton, which gives it no row in the index. If it is the one that serves, which
        its models do not fit any more, it serves no longer, until they do."""
        serving = self._serving.get(model)
        if serving is None or serving.versions[0].source is sources[0]:
            self._withdraw(model)
            self._lost[model] = sources
            self.refused[model] = error
            self._registry.add_name(model)

    def _withdraw(self, model: str) -> None:
        """It takes no new requests any more, and neither does an ensemble that needs it."""
        self._changed(model)
        for ensemble, generation in list(self._serving.items()):
            if ensemble != model and model in models_of(generation):
                self._lost[ensemble] = sources_of(generation)
                self._withdraw(ensemble)
        self._serving.pop(model, None)
        for row in self._registry.rows(model):
            row.accepts_until = 0
            if row.state is VersionState.READY:
                self._draining.drain(row)
        self.forgive(model)

    def leave(self, now: int) -> list[Action]:
        """Whatever can go a step further does; at the end of every turn."""
        actions = self.leaving.leave(now) if self.leaving else []
        return actions + self._draining.leave(now) if self._draining else actions

    def next_deadline(self) -> int | None:
        deadlines = (self._draining.next_deadline(), self.leaving.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    def check(self, is_open: bool) -> None:
        """Raises AssertionError if an invariant is broken; ``is_open`` until the server stops."""
        for one in self._registry:
            assert not is_open or one.state is not VersionState.UNLOADING or one in self._draining
            stays = one.state is VersionState.READY and one.update is None
            assert not (one.leaving and stays) or one in self.leaving
        for model, generation in self._serving.items():
            assert not is_open or generation.serves(), model
