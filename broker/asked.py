"""Who asks for a model to be loaded, unloaded or looked after, and whether they may."""

from __future__ import annotations

from broker.control import ModelControl
from broker.events import (
    Action,
    Asker,
    LoadModel,
    Override,
    Reload,
    Removed,
    Send,
    StartServing,
    StubAsker,
    UnloadModel,
)
from broker.instance import InstanceState
from broker.load_lines import NOT_READY, LoadLines, OfEveryNamespace, told
from broker.places import candidates
from broker.queue import Frames
from broker.readiness import Ask
from broker.registry import Registry
from broker.roster import Roster
from broker.serving import Serving
from broker.settings import BrokerSettings
from protocol.errors import InvalidArgument, ServingError, Unavailable
from protocol.messages import TOLD, Control, Told
from protocol.versions import parse_version

NOT_ALLOWED = "explicit model load / unload is not allowed if polling is enabled"


class Asked:
    """What is asked between StartServing and StopServing is passed on to ModelControl, if it may be asked."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        roster: Roster,
        lines: LoadLines,
        serving: Serving,
        control: ModelControl,
        ask_ready: Ask,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._roster = roster
        self._lines = lines
        self._serving = serving
        self._control = control
        self._ask_ready = ask_ready
        self._open = False

    def start(self, event: StartServing, now: int) -> list[Action]:
        self._open = True
        return []

    def stop(self, now: int) -> list[Action]:
        self._open = False
        return self._control.stop(now)

    def load(self, event: LoadModel, now: int) -> list[Action]:
        try:
            self._check(event.model, event.asker)
            orders = self._of_every_namespace(event)
            for one in orders:
                self._lines.refuse_circle(one)
        except ServingError as error:
            return told(event.asker, error)
        actions: list[Action] = []
        for one in orders:
            self._serving.name(one.model)
            actions += self._control.load(one, now)
        return actions

    def _of_every_namespace(self, event: LoadModel) -> list[LoadModel]:
        """Files that come with a request are in no repository."""
        if not self._settings.namespaces or (event.override is not None and event.override.files):
            return [event]
        models = candidates(event.model, self._settings.namespaces)
        shares = OfEveryNamespace(event.model, models, event.asker).shares
        return [LoadModel(model, event.override, share) for model, share in zip(models, shares, strict=True)]

    def reload(self, event: Reload, now: int) -> list[Action]:
        """Nobody need be allowed to ask for that: the operator does."""
        if not self._open:
            return told(event.asker, Unavailable(NOT_READY))
        return self._control.load(LoadModel(event.model, None, event.asker, event.quiet), now)

    def removed(self, event: Removed, now: int) -> list[Action]:
        return self._control.unload(event.model, False, now) if self._open else []

    def unload(self, event: UnloadModel, now: int) -> list[Action]:
        try:
            self._check(event.model, event.asker)
        except ServingError as error:
            return told(event.asker, error)
        actions: list[Action] = []
        for model in self._registry.loaded(event.model):
            actions += self._control.unload(model, event.unload_dependents, now)
        return actions + told(event.asker, None)

    def said(self, key: str, message: Control, frames: Frames, now: int) -> list[Action]:
        """A model asks."""
        found = self._roster.serving(key)
        if found is None:
            return []
        asker = StubAsker(key, message.call, found[1].spec.name)
        if found[1].state is InstanceState.FINISHING:
            return told(asker, Unavailable("models cannot be loaded or unloaded in finalize"))
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
        found = self._lines.asking(asker)
        if found is not None and found[0].config.name == model:
            raise InvalidArgument(f"model '{model}' cannot load or unload itself")

    def _is_ready(self, message: Control, asker: StubAsker, now: int) -> list[Action]:
        try:
            if not self._open:
                raise Unavailable(NOT_READY)
            version = self._registry.servable(message.model, parse_version(message.version))
        except ServingError as error:
            return told(asker, error)

        def tell(error: ServingError | None, now: int) -> list[Action]:
            return [Send(asker.key, Told(TOLD, asker.call, None, float(error is None)))]

        return tell(Unavailable(""), now) if version is None else self._ask_ready(version, now, tell)


def override_of(message: Control) -> Override | None:
    """A model says "" for no configuration."""
    return Override(message.config or None, message.files or {}) if message.config or message.files else None
