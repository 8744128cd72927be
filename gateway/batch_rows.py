"""Where the inputs of requests lie that may make one batch: side by side, in the order in which they came.

    slab   | A of request 0 | A of 1 | A of 2 | ... | B of request 0 | B of 1 | B of 2 | ... |

So a model that takes consecutive requests finds each input of them as one array. Slabs are blocks of the gateway's
store. There is one in use for each combination of sizes; it grows with the requests that are under way at once.
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from shm.arena import ALIGNMENT
from shm.errors import ShmFull
from shm.ring import Ring
from shm.store import Block, Store

# Of a request's inputs. Below, a slot, which takes 1 us more than a block of its own, costs about what it saves.
ROWS_FROM_NBYTES = 64 << 10
_FIRST_SLOTS = 8  # but no more than 4 MiB, unless two requests take that
_FIRST_NBYTES = 4 << 20
_LARGEST_NBYTES = 64 << 20
_LEFT = 4  # a slab takes no more than this part of the shared memory that is left
_SLABS = 4  # of a model version: what more there is goes to blocks of its own

Sizes = tuple[int, ...]  # of a request's inputs, in bytes


class Slot(NamedTuple):
    """The rows of one request: of each input its offset in the segment, and a view."""

    rows: list[tuple[int, memoryview]]
    block: Block  # the row of the first input; freeing it frees all


class _Slab:
    """One block of the store, in slots. ``free`` gives a slot back, and of a slab that is retired the block with the
    last one."""

    __slots__ = ("_block", "_is_retired", "_sizes", "_starts", "_store", "ring", "used")

    def __init__(self, store: Store, sizes: Sizes, nslots: int) -> None:
        """Raises ShmFull."""
        self._store = store
        self._sizes = sizes
        self._starts = list(accumulate((nslots * nbytes for nbytes in sizes[:-1]), initial=0))
        self._block = store.allocate(nslots * sum(sizes))
        self._is_retired = False
        self.ring = Ring(nslots)
        self.used = True  # since the last ``trim``

    @property
    def is_busy(self) -> bool:
        return 2 * len(self.ring) > self.ring.nslots

    def take(self) -> Slot | None:
        number = self.ring.allocate()
        if number is None:
            return None
        self.used = True
        block = self._block
        rows = []
        for start, nbytes in zip(self._starts, self._sizes, strict=True):
            start += number * nbytes
            rows.append((block.offset + start, block.view[start : start + nbytes]))
        return Slot(rows, Block(block.segment, rows[0][0], self._sizes[0], rows[0][1], self))

    def free(self, block: Block) -> None:
        self.ring.free((block.offset - self._block.offset) // self._sizes[0])
        self._end()

    def retire(self) -> None:
        self._is_retired = True
        self._end()

    def _end(self) -> None:
        if self._is_retired and not len(self.ring):
            self._store.free(self._block)


class BatchRows:
    """Of one model version."""

    def __init__(self, store: Store, max_batch_size: int) -> None:
        self._store = store
        self._most_slots = 4 * max_batch_size
        self._slabs: dict[Sizes, _Slab] = {}
        self._retired: list[_Slab] = []

    def take(self, sizes: Sizes) -> Slot | None:
        """None where the tensors are to lie elsewhere: of odd sizes, of too many, or if no memory is left."""
        slab = self._slabs.get(sizes)
        if slab is None:
            if len(self._slabs) >= _SLABS or any(nbytes % ALIGNMENT or not nbytes for nbytes in sizes):
                return None
            slab = self._begin(sizes, max(2, min(_FIRST_SLOTS, _FIRST_NBYTES // sum(sizes))))
        elif not slab.ring.has_room:
            slab = self._replace(slab, sizes)
        return None if slab is None else slab.take()

    def _replace(self, slab: _Slab, sizes: Sizes) -> _Slab | None:
        """One that is full, or that is stopped by a request which stays. Not before the last one that was replaced is
        free again, so that what models keep does not keep more and more."""
        self._retired = [one for one in self._retired if len(one.ring)]
        nslots = slab.ring.nslots
        if self._retired or (slab.is_busy and nslots >= self._most(sizes)):
            return None
        new = self._begin(sizes, 4 * nslots if slab.is_busy else nslots)
        if new is not None:
            self._retired.append(slab)
            slab.retire()
        return new

    def _begin(self, sizes: Sizes, nslots: int) -> _Slab | None:
        nslots = min(nslots, self._most(sizes))
        if nslots < 2 or nslots * sum(sizes) * _LEFT > self._store.available():
            return None
        try:
            slab = _Slab(self._store, sizes, nslots)
        except ShmFull:
            return None
        self._slabs[sizes] = slab
        return slab

    def _most(self, sizes: Sizes) -> int:
        return min(self._most_slots, _LARGEST_NBYTES // sum(sizes))

    def trim(self) -> bool:
        """Now and then: slabs that have not been used since the last time go. False if none is left."""
        for sizes, slab in list(self._slabs.items()):
            if not slab.used and not len(slab.ring):
                slab.retire()
                del self._slabs[sizes]
            slab.used = False
        return bool(self._slabs)

    def check(self) -> None:
        """Raises AssertionError unless the books are in order."""
        for sizes, slab in self._slabs.items():
            slab.ring.check()
            assert slab.ring.nslots <= self._most(sizes)
        assert len(self._slabs) <= _SLABS
