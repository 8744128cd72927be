"""Bytes cut into frames: the preface, whole control frames, joined header blocks, and DATA as it comes. What a frame
means for its stream is for the owner to say."""

from __future__ import annotations

from typing import Protocol

from gateway.http2.events import Buffer, ConnectionFault
from gateway.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_NBYTES,
    HEADERS,
    PADDED,
    PREFACE,
    PRIORITY,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    ErrorCode,
)

MAX_FRAME_NBYTES = 1 << 20
_MAX_BLOCK_NBYTES = 64 << 10  # of HEADERS and its CONTINUATIONs
_MAX_CONTINUATIONS = 64
_MAX_CONTROL_NBYTES = _MAX_BLOCK_NBYTES + 1024
_KNOWN = range(PRIORITY, WINDOW_UPDATE + 1)  # those for ``on_frame``


class Owner(Protocol):
    """All may raise ConnectionFault."""

    def on_frame(self, kind: int, stream: int, flags: int, payload: memoryview) -> None:
        """A frame other than DATA and those of headers."""

    def on_block(self, stream: int, block: bytes, ended: bool) -> None:
        """All headers of a request, or its trailers."""

    def on_data_frame(self, stream: int, nbytes: int, ended: bool) -> None:
        """DATA begins; with its padding it counts ``nbytes``."""

    def on_data(self, data: Buffer, ended: bool) -> None:
        """A part of it, or what is left at its stream's end."""

    def spend(self) -> None:
        """For what costs us work and brings the peer nothing."""


class FrameReader:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._expected = PREFACE
        self._greeted = False  # the first SETTINGS have come
        self._partial = b""
        self.rest = 0  # bytes of a payload under way, without its padding
        self._padding = 0  # bytes behind it; what is thrown away counts as that, too
        self._ends = False  # its stream
        self._block: list[bytes] = []
        self._block_of = 0
        self._block_ends = False

    def feed(self, data: memoryview) -> None:
        """Raises ConnectionFault."""
        if self._partial:
            data = memoryview(self._partial + data)
            self._partial = b""
        position = self._check_preface(data) if self._expected else 0
        end = len(data)
        while position < end:
            if self.rest or self._padding:
                position = self._payload(data, position)
                continue
            if end - position < HEAD_NBYTES:
                break
            high, low, kind, flags, stream = HEAD.unpack_from(data, position)
            begun = self._begin(high << 16 | low, kind, flags, stream & STREAM_MASK, data, position + HEAD_NBYTES)
            if begun < 0:
                break
            position = begun
        if position < end:
            self._partial = bytes(data[position:])

    def skipped(self, nbytes: int) -> None:
        """So many of the ``rest`` have gone past us."""
        self.rest -= nbytes
        if not self.rest:
            self._end_of_data(b"")

    def stop(self) -> None:
        """Nothing more will be fed."""
        self.rest = 0

    def _check_preface(self, data: memoryview) -> int:
        nbytes = min(len(self._expected), len(data))
        if data[:nbytes] != self._expected[:nbytes]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 here")
        self._expected = self._expected[nbytes:]
        return nbytes

    def _begin(self, nbytes: int, kind: int, flags: int, stream: int, data: memoryview, start: int) -> int:
        """Where the parser goes on; -1 if more must come first."""
        if nbytes > MAX_FRAME_NBYTES:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame is too large")
        if self._block_of and (kind != CONTINUATION or stream != self._block_of):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        if not self._greeted and (kind != SETTINGS or flags & ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no SETTINGS first")
        if kind == DATA:
            return self._begin_data(nbytes, flags, stream, data, start)
        if kind > CONTINUATION:
            self._owner.spend()
            self._padding = nbytes
            return start
        if nbytes > _MAX_CONTROL_NBYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a frame is too large")
        if len(data) - start < nbytes:
            return -1
        self._control(kind, stream, flags, data[start : start + nbytes])
        return start + nbytes

    def _control(self, kind: int, stream: int, flags: int, payload: memoryview) -> None:
        if kind == HEADERS:
            self._on_headers(stream, flags, payload)
        elif kind == CONTINUATION:
            self._on_continuation(stream, flags, payload)
        else:
            self._owner.on_frame(kind, stream, flags, payload)
            self._greeted = True

    # --- DATA -----------------------------------------------------------------------------------------------------

    def _begin_data(self, nbytes: int, flags: int, stream: int, data: memoryview, start: int) -> int:
        padding = 0
        if flags & PADDED:
            if nbytes and start >= len(data):
                return -1
            if not nbytes or data[start] >= nbytes:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
            padding = data[start]
            start += 1
        self._ends = bool(flags & END_STREAM)
        self._owner.on_data_frame(stream, nbytes, self._ends)
        self._padding = padding
        self.rest = nbytes - padding - 1 if flags & PADDED else nbytes
        if not self.rest:
            if self._ends:
                self._end_of_data(b"")
            else:
                self._owner.spend()
        return start

    def _payload(self, data: memoryview, position: int) -> int:
        """Take what is there of the payload under way, and of its padding."""
        if self.rest:
            end = min(position + self.rest, len(data))
            chunk = data[position:end]
            self.rest -= end - position
            if self.rest or not self._ends:
                self._owner.on_data(chunk, False)
            else:
                self._end_of_data(chunk)
            position = end
        if not self.rest:
            skipped = min(self._padding, len(data) - position)
            self._padding -= skipped
            position += skipped
        return position

    def _end_of_data(self, chunk: Buffer) -> None:
        if self._ends:
            self._ends = False
            self._owner.on_data(chunk, True)

    # --- HEADERS and CONTINUATION ---------------------------------------------------------------------------------

    def _on_headers(self, stream: int, flags: int, payload: memoryview) -> None:
        if not stream & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream that is not the client's")
        if flags & PADDED:
            if not payload or payload[0] >= len(payload):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
            payload = payload[1 : len(payload) - payload[0]]
        if flags & WITH_PRIORITY:
            if len(payload) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without their priority")
            payload = payload[5:]
        if flags & END_HEADERS:
            self._owner.on_block(stream, bytes(payload), bool(flags & END_STREAM))
        else:
            self._block_of, self._block_ends = stream, bool(flags & END_STREAM)
            self._block = [bytes(payload)]

    def _on_continuation(self, stream: int, flags: int, payload: memoryview) -> None:
        if not self._block_of:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._block.append(bytes(payload))
        if len(self._block) > _MAX_CONTINUATIONS or sum(map(len, self._block)) > _MAX_BLOCK_NBYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "headers are too large")
        if flags & END_HEADERS:
            block, self._block = b"".join(self._block), []
            self._block_of = 0
            self._owner.on_block(stream, block, self._block_ends)

    def check(self) -> None:
        assert len(self._partial) <= HEAD_NBYTES + _MAX_CONTROL_NBYTES
        assert self.rest >= 0 and self._padding >= 0
