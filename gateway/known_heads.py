"""Heads of HTTP requests that have come before: of one that comes again nothing need be parsed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.http_routes import Route

_END_OF_HEAD = b"\r\n\r\n"
_LONGEST, _MOST = 4 << 10, 1024


@dataclass(slots=True)
class Head:
    """What precedes a body. Requests with the same share it: it is never changed."""

    route: Route | None
    method: bytes
    headers: dict[bytes, bytes]  # those in _WANTED, names in lower case
    keep_alive: bool
    http_1_0: bool
    all_headers: Sequence[tuple[str, bytes]] = ()  # of a ForwardingReader, as they were sent


class KnownHead(NamedTuple):
    """Of a request that came alone and at once. Another one with it differs from that in nothing but the body."""

    text: bytes
    nbytes: int  # of head and body
    head: Head


NO_HEAD = KnownHead(b"\0", -1, Head(None, b"", {}, True, False))  # of no request


class KnownHeads:
    """For all readers that make the same of the same bytes."""

    def __init__(self) -> None:
        self._heads: dict[bytes, KnownHead] = {}  # by their text

    def __len__(self) -> int:
        return len(self._heads)

    def get(self, data: memoryview | bytes) -> KnownHead | None:
        """Of the request that ``data`` is, alone and whole."""
        start = bytes(data[:_LONGEST])
        known = self._heads.get(start[: start.find(_END_OF_HEAD) + len(_END_OF_HEAD)])
        return known if known is not None and known.nbytes == len(data) else None

    def add(self, data: memoryview | bytes, head: Head) -> KnownHead | None:
        """``head`` is of the last request that ended in ``data``. None if it cannot be known again."""
        length = head.headers.get(b"content-length", b"")
        if b"expect" in head.headers or not length.isdigit():
            return None
        size = len(data) - int(length)
        text = bytes(data[:size]) if 0 < size <= _LONGEST else b""
        if text.find(_END_OF_HEAD) + len(_END_OF_HEAD) != size:
            return None  # not all that came, or more than one
        if len(self._heads) >= _MOST:
            self._heads.clear()
        known = self._heads[text] = KnownHead(text, len(data), head)
        return known
