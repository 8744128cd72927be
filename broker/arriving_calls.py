"""A model's own request until it stands in a queue: the model that it calls may first have to say that it is ready."""

from __future__ import annotations

from functools import partial

from broker.answering import refusal
from broker.calls import Calls, call_failed, not_ready
from broker.events import Action, Send
from broker.model import ModelVersion
from broker.queue import Caller, Frames
from broker.readiness import Ask
from broker.registry import Registry
from broker.requests import Requests
from broker.roster import Roster
from protocol.errors import Cancelled, NotFound, ServingError
from protocol.messages import ANSWERED, Answered, Call, CancelCall


class ArrivingCalls:
    """``_early`` are the calls, by the caller's key and number, of models that have still to say whether they are
    ready."""

    def __init__(
        self,
        registry: Registry,
        roster: Roster,
        calls: Calls,
        requests: Requests,
        ask_ready: Ask,
    ) -> None:
        self._registry = registry
        self._roster = roster
        self._calls = calls
        self._requests = requests
        self._ask_ready = ask_ready
        self._early: set[tuple[str, int]] = set()

    def call(self, key: str, message: Call, frames: Frames, now: int) -> list[Action]:
        """A model's own request; it comes while the server stops, too, or what is in flight could not be finished."""
        target = self._asked_before(message)
        if target is None:
            return self._open(key, message, frames, now)
        self._early.add((key, message.call))
        return self._ask_ready(target, now, partial(self._open_if_ready, key, message, frames))

    def _asked_before(self, message: Call) -> ModelVersion | None:
        """The version that is called, if it has ``is_ready``."""
        try:
            version = self._registry.servable(message.request.model, message.request.version)
        except NotFound:
            return None
        asks = version is not None and any(instance.asks_ready for instance in version.instances)
        return version if asks else None

    def _open_if_ready(
        self, key: str, message: Call, frames: Frames, error: ServingError | None, now: int
    ) -> list[Action]:
        if (key, message.call) not in self._early:
            return [_refused(key, message, Cancelled(""))]
        self._early.discard((key, message.call))
        if error is not None:
            model = message.request.model
            return [_refused(key, message, call_failed(model, not_ready(model)))]
        return self._open(key, message, frames, now)

    def _open(self, key: str, message: Call, frames: Frames, now: int) -> list[Action]:
        found = self._roster.serving(key)
        if found is None:
            return []
        instance = found[1]
        parents = instance.requests_of(message.batch)
        # A process that the model forked may end without a word, so that nobody would say what it had read.
        shared = instance.shared and key == instance.key
        caller = Caller(key, message.call, instance.index, shared, message.waits, parents)
        try:
            version, pending = self._calls.open(message, caller, frames, now)
        except ServingError as error:
            return [_refused(key, message, error)]
        if message.waits:
            self._requests.waiting_calls.append(pending)
        return self._requests.enqueue(version, pending, now)

    def cancel(self, key: str, message: CancelCall, frames: Frames, now: int) -> list[Action]:
        self._early.discard((key, message.call))
        pending = self._calls.find(key, message.call)
        return [] if pending is None else self._requests.cancel(pending.request.id, now)


def _refused(key: str, message: Call, error: ServingError) -> Send:
    return Send(key, Answered(ANSWERED, message.call, refusal(0, error), ""))
