"""The end of a turn of the event loop, at which all that it has brought is acted upon together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Soon: TypeAlias = Callable[[Callable[[], None]], object]


class Turn:
    """``soon`` is the event loop's call_soon, but for what messages lead to while they are read: that is done when all
    of them are, before the loop goes round, which costs as much as a message does."""

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()
        self._is_reading = False

    def soon(self, callback: Callable[[], None]) -> None:
        if not self._due and not self._is_reading:
            asyncio.get_running_loop().call_soon(self.end)
        self._due.append(callback)

    def reads(self) -> None:
        """Messages are read, until ``end``."""
        self._is_reading = True

    def end(self) -> None:
        """Does what is due, and what comes of it."""
        self._is_reading = True
        try:
            while self._due:
                self._due.popleft()()
        finally:
            self._is_reading = False
            if self._due:  # after one that has raised
                asyncio.get_running_loop().call_soon(self.end)
