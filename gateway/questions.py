"""What a gateway has asked a broker in another process and has no answer to yet."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import NamedTuple, Protocol

import structlog

from protocol.errors import ServingError, Unavailable, error_of
from protocol.services import ASK, Ask, Said

log = structlog.get_logger()

TIMEOUT_S = 20.0  # models with ``is_ready`` have ten seconds of their own

Then = Callable[[Said | ServingError], None]


class Timer(Protocol):
    def cancel(self) -> None: ...


class Loop(Protocol):
    """What is needed of an event loop."""

    def call_soon(self, callback: Callable[[], None]) -> object: ...

    def call_later(self, delay: float, callback: Callable[..., None], *args: int) -> Timer: ...


class _Asked(NamedTuple):
    then: Then
    timer: Timer | None


class Questions:
    """Invariant: each ``then`` is called once, with the answer or with what it says, or we do, went wrong."""

    def __init__(self, loop: Loop, send: Callable[[Ask], None]) -> None:
        self._loop = loop
        self._send = send
        self._asked: dict[int, _Asked] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, ask: Ask, then: Then, timeout_s: float | None = TIMEOUT_S) -> None:
        """``ask`` has no number yet. Without a timeout it takes as long as it takes, as loads do."""
        number = next(self._numbers)
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._too_late, number)
        self._asked[number] = _Asked(then, timer)
        self._send(ask._replace(kind=ASK, number=number))

    def said(self, said: Said) -> None:
        asked = self._asked.pop(said.number, None)
        if asked is not None:  # else it has taken too long
            _tell(asked, said if said.error is None else error_of(*said.error))

    def fail_all(self, error: ServingError) -> None:
        failed, self._asked = self._asked, {}
        for asked in failed.values():
            _tell(asked, error)

    def fail_endless(self, error: ServingError) -> None:
        """Those that have no timeout."""
        for number in [number for number, asked in self._asked.items() if asked.timer is None]:
            _tell(self._asked.pop(number), error)

    def _too_late(self, number: int) -> None:
        _tell(self._asked.pop(number), Unavailable("the broker does not answer"))


def _tell(asked: _Asked, said: Said | ServingError) -> None:
    if asked.timer is not None:
        asked.timer.cancel()
    try:
        asked.then(said)
    except Exception as fault:  # of one front's one question: those behind it must have their answers
        log.error("an answer was lost", exc_info=fault)
