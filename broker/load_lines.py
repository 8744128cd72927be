"""The loads that are asked for, model by model, and which of them wait for which.

Loads of one model come one after the other. A load may be asked for by a model that is itself being loaded, in its
``initialize``, or for the sake of an ensemble: then the load of the asker waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from broker.config_steps import step_models
from broker.events import Action, Asker, LoadModel, Say, Send, StubAsker, TellDone
from broker.instance import Instance
from broker.model import Generation, ModelVersion, VersionSource, VersionState
from broker.places import NOT_FOUND, candidates
from broker.roster import Roster
from protocol.errors import InternalError, InvalidArgument, NotFound, ServingError
from protocol.messages import TOLD, Told

NOT_READY = "Server not ready"


class LoadLine:
    """The loads asked for one model. The first is being carried out: polled for, then as ``generation``; an ensemble
    waits in between, as ``sources``, for its models."""

    __slots__ = ("_namespaces", "generation", "model", "orders", "poll", "settles_until", "sources")

    def __init__(self, model: str, namespaces: Sequence[str] = ()) -> None:
        self.model = model
        self._namespaces = namespaces
        self.orders: deque[LoadModel] = deque()
        self.poll = 0
        self.generation: Generation | None = None
        self.settles_until = 0  # it is loaded, and waits so long for instances of before to be gone
        self.sources: list[VersionSource] = []

    @property
    def quiet(self) -> bool:
        return bool(self.orders) and self.orders[0].quiet

    @property
    def models(self) -> set[str]:
        """Those that the ensemble waits for."""
        names = {name for source in self.sources for name, _ in step_models(source.config)}
        return {model for name in names for model in candidates(name, self._namespaces)}


@dataclass(frozen=True)
class ForEnsemble:
    """Asks for the models of an ensemble; it will find out by itself how that went."""

    ensemble: str

    def __call__(self, error: ServingError | None) -> None:
        pass


class OfEveryNamespace:
    """Whoever asks for a name gets one answer, when the loads of all models of that name have ended."""

    def __init__(self, name: str, models: Sequence[str], asker: Asker | StubAsker) -> None:
        self.name = name
        self.asker = asker
        self.shares = [Share(self) for _ in models]
        self._left = len(models)
        self._errors: list[ServingError] = []

    def answered(self, error: ServingError | None) -> list[Action]:
        """A model that is not in a repository is an error only if it is in none."""
        self._left -= 1
        if error is not None:
            self._errors.append(error)
        if self._left:
            return []
        missing = [one for one in self._errors if isinstance(one, NotFound)]
        if len(missing) == len(self.shares):
            cause = f"failed to poll model '{self.name}': {NOT_FOUND}"
            return [Say("error", cause, {}), *told(self.asker, not_polled(self.name))]
        failed = [str(one) for one in self._errors if isinstance(one, InvalidArgument)]
        if failed:
            return told(self.asker, InvalidArgument("".join(failed)))
        return told(self.asker, not_polled(self.name) if len(self._errors) > len(missing) else None)


@dataclass(frozen=True)
class Share:
    """Asks for the model of one namespace."""

    whole: OfEveryNamespace

    def __call__(self, error: ServingError | None) -> None:
        pass


class LoadLines(dict[str, LoadLine]):
    """By model; a model without a load has no line."""

    def __init__(self, roster: Roster, namespaces: Sequence[str] = ()) -> None:
        super().__init__()
        self._roster = roster
        self._namespaces = namespaces

    def new(self, model: str) -> LoadLine:
        """For who has something to load; it is not among us yet."""
        return LoadLine(model, self._namespaces)

    def asking(self, asker: Asker | StubAsker) -> tuple[ModelVersion, Instance] | None:
        if isinstance(asker, Share):
            return self.asking(asker.whole.asker)
        return self._roster.serving(asker.key) if isinstance(asker, StubAsker) else None

    def held_up(self, asker: Asker | StubAsker) -> str:
        """The model whose load waits for what is asked, "" if none does."""
        if isinstance(asker, ForEnsemble):
            return asker.ensemble
        found = self.asking(asker)
        if found is None:
            return ""
        version, instance = found
        return version.name if version.state is VersionState.LOADING or instance in version.joining else ""

    def refuse_circle(self, event: LoadModel) -> None:
        """A model that loads another one in ``initialize`` cannot be waited for by that one's load."""
        waiting = self.held_up(event.asker)
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
        for model, line in self.items():
            for order in line.orders:
                yield model, self.held_up(order.asker)

    def is_urgent(self, asker: Asker | StubAsker) -> bool:
        """Whether a model that is itself loading, and has a place among those that may, waits for what is asked."""
        reached: set[str] = set()
        ahead = [asker]
        while ahead:
            one = ahead.pop()
            if not isinstance(one, ForEnsemble):
                if self.held_up(one):
                    return True
            elif one.ensemble not in reached:
                reached.add(one.ensemble)
                line = self.get(one.ensemble)
                ahead += [order.asker for order in line.orders] if line is not None else []
        return False


def told(asker: Asker | StubAsker, error: ServingError | None) -> list[Action]:
    if isinstance(asker, Share):
        return asker.whole.answered(error)
    if not isinstance(asker, StubAsker):
        return [TellDone(asker, error)]
    if error is None:
        return [Send(asker.key, Told(TOLD, asker.call, None))]
    text = f"Failed to process the request for model '{asker.instance}', message: {error}"
    return [Send(asker.key, Told(TOLD, asker.call, (int(error.kind), text)))]


def not_polled(model: str) -> InternalError:
    """What whoever asks is told; the log says why."""
    return InternalError(f"failed to load '{model}', failed to poll from model repository")
