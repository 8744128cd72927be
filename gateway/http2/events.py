"""What a connection tells of what its peer has sent."""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.http2.frames import ErrorCode

Buffer = bytes | memoryview


class Request(NamedTuple):
    """A new stream. ``head`` is what ``interpret`` made of its headers; ``ended``: no DATA will follow."""

    stream: int
    head: Any
    ended: bool


class Data(NamedTuple):
    """A part of a stream's body, valid until the next ``receive``; ``ended``: the last one."""

    stream: int
    data: Buffer
    ended: bool


class Reset(NamedTuple):
    """The stream is gone, by the client's wish or for its fault. Nothing may be sent on it any more."""

    stream: int


Event = Request | Data | Reset


class ConnectionFault(Exception):
    """The peer broke the rules for the whole connection."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
