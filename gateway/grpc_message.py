"""gRPC's messages in the DATA of a stream, which is cut anywhere.

    | compressed, 8 bits | nbytes, 32 | message, `nbytes` bytes | compressed | ...

A small message is collected as it comes. A large one gets memory of its own, of which pages exist only once they are
written, so that a client costs what it sends, not what it announces; ``room`` is where the rest may be received.
Whoever is given a message must be done with it when it returns: the memory serves the next one.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from gateway.grpc_head import IDENTITY, RESOURCE_EXHAUSTED, UNIMPLEMENTED, GrpcError
from protocol.errors import InternalError

MAX_NBYTES = 2**31 - 1
LARGE_NBYTES = 64 << 10  # from here on a message is worth memory, or writes, of its own
_KEPT_NBYTES = 64 << 20
PREFIX = Struct(">BL")
_WINDOW_BITS = {b"gzip": 31, b"deflate": 15}

Buffer = bytes | memoryview


class LargeMessage(NamedTuple):
    """One to be sent, in pieces that are valid until ``release``, which whoever takes it must call once."""

    pieces: list[Buffer]
    nbytes: int
    release: Callable[[], None]


Message = bytes | LargeMessage


def message_of(pieces: list[Buffer], release: Callable[[], None]) -> Message:
    """The pieces as one message; a small one is copied and its pieces released."""
    nbytes = sum(map(len, pieces))
    if nbytes >= LARGE_NBYTES:
        return LargeMessage(pieces, nbytes, release)
    message = b"".join(pieces)
    release()
    return message


class Memory:
    """Where large messages lie. To get 16 MiB of pages takes 12 ms, to fill them 2: those of the last one are kept."""

    def __init__(self) -> None:
        self._spare: mmap.mmap | None = None
        self._used = False  # since the last ``trim``

    def take(self, nbytes: int) -> memoryview:
        """Raises GrpcError if there is none."""
        spare, self._spare = self._spare, None
        if spare is None or len(spare) < nbytes:
            try:
                spare = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            except OSError:
                raise GrpcError(RESOURCE_EXHAUSTED, f"no memory for a message of {nbytes} bytes") from None
        return memoryview(spare)[:nbytes]

    def give_back(self, memory: memoryview) -> None:
        """Nobody may look at it any more."""
        pages = memory.obj
        assert isinstance(pages, mmap.mmap)
        if len(pages) <= _KEPT_NBYTES:
            self._spare, self._used = pages, True

    def trim(self) -> None:
        """Now and then: what has not been used since the last time goes back to the system."""
        if not self._used:
            self._spare = None
        self._used = False


class Incoming:
    """``feed`` calls ``on_message`` for each message, in order. It raises GrpcError or InternalError where the bytes
    are no message; nothing may be fed after that."""

    def __init__(self, on_message: Callable[[Buffer], None], encoding: bytes, memory: Memory) -> None:
        self._on_message = on_message
        self._memory = memory
        self._encoding = encoding
        self._begun = bytearray()  # of a prefix or a small message
        self._nbytes = -1  # of the message under way; -1 in a prefix
        self._compressed = 0
        self._room: memoryview | None = None
        self._large: memoryview | None = None

    @property
    def is_idle(self) -> bool:
        """The next byte begins a message."""
        return self._nbytes < 0 and not self._begun

    @property
    def room(self) -> memoryview | None:
        """The unfilled end of a large message."""
        return self._room

    def filled(self, nbytes: int) -> None:
        """So many bytes have been put at the start of ``room``. May raise as ``feed``."""
        assert self._room is not None and self._large is not None
        self._room = self._room[nbytes:]
        if not self._room:
            message, self._large, self._room = self._large, None, None
            self._complete(message)
            self._memory.give_back(message)

    def feed(self, data: Buffer) -> None:
        view = memoryview(data)
        while len(view):
            if self._room is not None:
                nbytes = min(len(self._room), len(view))
                self._room[:nbytes] = view[:nbytes]
                self.filled(nbytes)
            else:
                nbytes = self._feed_small(view)
            view = view[nbytes:]

    def _feed_small(self, view: memoryview) -> int:
        """How many bytes were taken: those of a prefix, of a small message, or of both if they came together."""
        if self._nbytes < 0 and not self._begun and len(view) >= PREFIX.size:
            self._announce(*PREFIX.unpack_from(view))
            end = PREFIX.size + self._nbytes
            if end > len(view) or self._room is not None:
                return PREFIX.size
            self._complete(bytes(view[PREFIX.size : end]))
            return end
        wanted = PREFIX.size if self._nbytes < 0 else self._nbytes
        nbytes = min(wanted - len(self._begun), len(view))
        self._begun += view[:nbytes]
        if len(self._begun) == wanted:
            begun, self._begun = bytes(self._begun), bytearray()
            if self._nbytes >= 0:
                self._complete(begun)
            else:
                self._announce(*PREFIX.unpack(begun))
                if not self._nbytes:
                    self._complete(b"")
        return nbytes

    def _announce(self, compressed: int, nbytes: int) -> None:
        if nbytes > MAX_NBYTES:
            raise _too_large(nbytes)
        if compressed and self._encoding not in _WINDOW_BITS:
            raise _unknown_encoding(self._encoding)
        self._compressed, self._nbytes = compressed, nbytes
        if nbytes >= LARGE_NBYTES:
            self._large = self._room = self._memory.take(nbytes)

    def _complete(self, message: Buffer) -> None:
        self._nbytes = -1
        if self._compressed and len(message):  # some clients flag what they had nothing to compress of
            message = _inflated(message, _WINDOW_BITS[self._encoding])
        self._on_message(message)


def _inflated(data: Buffer, window_bits: int) -> bytes:
    inflater = zlib.decompressobj(window_bits)
    try:
        message = inflater.decompress(data, MAX_NBYTES)
    except zlib.error as error:
        raise InternalError(f"Failed to decompress the message: {error}") from None
    if inflater.unconsumed_tail:
        raise _too_large(MAX_NBYTES + 1)
    if not inflater.eof:
        raise InternalError("Failed to decompress the message: it ends too early")
    return message


def _too_large(nbytes: int) -> GrpcError:
    return GrpcError(RESOURCE_EXHAUSTED, f"SERVER: Received message larger than max ({nbytes} vs. {MAX_NBYTES})")


def _unknown_encoding(encoding: bytes) -> GrpcError | InternalError:
    if encoding == IDENTITY:
        return InternalError("Compressed-Flag is set, but there is no grpc-encoding")
    return GrpcError(UNIMPLEMENTED, f"Compression algorithm '{encoding.decode('latin-1')}' is not supported")
