"""Requests that an earlier broker had taken: which may be sent again, and which may have been executed. Pure.

A request that no stub has had may be sent again; that is known once every stub host that there was has said what it
holds. What a stub has had, or may have had, is answered if the stub still does, and else lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple


class Verdict(NamedTuple):
    """What becomes of the requests of a gateway."""

    gateway: str
    again: list[int]
    lost: list[int]


class _Question(NamedTuple):
    """``hosts`` None: it has come too late for an answer."""

    requests: list[int]
    hosts: frozenset[str] | None
    deadline_ns: int


class UnansweredRequests:
    def __init__(self, patience_ns: int) -> None:
        """How long a host that there was may take to say what it holds."""
        self._patience_ns = patience_ns
        self._handed: set[int] = set()  # to stubs, by an earlier broker
        self._questions: dict[str, _Question] = {}  # by gateway
        self._is_closed = False

    def __bool__(self) -> bool:
        """Whether any gateway waits for a verdict."""
        return bool(self._questions)

    def handed(self, requests: Iterable[int]) -> None:
        """A host has them in its stubs, or has had them."""
        if not self._is_closed:
            self._handed.update(requests)

    def close(self) -> None:
        """Whoever had asked the earlier broker has come: what stubs had is forgotten. Who comes yet has lost all."""
        self._is_closed = True
        self._handed.clear()

    def ask(self, gateway: str, requests: list[int], hosts: Iterable[str], now: int) -> None:
        """``requests`` have no answer, and nobody here will give one; ``hosts`` may have had them."""
        if self._is_closed:
            self._questions[gateway] = _Question(requests, None, now)
        else:
            self._questions[gateway] = _Question(requests, frozenset(hosts), now + self._patience_ns)

    def forget(self, gateway: str) -> None:
        self._questions.pop(gateway, None)

    def verdicts(self, hosts: Set[str], now: int) -> list[Verdict]:
        """Those that can be given, once ``hosts`` have said what they hold."""
        found = []
        for gateway, question in list(self._questions.items()):
            if question.hosts is not None and question.hosts <= hosts:
                again = [id for id in question.requests if id not in self._handed]
                lost = [id for id in question.requests if id in self._handed]
            elif question.deadline_ns <= now:
                again, lost = [], question.requests
            else:
                continue
            del self._questions[gateway]
            found.append(Verdict(gateway, again, lost))
        return found
