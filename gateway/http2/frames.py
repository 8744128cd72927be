"""Frames of HTTP/2 as bytes (RFC 9113, sections 4, 6 and 7).

| length, 24 bits | type, 8 | flags, 8 | 0, 1 bit; stream, 31 | payload, `length` bytes |
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = Struct(">BHBBL")  # length in two parts, type, flags, stream
HEAD_NBYTES = HEAD.size
SETTING = Struct(">HL")
NUMBER = Struct(">L")
STREAM_MASK = 0x7FFFFFFF
LARGEST_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65535
DEFAULT_FRAME_SIZE, LARGEST_FRAME_SIZE = 16384, 2**24 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6


class ErrorCode(IntEnum):
    """RFC 9113, section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


def head(nbytes: int, kind: int, flags: int, stream: int) -> bytes:
    return HEAD.pack(nbytes >> 16, nbytes & 0xFFFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return head(len(payload), kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(name, value) for name, value in values.items()))


def window_update(stream: int, nbytes: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(nbytes))


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream, NUMBER.pack(code))


def goaway(last_stream: int, code: ErrorCode, reason: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, NUMBER.pack(last_stream) + NUMBER.pack(code) + reason)
