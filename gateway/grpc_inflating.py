"""Compressed messages of gRPC. What makes up to 256 KiB is inflated where it is; more in a thread, one message at a
time, while others are served: 64 MiB of zeros, which come in 64 KiB, take a few tenths of a second."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from gateway.grpc_head import RESOURCE_EXHAUSTED, GrpcError
from protocol.errors import InternalError

Buffer = bytes | memoryview

MAX_NBYTES = 2**31 - 1
WINDOW_BITS = {b"gzip": 31, b"deflate": 15}
_AT_ONCE_NBYTES = 256 << 10  # of the message; about a millisecond
_PIECE_NBYTES = 64 << 10  # of what is compressed: the rest of a piece is copied for each step
_STEP_NBYTES = 1 << 20
_HELD_NBYTES = 64 << 20
_PER_MESSAGE_NBYTES = 100  # an empty one takes memory, too


class Inflating:
    """A large message on its way. It keeps ``data``."""

    def __init__(self, data: Buffer, encoding: bytes) -> None:
        self._inflater = zlib.decompressobj(WINDOW_BITS[encoding])
        self._data = memoryview(data)
        self._message = bytearray()

    def __len__(self) -> int:
        return len(self._data) + len(self._message)

    def begin(self) -> bytes | None:
        """The whole of a message that is small. Raises GrpcError and InternalError, as ``finish`` does."""
        message = self._inflate(self._data, _AT_ONCE_NBYTES)
        self._data = memoryview(self._inflater.unconsumed_tail)
        if self._inflater.eof:
            return message
        self._message += message
        if len(self._data):
            return None
        raise InternalError("Failed to decompress the message: it ends too early")

    def finish(self) -> memoryview:
        """The message. In any thread."""
        for start in range(0, len(self._data), _PIECE_NBYTES):
            piece: Buffer = self._data[start : start + _PIECE_NBYTES]
            while len(piece):
                self._message += self._inflate(piece, _STEP_NBYTES)
                if len(self._message) > MAX_NBYTES:
                    raise too_large(len(self._message))
                piece = self._inflater.unconsumed_tail
        if not self._inflater.eof:
            raise InternalError("Failed to decompress the message: it ends too early")
        return memoryview(self._message)

    def _inflate(self, data: Buffer, nbytes: int) -> bytes:
        try:
            return self._inflater.decompress(data, nbytes)
        except zlib.error as error:
            raise InternalError(f"Failed to decompress the message: {error}") from None


def too_large(nbytes: int) -> GrpcError:
    return GrpcError(RESOURCE_EXHAUSTED, f"SERVER: Received message larger than max ({nbytes} vs. {MAX_NBYTES})")


class Held:
    """What has come behind a message that is still being inflated."""

    def __init__(self, inflated: asyncio.Future[memoryview]) -> None:
        self.inflated = inflated
        self.ended = False
        self._messages: list[Buffer | Inflating] = []
        self._nbytes = 0

    def add(self, message: Buffer | Inflating) -> None:
        """A copy. Raises GrpcError if it is too much."""
        self._nbytes += len(message) + _PER_MESSAGE_NBYTES
        if self._nbytes > _HELD_NBYTES:
            raise GrpcError(RESOURCE_EXHAUSTED, "too much behind a compressed message")
        self._messages.append(message if isinstance(message, Inflating) else bytes(message))

    def __iter__(self) -> Iterator[Buffer | Inflating]:
        """All of it, once the first is there. Raises what that has failed with."""
        yield self.inflated.result()
        yield from self._messages


class Inflaters:
    """The thread, from the first large message on."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="gRPC inflating")

    def finish(self, message: Inflating) -> asyncio.Future[memoryview]:
        return asyncio.get_running_loop().run_in_executor(self._threads, message.finish)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
