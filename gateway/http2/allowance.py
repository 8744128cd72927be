"""How often a peer may do what costs us work and brings it nothing (pings, resets, settings): a bucket of tokens."""

from __future__ import annotations


class Allowance:
    """Invariant: 0 <= ``_left`` <= ``_burst``."""

    def __init__(self, burst: int, per_second: float) -> None:
        self._burst = self._left = float(burst)
        self._per_second = per_second
        self._since: float | None = None

    def spend(self, now: float) -> bool:
        """False: the peer has used up what it may do."""
        if self._since is not None:
            self._left = min(self._burst, self._left + (now - self._since) * self._per_second)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
