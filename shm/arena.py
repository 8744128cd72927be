"""Decides which bytes of one range are in use; touches no memory.

Free chunks sit in bins by exact size, the last freed on top, so that a steady load gets the same (warm) chunk back in
constant time. Neighbours are not joined when freed, only by ``merge``: joining at once cost more than all the rest.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Dict, Iterator, List, Optional, Tuple

# A cache line; enough for any SIMD load. Behind n bytes, -n % ALIGNMENT more stay unused: written out wherever tensors
# are laid out, as a function for it cost each of them 30 ns more.
ALIGNMENT = 64


class Arena:
    """Invariant: chunks in use and free ones tile the range without gap or overlap; all are multiples of ALIGNMENT."""

    __slots__ = ("_bins", "_live", "_sizes", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes // ALIGNMENT * ALIGNMENT
        self._live: Dict[int, int] = {}  # offset to size
        self._bins: Dict[int, List[int]] = {}  # size to offsets; a bin may be empty
        self._sizes: List[int] = []  # the bins' sizes, ascending
        if self.nbytes:
            self._bin(self.nbytes).append(0)

    @property
    def is_empty(self) -> bool:
        return not self._live

    @property
    def free_bytes(self) -> int:
        return self.nbytes - sum(self._live.values())

    def allocate(self, nbytes: int) -> Optional[int]:
        """The offset of ``nbytes``, aligned; None if no free chunk is that large (after ``merge`` one may be)."""
        if nbytes < 0:
            raise ValueError("a size is negative")
        size = nbytes + -nbytes % ALIGNMENT or ALIGNMENT
        offsets = self._bins.get(size)
        offset = offsets.pop() if offsets else self._carve(size)
        if offset is not None:
            self._live[offset] = size
        return offset

    def free(self, offset: int) -> None:
        """Give back what ``allocate`` returned. Raises ValueError for anything else, so for a second time too."""
        size = self._live.pop(offset, None)
        if size is None:
            raise ValueError("no chunk in use starts at {}".format(offset))
        offsets = self._bins.get(size)
        if offsets is None:
            offsets = self._bin(size)
        offsets.append(offset)

    def merge(self) -> None:
        """Join free neighbours. Takes time in proportion to the number of free chunks."""
        joined: List[Tuple[int, int]] = []
        for offset, size in sorted(self._free_chunks()):
            if joined and sum(joined[-1]) == offset:
                offset, size = joined[-1][0], joined.pop()[1] + size
            joined.append((offset, size))
        self._bins.clear()
        self._sizes.clear()
        for offset, size in reversed(joined):  # the lowest ends on top: it is the likeliest to be warm
            self._bin(size).append(offset)

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        end = 0
        for offset, size in sorted([*self._live.items(), *self._free_chunks()]):
            assert offset == end, "gap or overlap at {}".format(end)
            assert size > 0 and size % ALIGNMENT == 0, "odd size {}".format(size)
            end = offset + size
        assert end == self.nbytes, "the range ends at {}, not {}".format(end, self.nbytes)
        assert self._sizes == sorted(self._bins), "the list of sizes does not match the bins"

    def _free_chunks(self) -> Iterator[Tuple[int, int]]:
        return ((offset, size) for size, offsets in self._bins.items() for offset in offsets)

    def _bin(self, size: int) -> List[int]:
        offsets = self._bins.get(size)
        if offsets is None:
            offsets = self._bins[size] = []
            self._sizes.insert(bisect_left(self._sizes, size), size)
        return offsets

    def _carve(self, size: int) -> Optional[int]:
        """Cut from the smallest free chunk that is large enough, dropping the empty bins met on the way."""
        index = bisect_left(self._sizes, size)
        while index < len(self._sizes):
            larger = self._sizes[index]
            if self._bins[larger]:
                offset = self._bins[larger].pop()
                if larger > size:
                    self._bin(larger - size).append(offset + size)
                return offset
            del self._sizes[index], self._bins[larger]
        return None
