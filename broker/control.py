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

from collections.abc import Callable, Iterator
from itertools import groupby

from broker.assembly import ForEnsemble, LoadLine, models_of, only_for, plan_of, put_together, ready, sources_of
from broker.draining import Draining
from broker.events import (
    Action,
    Asker,
    Discard,
    Done,
    LoadModel,
    LoadModels,
    Override,
    Poll,
    Polled,
    Reload,
    Say,
    Send,
    StartServing,
    StubAsker,
    UnloadModel,
)
from broker.instance import Instance, InstanceState
from broker.model import UNLOADED, Generation, ModelVersion, VersionSource, VersionState
from broker.model_config import Scheduler
from broker.queue import Frames
from broker.readiness import Then
from broker.registry import Registry
from broker.roster import Roster
from broker.settings import BrokerSettings
from broker.startup import Startup
from metrics.recorder import Recorder
from protocol.errors import InvalidArgument, ServingError, Unavailable
from protocol.messages import TOLD, Control, Told
from protocol.versions import parse_version

NOT_ALLOWED = "explicit model load / unload is not allowed if polling is enabled"
NOT_READY = "Server not ready"

AskReady = Callable[[ModelVersion, int, Then], list[Action]]


class ModelControl:
    """Invariant: until the server stops, all versions of a generation in ``_serving`` are READY."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        roster: Roster,
        recorder: Recorder,
        startup: Startup,
        ask_ready: AskReady,
        lends: Callable[[ModelVersion], bool],
    ) -> None:
        """``lends`` tells whether other models still look at outputs of a version."""
        self._settings = settings
        self._registry = registry
        self._roster = roster
        self._recorder = recorder
        self._startup = startup
        self._ask_ready = ask_ready
        self._lines: dict[str, LoadLine] = {}
        self._serving: dict[str, Generation] = {}
        self._draining = Draining(settings, registry, recorder, lends)
        self._lost: dict[str, list[VersionSource]] = {}  # ensembles that went with a model, and come back with it
        self._refused: dict[str, ServingError] = {}  # ensembles whose last load failed, and why
        self._by_name: set[str] = set()  # what somebody has asked for; other models were loaded for an ensemble
        self._last_poll = 0
        self._open = False  # from StartServing to StopServing

    def start(self, event: StartServing, now: int) -> list[Action]:
        self._open = True
        return []

    # --- what is asked ----------------------------------------------------------------------------------------------

    def load_all(self, event: LoadModels, now: int) -> list[Action]:
        """At the start, and without further conditions."""
        actions: list[Action] = []
        for model, sources in groupby(event.sources, key=lambda source: source.model):
            line = self._lines[model] = LoadLine(model)
            actions += self._begin(line, list(sources), now)
            if model not in event.along:
                self._by_name.add(model)
        return actions

    def _begin(self, line: LoadLine, sources: list[VersionSource], now: int) -> list[Action]:
        """Ensembles wait for their models, to the end of the turn at least."""
        if sources[0].config.scheduler is Scheduler.ENSEMBLE:
            line.sources = sources
            return []
        line.generation = Generation(sources, now)
        actions = self._startup.load(line.generation, now)
        if any(self._is_urgent(order.asker) for order in line.orders):
            actions += self._startup.hurry(line.generation, now)
        return actions

    def load(self, event: LoadModel, now: int) -> list[Action]:
        try:
            self._check(event.model, event.asker)
            self._refuse_circle(event)
        except ServingError as error:
            return [told(event.asker, error)]
        self._by_name.add(event.model)
        return self._enqueue(event, now)

    def reload(self, event: Reload, now: int) -> list[Action]:
        """Nobody need be allowed to ask for that: the operator does."""
        if not self._open:
            return [told(event.asker, Unavailable(NOT_READY))]
        return self._enqueue(LoadModel(event.model, None, event.asker), now)

    def _enqueue(self, event: LoadModel, now: int) -> list[Action]:
        line = self._lines.get(event.model)
        if line is None:
            line = self._lines[event.model] = LoadLine(event.model)
            line.orders.append(event)
            return [self._poll(line)]
        line.orders.append(event)
        if line.generation is not None and self._is_urgent(event.asker):
            return self._startup.hurry(line.generation, now)
        return []

    def unload(self, event: UnloadModel, now: int) -> list[Action]:
        """``unload_dependents`` is for the models of an ensemble that nobody else needs."""
        try:
            self._check(event.model, event.asker)
        except ServingError as error:
            return [told(event.asker, error)]
        models = [event.model]
        if event.unload_dependents:
            models += only_for(event.model, self._serving, self._by_name)
        actions: list[Action] = []
        for model in models:
            actions += self._give_up(model, None, now)
            self._lost.pop(model, None)
            self._by_name.discard(model)
            self._withdraw(model)
        return [*actions, told(event.asker, None)]

    def _withdraw(self, model: str) -> None:
        """It takes no new requests any more, and neither does an ensemble that needs it."""
        for ensemble, generation in list(self._serving.items()):
            if ensemble != model and model in models_of(generation):
                self._lost[ensemble] = sources_of(generation)
                self._withdraw(ensemble)
        self._serving.pop(model, None)
        for row in self._registry.rows(model):
            row.accepts_until = 0
            if row.state is VersionState.READY:
                self._draining.drain(row)
        self._forgive(model)

    def stop(self, now: int) -> list[Action]:
        """What is being loaded is given up; what serves is for the core to end."""
        self._open = False
        actions: list[Action] = []
        for model in list(self._lines):
            actions += self._give_up(model, Unavailable(NOT_READY), now)
        return actions

    def said(self, key: str, message: Control, frames: Frames, now: int) -> list[Action]:
        """A model asks."""
        found = self._roster.serving(key)
        if found is None:
            return []
        asker = StubAsker(key, message.call, found[1].spec.name)
        if found[1].state is InstanceState.FINISHING:
            return [told(asker, Unavailable("models cannot be loaded or unloaded in finalize"))]
        if message.operation == "unload":
            return self.unload(UnloadModel(message.model, message.unload_dependents, asker), now)
        if message.operation == "load":
            return self.load(LoadModel(message.model, override_of(message), asker), now)
        return self._is_ready(message, asker, now)

    def _check(self, model: str, asker: Asker | StubAsker) -> None:
        if not self._open:
            raise Unavailable(NOT_READY)
        if not self._settings.explicit_control:
            raise Unavailable(NOT_ALLOWED)
        if not model:
            raise InvalidArgument("Model name cannot be empty. Please enter a valid name to deploy.")
        if model.strip() == ".." or "/" in model:
            raise InvalidArgument(
                f"invalid model name '{model}', model name must not contain path traversal characters"
            )
        found = self._asking(asker)
        if found is not None and found[0].name == model:
            raise InvalidArgument(f"model '{model}' cannot load or unload itself")

    def _asking(self, asker: Asker | StubAsker) -> tuple[ModelVersion, Instance] | None:
        return self._roster.serving(asker.key) if isinstance(asker, StubAsker) else None

    def _is_ready(self, message: Control, asker: StubAsker, now: int) -> list[Action]:
        try:
            if not self._open:
                raise Unavailable(NOT_READY)
            version = self._registry.servable(message.model, parse_version(message.version))
        except ServingError as error:
            return [told(asker, error)]

        def tell(error: ServingError | None, now: int) -> list[Action]:
            return [Send(asker.key, Told(TOLD, asker.call, None, float(error is None)))]

        return tell(Unavailable(""), now) if version is None else self._ask_ready(version, now, tell)

    # --- circles ----------------------------------------------------------------------------------------------------

    def _refuse_circle(self, event: LoadModel) -> None:
        """A model that loads another one in ``initialize`` cannot be waited for by that one's load."""
        waiting = self._held_up(event.asker)
        reached, ahead = set(), [event.model]
        while waiting and ahead:
            model = ahead.pop()
            if model == waiting:
                raise InvalidArgument(f"the load of model '{event.model}' would wait for itself")
            if model not in reached:
                reached.add(model)
                ahead += [line_model for line_model, held in self._waits() if held == model]

    def _waits(self) -> Iterator[tuple[str, str]]:
        """Which model is waited for by the load of which other one."""
        for model, line in self._lines.items():
            for order in line.orders:
                yield model, self._held_up(order.asker)

    def _held_up(self, asker: Asker | StubAsker) -> str:
        """The model whose load waits for what is asked, "" if none does."""
        if isinstance(asker, ForEnsemble):
            return asker.ensemble
        found = self._asking(asker)
        return found[0].name if found is not None and found[0].state is VersionState.LOADING else ""

    # --- one load after the other -----------------------------------------------------------------------------------

    def _poll(self, line: LoadLine) -> Poll:
        self._last_poll += 1
        line.poll, line.generation = self._last_poll, None
        return Poll(line.poll, line.orders[0].model, line.orders[0].override)

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
            self._forgive(event.model)
            return self._next(line, None)
        return self._begin(line, event.sources, now)

    def _is_unchanged(self, line: LoadLine, sources: list[VersionSource]) -> bool:
        """What comes with a request is always loaded; a configuration that did stays until the files change."""
        serving = self._serving.get(line.model)
        return (
            serving is not None
            and not (line.orders and line.orders[0].override)
            and not serving.private_directory
            and serving.fingerprint == sources[0].fingerprint
        )

    # --- ensembles --------------------------------------------------------------------------------------------------

    def _load_models(self, line: LoadLine, now: int) -> list[Action]:
        """Of an ensemble: all that are not being loaded anyhow; those that serve only if they have changed."""
        actions: list[Action] = []
        for model in sorted(line.models):
            if model not in self._lines:
                actions += self._enqueue(LoadModel(model, None, ForEnsemble(line.model)), now)
        return actions

    def _is_urgent(self, asker: Asker | StubAsker) -> bool:
        """Whether a model that is itself loading, and has a place among those that may, waits for what is asked."""
        reached: set[str] = set()
        ahead = [asker]
        while ahead:
            one = ahead.pop()
            if not isinstance(one, ForEnsemble):
                if self._held_up(one):
                    return True
            elif one.ensemble not in reached:
                reached.add(one.ensemble)
                line = self._lines.get(one.ensemble)
                ahead += [order.asker for order in line.orders] if line is not None else []
        return False

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
            plans = [plan_of(source, self._registry, self._refused) for source in sources]
        except ServingError as refused:
            return self._refuse(line, sources, refused)
        serving = self._serving.get(line.model)
        if self._is_unchanged(line, sources) and serving is not None and plans == [v.plan for v in serving.versions]:
            self._forgive(line.model)
            return self._next(line, None)
        line.generation = put_together(sources, plans, now)
        return self._startup.load(line.generation, now)

    def _refuse(self, line: LoadLine, sources: list[VersionSource], error: ServingError) -> list[Action]:
        """As Triton, which gives an ensemble that does not fit no row in the index. If it is the one that serves, which
        its models do not fit any more, it serves no longer, until they do."""
        serving = self._serving.get(line.model)
        if serving is None or serving.versions[0].source is sources[0]:
            self._withdraw(line.model)
            self._lost[line.model] = sources
            self._refused[line.model] = error
            self._registry.add_name(line.model)
        said = Say("error", f"failed to load '{line.model}': {error.status_text()}", {})
        return [said, *self._next(line, InvalidArgument(f"load failed for model '{line.model}': {error}\n"))]

    def _bring_back(self, model: str) -> None:
        """Ensembles that need the model, which has just come to serve: all may have changed for them."""
        serving = {name: sources_of(one) for name, one in self._serving.items() if model in models_of(one)}
        for ensemble, sources in {**self._lost, **serving}.items():
            line = LoadLine(ensemble)
            line.orders.append(LoadModel(ensemble, None, ForEnsemble(ensemble)))
            line.sources = sources
            if model in line.models:
                self._lines.setdefault(ensemble, line)

    def settled(self, generation: Generation, now: int) -> list[Action]:
        """Every version is up or has failed."""
        line = self._lines.get(generation.model)
        if line is None or line.generation is not generation:
            return []
        if all(one.is_up and one.state is VersionState.LOADING for one in generation.versions):
            return self._take_over(generation, now) + self._next(line, None)
        failed = load_failed(generation)
        actions = self._abandon(generation, now)
        actions.append(Say("error", f"failed to load '{generation.model}'", {}))
        return actions + self._next(line, failed)

    def _take_over(self, generation: Generation, now: int) -> list[Action]:
        model = generation.model
        replaced = [row for row in self._registry.rows(model) if row.state is VersionState.READY]
        for row in replaced:
            row.accepts_until = now + self._settings.release_delay_ns
            self._draining.drain(row)
        for version in generation.versions:
            version.state = VersionState.READY
            self._registry.give_row(version)
            self._recorder.add(version.recorder)
        self._serving[model] = generation
        self._lost.pop(model, None)
        self._refused.pop(model, None)
        self._forgive(model)
        self._bring_back(model)
        return [Say("info", f"successfully loaded '{model}'", {})]

    def _forgive(self, model: str) -> None:
        """That a load of it has failed is no complaint any more."""
        self._registry.forget_failure(model)
        for row in self._registry.rows(model):
            if row.state is VersionState.UNAVAILABLE:
                row.reason = UNLOADED

    def _next(self, line: LoadLine, error: ServingError | None) -> list[Action]:
        """The first of the line is done."""
        actions: list[Action] = []
        if line.orders:
            actions.append(told(line.orders.popleft().asker, error))
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
        failed = InvalidArgument(f"load failed for model '{model}': it was unloaded meanwhile\n")
        if line.generation is not None:
            actions += self._abandon(line.generation, now)
            failed = load_failed(line.generation)
        return actions + [told(order.asker, error or failed) for order in line.orders]

    # --- on the way out ---------------------------------------------------------------------------------------------

    def _abandon(self, generation: Generation, now: int) -> list[Action]:
        """One that does not come to serve."""
        self._draining.end(generation.versions)
        return self._startup.give_up(generation, now)

    def leave(self, now: int) -> list[Action]:
        """Whatever can go a step further does; at the end of every turn."""
        actions = self._assemble(now) if self._lines else []
        return actions + self._draining.leave(now) if self._draining else actions

    def next_deadline(self) -> int | None:
        return self._draining.next_deadline()

    @property
    def assembling(self) -> bool:
        """Whether ensembles wait for their models."""
        return any(line.sources for line in self._lines.values())

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        for model, line in self._lines.items():
            assert line.orders or line.generation is not None or line.sources, model
            assert all(order.model == model for order in line.orders)
            assert line.generation is None or not line.generation.settled()
        for one in self._registry:
            assert one.state is not VersionState.LOADING or self._lines[one.name].generation is one.generation
            assert not self._open or one.state is not VersionState.UNLOADING or one in self._draining
        for model, generation in self._serving.items():
            assert not self._open or generation.serves(), model


def told(asker: Asker | StubAsker, error: ServingError | None) -> Action:
    if not isinstance(asker, StubAsker):
        return Done(asker, error)
    if error is None:
        return Send(asker.key, Told(TOLD, asker.call, None))
    text = f"Failed to process the request for model '{asker.instance}', message: {error}"
    return Send(asker.key, Told(TOLD, asker.call, (int(error.kind), text)))


def override_of(message: Control) -> Override | None:
    """A model says "" for no configuration."""
    return Override(message.config or None, message.files or {}) if message.config or message.files else None


def load_failed(generation: Generation) -> InvalidArgument:
    """What whoever asked is told; siblings of those that failed are no news."""
    clauses = [
        f"version {one.version} is at {one.state.value} state: {one.reason};\n"
        for one in generation.versions
        if one.state is VersionState.UNAVAILABLE
    ]
    return InvalidArgument(f"load failed for model '{generation.model}': {''.join(clauses)}")
