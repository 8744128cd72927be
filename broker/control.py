"""Loading and unloading while the server runs.

    LoadModel -> Poll, Polled -> startup.py -> all versions up: they serve, and what they replace drains
                                            -> one failed: what has served goes on serving
    UnloadModel -> loads that came before it are given up; what serves drains

    LOADING --up--> READY --unload, replaced--> UNLOADING --drained, processes gone--> UNAVAILABLE "unloaded"
       +--failed--> UNAVAILABLE, with the reason

An ensemble is loaded when the loads of its models are over, and only if all of them serve and fit (_assemble); when one
of them goes, so does the ensemble, and it comes back with that one.

What drains takes no new requests, ends those in flight, then finalizes. Loads of one model come one after the other, in
the order asked; an unload waits for nothing. A load that waits for itself by way of other models is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from broker.assembly import plan_of, put_together, ready
from broker.events import Action, Discard, LoadModel, LoadModels, Poll, Polled, Say
from broker.load_lines import NOT_READY, ForEnsemble, LoadLine, LoadLines, told
from broker.model import Generation, ModelVersion, VersionSource, VersionState
from broker.model_config import Scheduler
from broker.registry import Registry
from broker.serving import Serving
from broker.startup import Startup
from protocol.errors import InvalidArgument, ServingError, Unavailable

_SETTLE_NS = 5_000_000_000  # a load waits so long for instances that it has made superfluous


class ModelControl:
    """Invariant: a version that is LOADING belongs to the generation of its model's line."""

    def __init__(
        self,
        registry: Registry,
        startup: Startup,
        serving: Serving,
        lines: LoadLines,
        fill: Callable[[ModelVersion, int], list[Action]],
    ) -> None:
        """``fill`` has a version that has come to serve get what it lacks on hosts that have joined meanwhile."""
        self._fill = fill
        self._registry = registry
        self._startup = startup
        self._serving = serving
        self._lines = lines
        self._last_poll = 0
        self._stopping = False

    # --- what is asked ----------------------------------------------------------------------------------------------

    def load_all(self, event: LoadModels, now: int) -> list[Action]:
        """At the start, and without further conditions."""
        actions: list[Action] = []
        for model, sources in groupby(event.sources, key=lambda source: source.model):
            line = self._lines[model] = self._lines.new(model)
            actions += self._begin(line, list(sources), now)
            if model not in event.along:
                self._serving.name(model)
        return actions

    def load(self, event: LoadModel, now: int) -> list[Action]:
        line = self._lines.get(event.model)
        if line is None:
            line = self._lines[event.model] = self._lines.new(event.model)
            line.orders.append(event)
            return [self._poll(line)]
        line.orders.append(event)
        if line.generation is not None and self._lines.is_urgent(event.asker):
            return self._startup.hurry(line.generation, now)
        return []

    def unload(self, model: str, unload_dependents: bool, now: int) -> list[Action]:
        """``unload_dependents`` is for the models of an ensemble that nobody else needs."""
        actions: list[Action] = []
        for one in self._serving.going(model, unload_dependents):
            actions += self._give_up(one, None, now)
            self._serving.unload(one)
            self._bring_back(one, elsewhere=True)
        return actions

    def stop(self, now: int) -> list[Action]:
        """What is being loaded is given up; what serves is for the core to end."""
        self._stopping = True
        actions: list[Action] = []
        for model in list(self._lines):
            actions += self._give_up(model, Unavailable(NOT_READY), now)
        return actions

    # --- one load after the other -----------------------------------------------------------------------------------

    def _poll(self, line: LoadLine) -> Poll:
        self._last_poll += 1
        line.poll, line.generation, line.settles_until = self._last_poll, None, 0
        return Poll(line.poll, line.orders[0].model, line.orders[0].override, line.quiet)

    def polled(self, event: Polled, now: int) -> list[Action]:
        line = self._lines.get(event.model)
        if line is None or line.poll != event.number or line.generation is not None:  # it was given up meanwhile
            directory = event.sources[0].private_directory if event.sources else ""
            return [Discard(directory)] if directory else []
        if event.error is not None:
            return self._next(line, event.error)
        if event.sources[0].config.scheduler is Scheduler.ENSEMBLE:
            return self._begin(line, event.sources, now) + self._load_models(line, now)
        if self._is_unchanged(line, event.sources):
            self._serving.forgive(event.model)
            return self._next(line, None)
        return self._begin(line, event.sources, now)

    def _begin(self, line: LoadLine, sources: list[VersionSource], now: int) -> list[Action]:
        """Ensembles wait for their models, to the end of the turn at least."""
        if sources[0].config.scheduler is Scheduler.ENSEMBLE:
            line.sources = sources
            return []
        generation = line.generation = Generation(sources, now, self._serving.kept(sources))
        generation.quiet = line.quiet
        urgent = any(self._lines.is_urgent(order.asker) for order in line.orders)
        actions = self._startup.load(generation, now)
        return actions + self._startup.hurry(generation, now) if urgent else actions

    def _is_unchanged(self, line: LoadLine, sources: list[VersionSource]) -> bool:
        """What comes with a request is always loaded."""
        brought = line.orders and line.orders[0].override
        return not brought and self._serving.is_unchanged(line.model, sources)

    def settled(self, generation: Generation, now: int) -> list[Action]:
        """Every version is up or has failed."""
        line = self._lines.get(generation.model)
        if line is None or line.generation is not generation:
            return []
        if generation.came_up():
            actions = self._serving.take_over(generation, now)
            for version in generation.versions:
                actions += self._fill(version, now)
            self._bring_back(line.model)
            if self._serving.is_settled(line.model) or not line.orders:
                return actions + self._next(line, None)
            line.generation, line.settles_until = None, now + _SETTLE_NS
            return actions
        failed = load_failed(generation)
        actions = self._serving.abandon(generation, now)
        if not generation.quiet:
            actions.append(Say("error", f"failed to load '{generation.model}'", {}))
        return actions + self._next(line, failed)

    def _next(self, line: LoadLine, error: ServingError | None) -> list[Action]:
        """The first of the line is done."""
        actions: list[Action] = []
        if line.orders:
            actions += told(line.orders.popleft().asker, error)
        if line.orders:
            return [*actions, self._poll(line)]
        del self._lines[line.model]
        return actions

    def _give_up(self, model: str, error: ServingError | None, now: int) -> list[Action]:
        """Whoever waits is told the error; without one, how far the load has come."""
        line = self._lines.pop(model, None)
        if line is None:
            return []
        actions: list[Action] = []
        if line.settles_until:  # it was loaded
            actions += told(line.orders.popleft().asker, None)
        failed = InvalidArgument(f"load failed for model '{model}': it was unloaded meanwhile\n")
        if line.generation is not None:
            actions += self._serving.abandon(line.generation, now)
            failed = load_failed(line.generation)
        for order in line.orders:
            actions += told(order.asker, error or failed)
        return actions

    # --- ensembles --------------------------------------------------------------------------------------------------

    def _load_models(self, line: LoadLine, now: int) -> list[Action]:
        """Of an ensemble: all that are not being loaded anyhow; those that serve only if they have changed."""
        actions: list[Action] = []
        for model in sorted(line.models):
            if model not in self._lines:
                actions += self.load(LoadModel(model, None, ForEnsemble(line.model), line.quiet), now)
        return actions

    def _assemble(self, now: int) -> list[Action]:
        """Ensembles whose models have come up or have failed; then those that have waited for these ensembles."""
        actions: list[Action] = []
        while found := ready(self._lines):
            for line, error in found:
                sources, line.sources = line.sources, []
                actions += self._put_together(line, sources, error, now)
        return actions

    def _put_together(
        self, line: LoadLine, sources: list[VersionSource], error: ServingError | None, now: int
    ) -> list[Action]:
        try:
            if error is not None:
                raise error
            plans = [plan_of(source, self._registry, self._serving.refused) for source in sources]
        except ServingError as refused:
            return self._refuse(line, sources, refused)
        serving = self._serving.get(line.model)
        if self._is_unchanged(line, sources) and serving is not None and plans == [v.plan for v in serving.versions]:
            self._serving.forgive(line.model)
            return self._next(line, None)
        line.generation = put_together(sources, plans, now)
        line.generation.quiet = line.quiet
        return self._startup.load(line.generation, now)

    def _refuse(self, line: LoadLine, sources: list[VersionSource], error: ServingError) -> list[Action]:
        self._serving.refuse(line.model, sources, error)
        said = [] if line.quiet else [Say("error", f"failed to load '{line.model}': {error.status_text()}", {})]
        return [*said, *self._next(line, InvalidArgument(f"load failed for model '{line.model}': {error}\n"))]

    def _bring_back(self, model: str, elsewhere: bool = False) -> None:
        """Ensembles that need the model, which has just come to serve: all may have changed for them. Or it serves no
        longer, and they find another one of that name ``elsewhere``."""
        for ensemble, sources in self._serving.ensembles():
            line = self._lines.new(ensemble)
            line.orders.append(LoadModel(ensemble, None, ForEnsemble(ensemble)))
            line.sources = sources
            if model in line.models and (not elsewhere or all(map(self._registry.has_parts, sources))):
                self._lines.setdefault(ensemble, line)

    # --- turns ------------------------------------------------------------------------------------------------------

    def leave(self, now: int) -> list[Action]:
        """Whatever can go a step further does; at the end of every turn."""
        actions = self._assemble(now) if self._lines else []
        actions += self._serving.leave(now)
        for line in [one for one in self._lines.values() if one.settles_until]:
            if self._serving.is_settled(line.model) or line.settles_until <= now:
                actions += self._next(line, None)
        return actions

    def next_deadline(self) -> int | None:
        return min((one.settles_until for one in self._lines.values() if one.settles_until), default=None)

    def is_loading(self, model: str) -> bool:
        return model in self._lines

    @property
    def assembling(self) -> bool:
        """Whether ensembles wait for their models."""
        return any(line.sources for line in self._lines.values())

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        for model, line in self._lines.items():
            assert not line.settles_until or line.orders
            assert line.orders or line.generation is not None or line.sources, model
            assert all(order.model == model for order in line.orders)
            assert line.generation is None or not line.generation.settled()
        for one in self._registry:
            assert one.state is not VersionState.LOADING or self._lines[one.name].generation is one.generation
        self._serving.check(not self._stopping)


def load_failed(generation: Generation) -> InvalidArgument:
    """What whoever asked is told; siblings of those that failed are no news."""
    clauses = [
        f"version {one.version} is at {one.state.value} state: {one.update.error.status_text()};\n"
        for one in generation.kept
        if one.update is not None and one.update.error is not None
    ] + [
        f"version {one.version} is at {one.state.value} state: {one.reason};\n"
        for one in generation.versions
        if one.state is VersionState.UNAVAILABLE
    ]
    return InvalidArgument(f"load failed for model '{generation.model}': {''.join(clauses)}")
