"""Decides which slots of a circle are in use; touches no memory.

Slots go out in order, so those that were given out one after the other lie one after the other, but for the step from
the last slot to the first. They may come back in any order; one that stays out stops the circle when it is reached.
"""

from __future__ import annotations

from typing import Dict, Optional


class Ring:
    """Invariant: the slots in use lie, in the order they were given out, behind ``_next`` on the way around."""

    __slots__ = ("_next", "_used", "nslots")

    def __init__(self, nslots: int) -> None:
        if nslots < 1:
            raise ValueError("a ring has one slot at least")
        self.nslots = nslots
        self._next = 0
        self._used: Dict[int, None] = {}  # oldest first

    def __len__(self) -> int:
        """Slots in use."""
        return len(self._used)

    @property
    def has_room(self) -> bool:
        return not self._used or self._next not in self._used

    def allocate(self) -> Optional[int]:
        """The next slot; None while that one is in use. When none is, the first: its memory is the likeliest to be
        warm."""
        if not self._used:
            self._next = 0
        slot = self._next
        if slot in self._used:
            return None
        self._used[slot] = None
        self._next = (slot + 1) % self.nslots
        return slot

    def free(self, slot: int) -> None:
        """Raises ValueError for one that is not in use."""
        if slot not in self._used:
            raise ValueError("slot {} is not in use".format(slot))
        del self._used[slot]

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        ages = [(self._next - 1 - slot) % self.nslots for slot in self._used]
        assert ages == sorted(ages, reverse=True), "slots out of order: {}".format(list(self._used))
        assert all(0 <= slot < self.nslots for slot in (*self._used, self._next))
