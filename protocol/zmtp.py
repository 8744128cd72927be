"""ZeroMQ's wire protocol, ZMTP 3.0 (https://rfc.zeromq.org/spec/23/), as far as ROUTER and DEALER need it on a Unix
socket. Pure: bytes in, messages out. Why not by libzmq: docs/decisions/0009.
"""

from __future__ import annotations

import mmap
from typing import Dict, List, Optional, Sequence, Union

from .errors import ProtocolError

_MORE, _LONG, _COMMAND = 1, 2, 4
_SHORT_SIZE, _LONG_SIZE = 2, 9  # of what precedes a frame's bytes
_SIGNATURE_END, _MAJOR = 9, 10
GREETING_SIZE = 64
_LARGE = 64 * 1024
_HUGE = 32 * 1024 * 1024
_READY, _ERROR = b"\x05READY", b"\x05ERROR"
_IDENTITY = b"Identity"


def greeting() -> bytes:
    """What each peer says first: the version, and that there is no security."""
    return b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def check_greeting(said: bytes) -> None:
    """Raises ProtocolError."""
    if len(said) < GREETING_SIZE or said[0] != 0xFF or said[_SIGNATURE_END] != 0x7F or said[_MAJOR] < 3:
        raise ProtocolError("greeting that is not ZMTP 3")


def ready(socket_type: str, identity: bytes = b"") -> bytes:
    """What a peer says when it has been greeted: libzmq hangs up on one that does not wait for that. A ROUTER knows a
    DEALER by its identity."""
    command = _READY + _property(b"Socket-Type", socket_type.encode())
    if identity:
        command += _property(_IDENTITY, identity)
    return _head(_COMMAND, len(command)) + command


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


def _properties(data: bytes) -> Dict[bytes, bytes]:
    """By their names in lower case; they are alike in any."""
    properties: Dict[bytes, bytes] = {}
    while data:
        value = 1 + data[0] + 4
        end = value + int.from_bytes(data[value - 4 : value], "big")
        if end > len(data):
            raise ProtocolError("READY that is cut off")
        properties[data[1 : value - 4].lower()] = data[value:end]
        data = data[end:]
    return properties


def encode(header: bytes, frames: Sequence[Union[bytes, memoryview]] = ()) -> List[Union[bytes, memoryview]]:
    """The buffers to send for one message, in order; the first is all of it if there are no further frames."""
    if not frames:
        return [_head(0, len(header)) + header]
    buffers: List[Union[bytes, memoryview]] = [_head(_MORE, len(header)) + header]
    for number, frame in enumerate(frames, 1):
        flat = memoryview(frame).cast("B")
        buffers += [_head(_MORE if number < len(frames) else 0, len(flat)), flat]
    return buffers


def _head(flags: int, size: int) -> bytes:
    return bytes((flags, size)) if size < 256 else bytes((flags | _LONG,)) + size.to_bytes(8, "big")


def _room(size: int) -> memoryview:
    """Memory to be written to. Of much the kernel clears each page when it is written: to clear 1 GiB at once takes a
    third of a second, in which the broker would do nothing else."""
    if size < _HUGE:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class Inbound:
    """What a peer sends after its greeting, cut into messages: ``feed`` it the bytes, ``take`` what they make."""

    def __init__(self) -> None:
        self._data = b""
        self._start = 0  # of what has not been taken of it
        self._frames: List[memoryview] = []  # of the message that is coming
        self._large: Optional[memoryview] = None  # a frame that is coming, too large to wait for it in ``_data``
        self._filled = 0  # of it
        self._large_flags = 0
        self.identity: Optional[bytes] = None  # of the peer, once it is ready; perhaps empty

    @property
    def missing(self) -> int:
        """Bytes of a large frame that is coming."""
        return 0 if self._large is None else len(self._large) - self._filled

    @property
    def has_more(self) -> bool:
        """Than was taken, be it a whole message or not."""
        return self._start < len(self._data) or self._large is not None

    def feed(self, data: bytes) -> None:
        if self._large is not None:
            taken = min(len(data), self.missing)
            self._large[self._filled : self._filled + taken] = data[:taken]
            self._filled += taken
            data = data[taken:]
        self._data = self._data[self._start :] + data if self._start < len(self._data) else data
        self._start = 0

    def take(self) -> Optional[List[memoryview]]:
        """The frames of the next message, writable; None if it has not all come. Raises ProtocolError."""
        while self._start < len(self._data) or self._large is not None:
            ends = self._next_frame() if self._large is None else self._end_large(self._large)
            if ends is None:
                return None
            if ends:
                frames, self._frames = self._frames, []
                return frames
        return None

    def _next_frame(self) -> Optional[bool]:
        """Whether it ends a message; None if it has not all come."""
        data, start = self._data, self._start
        begin = start + _SHORT_SIZE
        if begin > len(data):
            return None
        flags, size = data[start:begin]
        if flags & _LONG:
            begin = start + _LONG_SIZE
            if begin > len(data):
                return None
            size = int.from_bytes(data[start + 1 : begin], "big")
        end = begin + size
        if end > len(data):
            if size > _LARGE:
                self._begin_large(flags, size, begin)
            return None
        self._start = end
        return self._add(flags, memoryview(bytearray(data[begin:end])))

    def _begin_large(self, flags: int, size: int, begin: int) -> None:
        try:
            self._large, self._filled, self._large_flags = _room(size), 0, flags
        except (MemoryError, OverflowError, OSError):
            raise ProtocolError("frame of {} bytes, for which there is no memory".format(size)) from None
        rest, self._data, self._start = self._data[begin:], b"", 0
        self.feed(rest)

    def _end_large(self, large: memoryview) -> Optional[bool]:
        if self.missing:
            return None
        self._large = None
        return self._add(self._large_flags, large)

    def _add(self, flags: int, frame: memoryview) -> bool:
        if flags & _COMMAND:
            self._command(bytes(frame))
            return False
        if self.identity is None:
            raise ProtocolError("message of a peer that has not said READY")
        self._frames.append(frame)
        return not flags & _MORE

    def _command(self, command: bytes) -> None:
        """There are no others without security and heartbeats."""
        if command.startswith(_READY):
            self.identity = _properties(command[len(_READY) :]).get(_IDENTITY.lower(), b"")
        elif command.startswith(_ERROR):
            raise ProtocolError("refusal of the connection: {!r}".format(command[len(_ERROR) + 1 :]))
