"""Who may still read which block. Pure; blocks are opaque and are handed back when their lease ends."""

from __future__ import annotations

from typing import Dict, Generic, List, Optional, Set, Tuple, TypeVar

T = TypeVar("T")


class Leases(Generic[T]):
    """Invariant: every lease has one holder, and every holder known here has a lease.

    A lease ends once: by its reader's release, or with its holder. Ending it again is no error, because a release may
    be on its way while its sender dies.
    """

    __slots__ = ("_by_holder", "_granted")

    def __init__(self) -> None:
        self._granted: Dict[int, Tuple[T, str]] = {}
        self._by_holder: Dict[str, Set[int]] = {}

    def __len__(self) -> int:
        return len(self._granted)

    def grant(self, lease: int, block: T, holder: str) -> None:
        """Raises ValueError for a number that is in use."""
        if lease in self._granted:
            raise ValueError("lease {} is granted already".format(lease))
        self._granted[lease] = (block, holder)
        held = self._by_holder.get(holder)
        if held is None:
            held = self._by_holder[holder] = set()
        held.add(lease)

    def end(self, lease: int) -> Optional[T]:
        """The block to free, None if the lease has ended before."""
        granted = self._granted.pop(lease, None)
        if granted is None:
            return None
        block, holder = granted
        held = self._by_holder[holder]
        held.remove(lease)
        if not held:
            del self._by_holder[holder]
        return block

    def end_holder(self, holder: str) -> List[T]:
        """All blocks of a holder that is gone, to be freed."""
        return [self._granted.pop(lease)[0] for lease in self._by_holder.pop(holder, ())]

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        held = {lease: holder for holder, leases in self._by_holder.items() for lease in leases}
        assert held == {lease: holder for lease, (_, holder) in self._granted.items()}, "holders and leases differ"
        assert all(self._by_holder.values()), "a holder without a lease"
