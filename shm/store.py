"""A process's own shared memory (Store) and its view of that of others (Reader).

A Store is not safe for use by several threads at once: it has one owner thread, or a lock. A Reader is.
"""

from __future__ import annotations

import os
from typing import Dict, List, NamedTuple, Optional, Protocol

from .arena import Arena
from .errors import BadHandle, BadSegment, ShmFull
from .segment import HEADER_NBYTES, Segment, map_private, segment_size

LARGEST_SHARED_NBYTES = 64 << 20  # of a segment for many blocks; a larger block has a segment to itself
KEEP_EMPTY_S = 10.0
# From here on others' bytes are looked at through a private mapping; below, a copy is faster than the faults of new
# pages.
PRIVATE_NBYTES = 16 << 20


class Part(Protocol):
    """Of a block of the store, which its owner gives out in pieces."""

    def free(self, block: Block) -> None: ...


class Block(NamedTuple):
    """Memory that its owner may fill: ``view`` spans exactly ``nbytes``. The first three make a handle for others."""

    segment: str
    offset: int
    nbytes: int
    view: memoryview
    of: Optional[Part] = None  # who frees it; None: the store

    def __repr__(self) -> str:  # a repr ends in logs and tracebacks, a segment's name must not
        return "Block(nbytes={})".format(self.nbytes)


