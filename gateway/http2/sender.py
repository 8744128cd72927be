"""What is to be sent, in order, and how much DATA the peer takes: its windows and the size of its frames."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.http2 import frames
from gateway.http2.events import Buffer, ConnectionFault
from gateway.http2.frames import (
    DATA,
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    HEADERS,
    LARGEST_FRAME_SIZE,
    LARGEST_WINDOW,
    ErrorCode,
)
from gateway.http2.headers import shrink_table


class Sender:
    """Invariant: what is to be sent are whole frames. Of a stream is known only what it has sent: see ``capacity``."""

    def __init__(self, greeting: bytes) -> None:
        self._out: list[Buffer] = [greeting]
        self.nbytes = len(greeting)  # of what ``take`` would give
        self._window = DEFAULT_WINDOW
        self._initial_window = DEFAULT_WINDOW
        self._max_frame = DEFAULT_FRAME_SIZE
        self._shrink_table = False

    def capacity(self, sent_less: int) -> int:
        """Bytes of DATA for a stream which the peer has granted so many by WINDOW_UPDATE, less what it has sent."""
        return max(0, min(self._window, self._initial_window + sent_less))

    def overflows(self, sent_less: int) -> bool:
        """The peer has granted a stream more than there may be."""
        return self._initial_window + sent_less > LARGEST_WINDOW

    def grant(self, nbytes: int) -> None:
        """To the connection, by WINDOW_UPDATE. Raises ConnectionFault."""
        if self._window + nbytes > LARGEST_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large")
        self._window += nbytes

    def set(self, name: int, value: int) -> None:
        """One of the peer's settings. Raises ConnectionFault."""
        if name == frames.INITIAL_WINDOW_SIZE:
            if value > LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE")
            self._initial_window = value
        elif name == frames.MAX_FRAME_SIZE:
            if not DEFAULT_FRAME_SIZE <= value <= LARGEST_FRAME_SIZE:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE")
            self._max_frame = value
        elif name == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH")
        elif name == frames.HEADER_TABLE_SIZE:
            self._shrink_table = True

    def write(self, data: bytes) -> None:
        """Whole frames, no DATA."""
        self._out.append(data)
        self.nbytes += len(data)

    def block(self, stream: int, block: bytes, flags: int) -> None:
        if self._shrink_table:
            self._shrink_table = False
            block = shrink_table(block)
        assert len(block) <= DEFAULT_FRAME_SIZE
        self.write(frames.frame(HEADERS, flags, stream, block))

    def data(self, stream: int, buffers: Sequence[Buffer], nbytes: int) -> None:
        """No more than the stream's ``capacity``."""
        self._window -= nbytes
        if nbytes <= self._max_frame:
            self._data_frame(stream, buffers, nbytes)
            return
        for part, size in parts(buffers, nbytes, self._max_frame):
            self._data_frame(stream, part, size)

    def _data_frame(self, stream: int, buffers: Sequence[Buffer], nbytes: int) -> None:
        self.write(frames.head(nbytes, DATA, 0, stream))
        self._out += buffers
        self.nbytes += nbytes

    def take(self) -> list[Buffer]:
        """What is to be sent, in order."""
        out, self._out = self._out, []
        self.nbytes = 0
        return out

    def check(self) -> None:
        assert 0 <= self._window <= LARGEST_WINDOW
        assert self.nbytes == sum(map(len, self._out))


def parts(buffers: Sequence[Buffer], nbytes: int, largest: int) -> list[tuple[list[Buffer], int]]:
    """Buffers of ``nbytes`` in all, cut into parts of ``largest`` bytes at most, and the parts' sizes."""
    result: list[tuple[list[Buffer], int]] = []
    part: list[Buffer] = []
    room = largest
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view) >= room:
            part.append(view[:room])
            view = view[room:]
            result.append((part, largest))
            part, room = [], largest
        if view:
            part.append(view)
            room -= len(view)
    if part:
        result.append((part, largest - room))
    return result
