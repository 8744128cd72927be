"""Which responses are kept, where they lie, and which go when there is no room for another. Pure.

The cache has one range of memory, of which it hands out blocks; what lies in them is written and read elsewhere. The
least recently used go first, and none whose bytes somebody looks at.

    reserve -> being filled --fill--> listed: look_up finds it --evicted, forgotten--> freed, when nobody reads it
                    +--drop--> freed
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from metrics.cache_record import CacheRecord
from protocol.messages import Handle, Parameters, TensorRef
from shm.arena import ALIGNMENT, Arena
from shm.segment import HEADER_NBYTES

# Bytes that an entry counts besides its tensors. The objects for it take about 1 KiB; but if that much counted, a cache
# of small responses whose size was chosen for Triton, which counts some 100, would hold a tenth of them.
OVERHEAD = 256


class Key(NamedTuple):
    """``owner`` is whose responses go together, ``digest`` stands for the request."""

    owner: Hashable
    digest: bytes


class Entry:
    """A response's outputs, as whoever gets them sees them."""

    __slots__ = ("charge", "key", "listed", "outputs", "parameters", "readers", "start")

    def __init__(self, key: Key, start: int, charge: int, parameters: Parameters) -> None:
        self.key = key
        self.start = start  # of its block
        self.charge = charge
        self.parameters = parameters
        self.outputs: list[TensorRef] = []
        self.readers = 0  # who fills it is one
        self.listed = False


class TooLarge(Exception):
    """``str(error)`` says how large."""


class ResponseCache:
    """Invariant: an entry has its block, and counts, for as long as it is listed or has readers."""

    def __init__(self, segment: str, record: CacheRecord) -> None:
        """``segment`` has room for ``record.size`` bytes of data."""
        self._segment = segment
        self.record = record
        self._arena = Arena(record.size)
        self._entries: dict[Key, Entry] = {}  # those listed, the least recently used first
        self._of: dict[Hashable, set[Key]] = {}  # those listed or being filled, by owner
        self._filling: dict[Key, Entry] = {}
        self._leases: dict[int, Entry] = {}
        self._last_lease = 0

    # --- out of it --------------------------------------------------------------------------------------------------

    def look_up(self, key: Key) -> Entry | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            self.record.misses += 1
            return None
        self._entries[key] = entry
        self.record.hits += 1
        return entry

    def lend(self, entry: Entry) -> int:
        """The number of a lease of its bytes, which lasts until ``read``."""
        self._last_lease += 1
        self._leases[self._last_lease] = entry
        entry.readers += 1
        return self._last_lease

    def number_from(self, first: int) -> None:
        """The leases to come: beyond any of an earlier broker whose responses somebody may still read."""
        self._last_lease = first

    def read(self, lease: int) -> None:
        self._let_go(self._leases.pop(lease))

    @property
    def lent(self) -> int:
        """Leases that nobody has read to the end."""
        return len(self._leases)

    # --- into it ----------------------------------------------------------------------------------------------------

    def knows(self, key: Key) -> bool:
        """It is there, or will be."""
        return key in self._entries or key in self._filling

    def reserve(self, key: Key, tensors: Sequence[tuple[TensorRef, int]], parameters: Parameters) -> Entry | None:
        """Room for tensors of these sizes; others may have to go. None if all that would have to is being read, or a
        like request has been quicker. Raises TooLarge."""
        offsets, nbytes = layout([size for _, size in tensors])
        charge = nbytes + OVERHEAD
        if charge > self.record.size:
            raise TooLarge(f"Requested byte_size: {charge} is greater than total cache size: {self.record.size}")
        if self.knows(key) or not self._make_room(charge):
            return None
        start = self._allocate(nbytes)
        if start is None:
            return None
        entry = self._filling[key] = Entry(key, start, charge, parameters)
        entry.readers = 1
        self.record.used += charge
        self._of.setdefault(key.owner, set()).add(key)
        entry.outputs = [
            tensor._replace(place=Handle(self._segment, HEADER_NBYTES + start + offset, size), shared=True)
            for (tensor, size), offset in zip(tensors, offsets, strict=True)
        ]
        return entry

    def fill(self, entry: Entry) -> None:
        """Its bytes are there: from now on it is found, unless its owner was forgotten meanwhile."""
        if self._filling.get(entry.key) is entry:
            del self._filling[entry.key]
            self._entries[entry.key] = entry
            entry.listed = True
            self.record.entries += 1
        self._let_go(entry)

    def drop(self, entry: Entry) -> None:
        """It could not be filled."""
        if self._filling.get(entry.key) is entry:
            del self._filling[entry.key]
            self._forget_key(entry.key)
        self._let_go(entry)

    # --- going ------------------------------------------------------------------------------------------------------

    def forget(self, owner: Hashable) -> None:
        """None of its responses is to be found any more."""
        for key in self._of.pop(owner, ()):
            if key in self._entries:
                self._unlist(self._entries[key])
            else:
                del self._filling[key]

    def _unlist(self, entry: Entry) -> None:
        del self._entries[entry.key]
        entry.listed = False
        self.record.entries -= 1
        if not entry.readers:
            self._free(entry)

    def _let_go(self, entry: Entry) -> None:
        entry.readers -= 1
        if not entry.readers and not entry.listed:
            self._free(entry)

    def _free(self, entry: Entry) -> None:
        self._arena.free(entry.start)
        self.record.used -= entry.charge

    def _forget_key(self, key: Key) -> None:
        keys = self._of[key.owner]
        keys.remove(key)
        if not keys:
            del self._of[key.owner]

    def _make_room(self, charge: int) -> bool:
        self._evict(self.record.used + charge - self.record.size)
        return self.record.used + charge <= self.record.size

    def _allocate(self, nbytes: int) -> int | None:
        """Where there is room in all but not in one piece, more has to go."""
        wanted = nbytes
        while True:
            start = self._arena.allocate(nbytes)
            if start is None:
                self._arena.merge()
                start = self._arena.allocate(nbytes)
            if start is not None or not self._evict(wanted):
                return start
            wanted *= 2

    def _evict(self, nbytes: int) -> bool:
        """Entries that count for so much together, or all that can go; whether any could."""
        going: list[Entry] = []
        for entry in self._entries.values():
            if nbytes <= 0:
                break
            if not entry.readers:
                going.append(entry)
                nbytes -= entry.charge
        for entry in going:
            self._forget_key(entry.key)
            self._unlist(entry)
            self.record.evictions += 1
        return bool(going)

    def check(self) -> None:
        """Raises AssertionError if the invariant is broken."""
        self._arena.check()
        filling = list(self._filling.values())
        held = {*self._entries.values(), *filling, *self._leases.values()}
        assert all(entry.listed for entry in self._entries.values())
        assert all(entry.readers for entry in filling)
        assert {key for keys in self._of.values() for key in keys} == self._entries.keys() | self._filling.keys()
        assert not self._entries.keys() & self._filling.keys()
        assert self.record.entries == len(self._entries)
        used = sum(entry.charge for entry in held)
        assert used <= self.record.used <= self.record.size, (used, self.record.used)


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where tensors of these sizes lie in one block, each aligned, and its size."""
    offsets: list[int] = []
    end = 0
    for size in sizes:
        offsets.append(end)
        end += size + -size % ALIGNMENT
    return offsets, end