class _Region:
    """A segment and the allocator over its data."""

    __slots__ = ("arena", "buf", "empty_since", "name", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.name = segment.name
        self.buf = segment.buf
        self.arena = Arena(segment.size - HEADER_NBYTES)
        self.empty_since: Optional[float] = None  # as seen by ``trim``; None after any use


class Store:
    """Creates, and alone frees, blocks in segments of this process. Segments come with demand, each twice the last.

    Blocks are sought in the oldest segment first, so that the younger ones fall empty and can be given back.
    """

    def __init__(self, directory: str, initial: int = 1 << 20, limit: Optional[int] = None, tag: str = "") -> None:
        """``tag``: of the segments (``Segment.create``)."""
        self._directory = directory
        self._tag = tag
        self._initial = self._next_nbytes = initial
        self._limit = limit
        self._regions: List[_Region] = []
        self._by_name: Dict[str, _Region] = {}
        self._closed = False

    def available(self) -> int:
        """Bytes of shared memory that no segment has yet, of whatever process."""
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize

    @property
    def nbytes(self) -> int:
        """Of all segments, headers included."""
        return sum(region.segment.size for region in self._regions)

    def first(self) -> Segment:
        """The segment whose status word speaks for this process; it lives until ``close``. Raises ShmFull."""
        return (self._regions[0] if self._regions else self._grow(0)).segment

    def allocate(self, nbytes: int) -> Block:
        """Raises ShmFull."""
        for region in self._regions:
            start = region.arena.allocate(nbytes)
            if start is not None:
                break
        else:
            region, start = self._allocate_hard(nbytes)
        start += HEADER_NBYTES
        region.empty_since = None
        return Block(region.name, start, nbytes, region.buf[start : start + nbytes])

    def view(self, segment: str, offset: int, nbytes: int) -> memoryview:
        """The bytes of a handle into this store, for readers who do not share its memory. Raises BadHandle."""
        region = self._by_name.get(segment)
        if region is None or not HEADER_NBYTES <= offset <= offset + nbytes <= len(region.buf):
            raise BadHandle("a tensor handle lies in no segment of this process")
        return region.buf[offset : offset + nbytes]

    def free(self, block: Block) -> None:
        """Raises ValueError if the block is free already. After ``close`` there is nothing left to free."""
        segment, offset, _, _, of = block
        if of is not None:
            of.free(block)
            return
        region = self._by_name.get(segment)
        if region is not None:
            region.arena.free(offset - HEADER_NBYTES)
        elif not self._closed:
            raise ValueError("a block is of another store or free already")

    def retag(self, tag: str) -> bool:
        """Give the segments that there are back; those to come have another tag. False, and nothing has changed, while
        a block is in use."""
        for region in self._regions:
            region.arena.merge()
        if not all(region.arena.is_empty for region in self._regions):
            return False
        while self._regions:
            self._drop(self._regions.pop())
        self._tag = tag
        return True

    def trim(self, now: float) -> None:
        """Give back segments without a block for ten seconds, all but the first. ``now`` is of any steady clock."""
        for region in self._regions[:]:
            region.arena.merge()
            if not region.arena.is_empty or region is self._regions[0]:
                continue
            if region.empty_since is None:
                region.empty_since = now
            elif now - region.empty_since >= KEEP_EMPTY_S:
                self._regions.remove(region)
                self._drop(region)

    def close(self) -> None:
        """Unlink everything. Views of blocks stay valid; later calls of ``allocate`` raise ShmFull."""
        self._closed = True
        while self._regions:
            self._drop(self._regions.pop())

    def check(self) -> None:
        """Raise AssertionError unless the books are in order."""
        assert {region.name: region for region in self._regions} == self._by_name
        for region in self._regions:
            region.arena.check()

    def _allocate_hard(self, nbytes: int) -> tuple[_Region, int]:
        self.first()  # it is never given back, so it must not take its size from one large block
        for region in self._regions:
            region.arena.merge()
            start = region.arena.allocate(nbytes)
            if start is not None:
                return region, start
        region = self._grow(nbytes)
        start = region.arena.allocate(nbytes)
        assert start is not None
        return region, start

    def _grow(self, nbytes: int) -> _Region:
        if self._closed:
            raise ShmFull("no shared memory: the store is closed")
        region = _Region(self._create(nbytes))
        self._regions.append(region)
        self._by_name[region.name] = region
        return region

    def _create(self, nbytes: int) -> Segment:
        """Room for ``nbytes`` and, while memory lasts, for twice what the last segment held."""
        generous = max(self._next_nbytes, nbytes)
        if self._limit is None or self.nbytes + segment_size(generous) <= self._limit:
            try:
                segment = Segment.create(self._directory, generous, tag=self._tag)
                self._next_nbytes = min(2 * self._next_nbytes, LARGEST_SHARED_NBYTES)
                return segment
            except ShmFull:
                self._next_nbytes = self._initial  # /dev/shm holds 64 MiB in a default container
        if self._limit is not None and self.nbytes + segment_size(nbytes) > self._limit:
            raise ShmFull("no shared memory: the limit of {} bytes is reached".format(self._limit))
        return Segment.create(self._directory, nbytes, tag=self._tag)

    def _drop(self, region: _Region) -> None:
        del self._by_name[region.name]
        region.segment.unlink()
        region.segment.close()


class Reader:
    """Views of other processes' blocks, by handle. Maps each segment once and believes nothing that a peer says."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._segments: Dict[str, Segment] = {}
        self._buffers: Dict[str, memoryview] = {}

    def view(self, segment: str, offset: int, nbytes: int) -> memoryview:
        """The bytes of a handle, writable and uncopied; their owner says how long they mean anything.

        Raises BadHandle.
        """
        try:
            buffer = self._buffers.get(segment)
            if buffer is None:
                buffer = self._attach(segment)
            if HEADER_NBYTES <= offset <= offset + nbytes <= len(buffer):
                return buffer[offset : offset + nbytes]
        except (TypeError, ValueError):  # a peer's integers need not be any; another thread has just forgotten it
            pass
        raise BadHandle("a tensor handle lies outside its segment")

    def view_shared(self, segment: str, offset: int, nbytes: int) -> memoryview:
        """The same, of bytes that others look at, too: a copy-on-write view if it is large, else not to be written to.

        The lease must last as long as a view does."""
        view = self.view(segment, offset, nbytes)
        if nbytes < PRIVATE_NBYTES:
            return view
        try:
            return map_private(self._directory, segment, offset, nbytes)
        except OSError:  # its owner has died, or there is no room for a mapping
            return memoryview(bytearray(view))

    def forget(self, segment: str) -> None:
        """Unmap one segment, once the views of it are gone."""
        found = self._segments.pop(segment, None)
        if found is not None:
            del self._buffers[segment]
            found.close()

    def trim(self) -> None:
        """Unmap segments that their owners have unlinked: nothing in them is on lease any more."""
        for name in [name for name in list(self._segments) if not os.path.exists(os.path.join(self._directory, name))]:
            self.forget(name)

    def close(self) -> None:
        for name in list(self._segments):
            self.forget(name)

    def _attach(self, name: str) -> memoryview:
        try:
            segment = Segment.attach(self._directory, name)
        except BadSegment as error:
            raise BadHandle("a tensor handle names no readable segment: {}".format(error)) from None
        self._segments[name] = segment
        self._buffers[name] = segment.buf
        return segment.buf
