"""Keeps a flood of one event from becoming a flood of log lines. Pure: the time is an argument."""

from __future__ import annotations

from collections.abc import Hashable

_MAX_KEYS = 1024  # beyond it, keys that are quiet by now are forgotten


class RateLimit:
    """Admits each key a number of times per second and counts what it turns away."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._windows: dict[Hashable, _Window] = {}

    def admit(self, key: Hashable, now: float) -> int | None:
        """How many of this key were turned away since the last one admitted, or None: turn this one away too."""
        window = self._windows.get(key)
        if window is None:
            window = self._open(key, now)
        elif now - window.since >= 1.0:
            window.since, window.admitted = now, 0
        if window.admitted >= self._per_second:
            window.turned_away += 1
            return None
        window.admitted += 1
        turned_away, window.turned_away = window.turned_away, 0
        return turned_away

    def _open(self, key: Hashable, now: float) -> _Window:
        if len(self._windows) >= _MAX_KEYS:
            live = {k: w for k, w in self._windows.items() if now - w.since < 1.0}
            self._windows = live if len(live) < _MAX_KEYS else {}
        window = self._windows[key] = _Window(now)
        return window


class _Window:
    __slots__ = ("admitted", "since", "turned_away")

    def __init__(self, since: float) -> None:
        self.since = since
        self.admitted = 0
        self.turned_away = 0
