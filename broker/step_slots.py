"""How many requests of each step of an ensemble run at a time, over all requests to it, and who comes next."""

from __future__ import annotations

from typing import Protocol


class Waiter(Protocol):
    """A request to the ensemble; its identity is all that counts."""

    def __hash__(self) -> int: ...


class StepSlots:
    """Invariants: no more than ``limit`` of a step run, but for those that were forced; nobody is in a line twice, or
    waits for what is free."""

    __slots__ = ("_lines", "_running", "granted", "limit")

    def __init__(self, limit: int) -> None:
        """``limit`` 0 is none."""
        self.limit = limit
        self.granted = 0  # so far
        self._running: dict[int, int] = {}  # by step
        self._lines: dict[int, dict[Waiter, None]] = {}  # by step, those who wait, in order; no line is empty

    def take(self, step: int, waiter: Waiter) -> bool:
        """Whether it may run now. If not, it stands in line from now on, behind those who do."""
        if not self.limit:
            return True
        if self.next(step) != waiter and (step in self._lines or not self._has_room(step)):
            self._lines.setdefault(step, {})[waiter] = None
            return False
        self.force(step, waiter)
        return True

    def force(self, step: int, waiter: Waiter) -> None:
        """It runs whatever the limit."""
        self._leave(step, waiter)
        self.granted += 1
        self._running[step] = self._running.get(step, 0) + 1

    def free(self, step: int) -> None:
        if self.limit:
            self._running[step] -= 1

    def next(self, step: int) -> Waiter | None:
        """Who is the first in line, if there is room."""
        line = self._lines.get(step)
        return next(iter(line)) if line and self._has_room(step) else None

    def forget(self, waiter: Waiter) -> None:
        """It stands in no line any more."""
        for step in list(self._lines):
            self._leave(step, waiter)

    def first(self) -> list[tuple[int, Waiter]]:
        """The first in each line, with its step."""
        return [(step, next(iter(line))) for step, line in self._lines.items()]

    def running(self, step: int) -> int:
        return self._running.get(step, 0)

    def _has_room(self, step: int) -> bool:
        return self.running(step) < self.limit

    def _leave(self, step: int, waiter: Waiter) -> None:
        line = self._lines.get(step)
        if line is not None:
            line.pop(waiter, None)
            if not line:
                del self._lines[step]

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert all(count >= 0 for count in self._running.values())
        assert all(self._lines.values())
        assert not any(self.next(step) for step in self._lines), "somebody waits for what is free"
