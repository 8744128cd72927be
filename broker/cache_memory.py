"""Reads and writes bytes for the response cache: what a request brings is digested, what answers it is copied.

Small ones at once; large ones in threads, whose work holds no lock of the interpreter, so that the event loop goes on.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from broker.events import Keep, Kept, LookedUp, LookUp
from broker.queue import Frames
from broker.response_cache import layout
from protocol.messages import Handle, TensorPlace, TensorRef
from shm.errors import BadHandle, ShmFull
from shm.sparse import SparseSegment
from shm.store import Reader

# A quarter of a millisecond at most for either. SHA-256 does 1.8 GB/s where the CPU helps (0.5 else), BLAKE2 0.9.
AT_ONCE_NBYTES = 256 << 10
_THREADS = 2

Tell = Callable[[LookedUp | Kept], None]


class _Views(NamedTuple):
    """Of tensors, in their order."""

    tensors: Sequence[TensorRef]
    data: list[memoryview | bytes]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.data))


class CacheMemory:
    """Owns the cache's segment. What it answers is told in the thread that calls ``look_up`` and ``keep``, or by
    ``tell_later`` from another."""

    def __init__(self, segment: SparseSegment, reader: Reader) -> None:
        self._segment = segment
        self._reader = reader
        self._pool = ThreadPoolExecutor(_THREADS, "response-cache")

    def look_up(self, action: LookUp, tell: Tell, tell_later: Tell) -> None:
        request = action.pending.request
        try:
            views = self._views(sorted(request.inputs, key=lambda tensor: tensor.name), action.pending.frames)
        except (BadHandle, IndexError):
            tell(LookedUp(request.id, b"", 0))
            return

        def work() -> LookedUp:
            begun_ns = time.monotonic_ns()
            digest = _digest(action, views)
            return LookedUp(request.id, digest, time.monotonic_ns() - begun_ns)

        self._do(work, views.nbytes, tell, tell_later)

    def keep(self, action: Keep, tell: Tell, tell_later: Tell) -> None:
        try:
            views = self._views(action.outputs, action.frames)
        except (BadHandle, IndexError):
            tell(Kept(action.request, 0, "its outputs cannot be read"))
            return
        offsets, _ = layout([len(data) for data in views.data])

        def work() -> Kept:
            begun_ns = time.monotonic_ns()
            error = ""
            try:
                self._segment.write(action.start, list(zip(offsets, views.data, strict=True)))
            except ShmFull as full:
                error = str(full)
            return Kept(action.request, time.monotonic_ns() - begun_ns, error)

        self._do(work, views.nbytes, tell, tell_later)

    def _do(self, work: Callable[[], LookedUp] | Callable[[], Kept], nbytes: int, tell: Tell, tell_later: Tell) -> None:
        if nbytes <= AT_ONCE_NBYTES:
            tell(work())
        else:
            self._pool.submit(lambda: tell_later(work()))

    def _views(self, tensors: Sequence[TensorRef], frames: Frames) -> _Views:
        """Raises BadHandle or IndexError."""
        return _Views(tensors, [self._bytes(tensor.place, frames) for tensor in tensors])

    def _bytes(self, place: TensorPlace, frames: Frames) -> memoryview | bytes:
        if isinstance(place, Handle):
            return self._reader.view(*place)
        return frames[place] if isinstance(place, int) else place

    def read(self, handle: Handle) -> bytes:
        """A copy of what lies there, for who does not share the memory; b"" if nothing does."""
        try:
            return bytes(self._reader.view(*handle))
        except BadHandle:
            return b""

    def close(self) -> None:
        self._pool.shutdown()
        self._segment.close()


def _digest(action: LookUp, views: _Views) -> bytes:
    """The description says how long each part of the rest is, so no two requests become the same bytes."""
    request = action.pending.request
    described = [(tensor.name, tensor.datatype, tensor.shape, len(data)) for tensor, data in zip(*views, strict=True)]
    head = msgspec.msgpack.encode((described, action.outputs, sorted(request.parameters.items())))
    digest = hashlib.sha256(len(head).to_bytes(8, "little") + head)
    for data in views.data:
        digest.update(data)
    return digest.digest()
