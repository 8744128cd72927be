"""Whether a model version can serve: its instances live, and those of models with ``is_ready`` say so themselves.

An instance is asked once at a time, and whoever wants to know meanwhile shares the answer. Nobody waits for longer than
the timeout; the answer may come later still, for those who have begun to wait since. It is all as pure as the core: who
asks says what is to be done with the answer, which may be known at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from broker.events import Action, Say, Send, TellReady
from broker.instance import Instance, InstanceState, not_healthy
from broker.model import ModelVersion, no_host
from protocol.errors import InternalError, ServingError, Unavailable
from protocol.messages import ASK_READY, AskReady, IsReady

Then = Callable[[ServingError | None, int], list[Action]]  # why it is not ready; now
Ask = Callable[[ModelVersion, int, Then], list[Action]]  # Readiness.ask, for those who need no more of it

_TIMED_OUT = "Timed out waiting for user-defined is_ready() response"
_TIMED_OUT_TOGETHER = "Timed out waiting for in-flight is_ready() response"


class _Question:
    """How many have still to say yes. The first no ends it."""

    __slots__ = ("_left", "_then")

    def __init__(self, asked: int, then: Then) -> None:
        self._left = asked
        self._then = then

    def answered(self, error: ServingError | None, now: int) -> list[Action]:
        if self._left == 0:
            return []
        self._left = 0 if error is not None else self._left - 1
        return self._then(error, now) if self._left == 0 else []


class _Waiter(NamedTuple):
    question: _Question
    deadline_ns: int
    timed_out: str


class _Call(NamedTuple):
    """What one instance has been asked and has not answered. ``waiters`` in the order of their deadlines; it outlives
    them."""

    number: int
    instance: Instance
    waiters: deque[_Waiter]


class Readiness:
    """Invariant: a call is in here until its instance has answered it or is dead."""

    def __init__(self, timeout_ns: int) -> None:
        self._timeout_ns = timeout_ns
        self._calls: dict[str, _Call] = {}  # by the instance's key
        self._listening: set[str] = set()  # those whose socket for this is connected
        self._last = 0

    def ask(self, version: ModelVersion, now: int, then: Then) -> list[Action]:
        """Does ``then`` when it is known whether the version is ready."""
        for instance in version.instances:
            if instance.state is not InstanceState.READY:
                return then(not_healthy(instance.spec.name), now)
        if not version.instances and version.plan is None:
            return then(no_host(version.name), now)
        asked = [instance for instance in version.instances if instance.asks_ready]
        if not asked:
            return then(None, now)
        question = _Question(len(asked), then)
        actions: list[Action] = []
        for instance in asked:
            actions += self._ask(instance, question, now)
        return actions

    def ask_all(self, versions: list[ModelVersion], done: Callable[[bool], None], now: int) -> list[Action]:
        """For somebody outside. Whoever reads the log after a probe has failed finds the instance that is to blame."""
        if not versions:
            return [TellReady(done, True)]
        question = _Question(len(versions), lambda error, now: [TellReady(done, error is None)])
        actions: list[Action] = []
        for version in versions:
            actions += self.ask(version, now, partial(_noted, version, question))
        return actions

    def _ask(self, instance: Instance, question: _Question, now: int) -> list[Action]:
        deadline_ns = now + self._timeout_ns
        call = self._calls.get(instance.key)
        if call is not None:
            call.waiters.append(_Waiter(question, deadline_ns, _TIMED_OUT_TOGETHER))
            return []
        self._last += 1
        waiters = deque([_Waiter(question, deadline_ns, _TIMED_OUT)])
        call = self._calls[instance.key] = _Call(self._last, instance, waiters)
        return [_send(call)] if instance.key in self._listening else []

    def said(self, key: str, message: IsReady, now: int) -> list[Action]:
        """``key`` is that of the socket. Number 0 is the first word of an instance: it listens."""
        key = key.partition("/")[0]
        call = self._calls.get(key)
        if message.call == 0:
            self._listening.add(key)
            return [_send(call)] if call is not None else []
        if call is None or call.number != message.call:
            return []
        return self._end(key, _objection(call.instance.spec.name, message), now)

    def died(self, key: str, now: int) -> list[Action]:
        self._listening.discard(key)
        call = self._calls.get(key)
        return self._end(key, not_healthy(call.instance.spec.name), now) if call is not None else []

    def _end(self, key: str, error: ServingError | None, now: int) -> list[Action]:
        actions: list[Action] = []
        for waiter in self._calls.pop(key).waiters:
            actions += waiter.question.answered(error, now)
        return actions

    def next_deadline(self) -> int | None:
        return min((call.waiters[0].deadline_ns for call in self._calls.values() if call.waiters), default=None)

    def give_up(self, now: int) -> list[Action]:
        """On answers that are overdue."""
        actions: list[Action] = []
        for call in list(self._calls.values()):
            while call.waiters and call.waiters[0].deadline_ns <= now:
                waiter = call.waiters.popleft()
                actions += waiter.question.answered(Unavailable(waiter.timed_out), now)
        return actions

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        for key, call in self._calls.items():
            assert 0 < call.number <= self._last and call.instance.key == key
            deadlines = [waiter.deadline_ns for waiter in call.waiters]
            assert deadlines == sorted(deadlines), deadlines


def _noted(version: ModelVersion, question: _Question, error: ServingError | None, now: int) -> list[Action]:
    cause = f"Model '{version.name}' version {version.version} is not ready: {error}"
    said: list[Action] = [] if error is None else [Say("warning", cause, {})]
    return said + question.answered(error, now)


def _send(call: _Call) -> Send:
    return Send(f"{call.instance.key}/ready", AskReady(ASK_READY, call.number))


def _objection(name: str, message: IsReady) -> ServingError | None:
    if message.error:
        return InternalError(message.error)
    return None if message.ready else Unavailable(f"Model '{name}' is not ready (user-defined check failed).")
