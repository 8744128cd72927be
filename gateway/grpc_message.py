"""gRPC's messages in the DATA of a stream, which is cut anywhere.

    | compressed, 8 bits | nbytes, 32 | message, `nbytes` bytes | compressed | ...

A small message is collected as it comes. A large one gets memory of its own, of which pages exist only once they are
written, so that a client costs what it sends, not what it announces; ``room`` is where the rest may be received.
Whoever is given a message must be done with it when asking for the next: its memory serves that one.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Generator, Iterator
from struct import Struct
from typing import NamedTuple

from gateway.grpc_head import IDENTITY, RESOURCE_EXHAUSTED, UNIMPLEMENTED, GrpcError
from gateway.grpc_inflating import MAX_NBYTES, WINDOW_BITS, Inflating, too_large
from gateway.grpc_inflating import Buffer as Buffer
from protocol.errors import InternalError

LARGE_NBYTES = 64 << 10  # from here on a message is worth memory, or writes, of its own
_KEPT_NBYTES = 64 << 20
PREFIX = Struct(">BL")


class LargeMessage(NamedTuple):
    """One to be sent, in pieces that are valid until ``release``, which whoever takes it must call once."""

    pieces: list[Buffer]
    nbytes: int
    release: Callable[[], None]


Message = bytes | LargeMessage
Refuse = Callable[[memoryview, int], None]  # gets the beginning of a message and its size


def message_of(pieces: list[Buffer], release: Callable[[], None]) -> Message:
    """The pieces as one message; a small one is copied and its pieces released."""
    nbytes = sum(map(len, pieces))
    if nbytes >= LARGE_NBYTES:
        return LargeMessage(pieces, nbytes, release)
    message = b"".join(pieces)
    release()
    return message


class MessageMemory:
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
    """``feed`` and ``filled`` give the messages that are complete now, in order; each is valid until the next one is
    asked for. One of which much is to be inflated is given as that work, with memory of its own. They raise GrpcError
    or InternalError where the bytes are no message; nothing may be fed after that."""

    __slots__ = ("_begun", "_compressed", "_encoding", "_large", "_memory", "_nbytes", "_refuse", "_room")

    def __init__(self, encoding: bytes, memory: MessageMemory, refuse: Refuse | None = None) -> None:
        """``refuse`` is asked before more of a large message is received; what it raises ends the call."""
        self._refuse = refuse
        self._encoding = encoding
        self._memory = memory
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

    def put(self, data: Buffer) -> bool:
        """``feed`` for what a large message is in the middle of, which gives none yet. False: it is not."""
        nbytes = len(data)
        room = self._room
        if room is None or nbytes >= len(room):
            return False
        room[:nbytes] = data
        self._room = room[nbytes:]
        return True

    def filled(self, nbytes: int) -> Iterator[Buffer | Inflating]:
        """So many bytes have been put at the start of ``room``."""
        assert self._room is not None and self._large is not None
        self._room = self._room[nbytes:]
        if not self._room:
            message, self._large, self._room = self._large, None, None
            complete = self._complete(message)
            yield complete
            if complete is message:
                self._memory.give_back(message)

    def feed(self, data: Buffer) -> Iterator[Buffer | Inflating]:
        position, end = 0, len(data)
        if not self._begun and self._nbytes < 0:  # mostly one whole message comes at once
            position = yield from self._whole(data)
        view = memoryview(data)
        while position < end:
            if self._room is not None:
                nbytes = min(len(self._room), end - position)
                self._room[:nbytes] = view[position : position + nbytes]
                if self._refuse is not None and len(self._room) == self._nbytes and not self._compressed:
                    self._refuse(view[position : position + nbytes], self._nbytes)
                yield from self.filled(nbytes)
                position += nbytes
            else:
                wanted = PREFIX.size if self._nbytes < 0 else self._nbytes
                begun = len(self._begun)
                self._begun += view[position : position + wanted - begun]
                position += len(self._begun) - begun
                if len(self._begun) == wanted:
                    yield from self._end_of_part()

    def _whole(self, data: Buffer) -> Generator[Buffer | Inflating, None, int]:
        """The small messages that ``data`` begins with, and how many bytes they take."""
        position, end = 0, len(data)
        while end - position >= PREFIX.size:
            compressed, nbytes = PREFIX.unpack_from(data, position)
            if nbytes >= LARGE_NBYTES or end - position < PREFIX.size + nbytes:
                break
            self._announce(compressed, nbytes)
            position += PREFIX.size + nbytes
            yield self._complete(bytes(data[position - nbytes : position]))
        return position

    def _end_of_part(self) -> Iterator[Buffer | Inflating]:
        """A prefix or a small message is complete."""
        part, self._begun = bytes(self._begun), bytearray()
        if self._nbytes >= 0:
            yield self._complete(part)
            return
        self._announce(*PREFIX.unpack(part))
        if not self._nbytes:
            yield self._complete(b"")

    def _announce(self, compressed: int, nbytes: int) -> None:
        if nbytes > MAX_NBYTES:
            raise too_large(nbytes)
        if compressed and self._encoding not in WINDOW_BITS:
            raise _unknown_encoding(self._encoding)
        self._compressed, self._nbytes = compressed, nbytes
        if nbytes >= LARGE_NBYTES:
            self._large = self._room = self._memory.take(nbytes)

    def _complete(self, message: Buffer) -> Buffer | Inflating:
        self._nbytes = -1
        if not self._compressed or not len(message):  # some clients flag what they had nothing to compress of
            return message
        inflating = Inflating(message, self._encoding)
        whole = inflating.begin() if len(message) < LARGE_NBYTES else None
        return inflating if whole is None else whole


def _unknown_encoding(encoding: bytes) -> GrpcError | InternalError:
    if encoding == IDENTITY:
        return InternalError("Compressed-Flag is set, but there is no grpc-encoding")
    return GrpcError(UNIMPLEMENTED, f"Compression algorithm '{encoding.decode('latin-1')}' is not supported")
