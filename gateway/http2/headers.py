"""Header blocks (HPACK, RFC 7541): requests are decoded and interpreted once, responses use no table.

A client sends the same few blocks again and again: names and values by their numbers in the table that both sides keep.
As long as the table stays as it is, equal bytes mean equal headers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import hpack

Headers = Sequence[tuple[bytes, bytes]]
Head = TypeVar("Head")

MAX_LIST_NBYTES = 64 << 10  # of one block's headers, as RFC 9113 6.5.2 counts them
_REMEMBERED = 64
_REMEMBERED_NBYTES = 2048
_TABLE_SIZE_UPDATE, _TABLE_SIZE_MASK = 0x20, 0xE0
_SHRUNK_TABLE = b"\x20"  # dynamic table size update: 0
_CONNECTION_SPECIFIC = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"),
)
_PSEUDO = frozenset((b":method", b":path", b":scheme", b":authority"))


class BadBlock(Exception):
    """The table of this connection is lost: nothing that follows can be understood."""


class Malformed(Exception):
    """A request that breaks the rules for its headers; the connection may go on."""


class HeaderReader(Generic[Head]):
    """``interpret`` makes of headers what the events carry; it may raise Malformed."""

    def __init__(self, interpret: Callable[[Headers], Head]) -> None:
        self._interpret = interpret
        self._decoder = hpack.Decoder(max_header_list_size=MAX_LIST_NBYTES)
        self._remembered: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """Raises BadBlock or Malformed."""
        known = self._remembered.get(block)
        if known is not None:
            return known
        before = self._newest()
        headers = self.decode(block)
        unchanged = self._newest() is before and (block[:1] or b"\0")[0] & _TABLE_SIZE_MASK != _TABLE_SIZE_UPDATE
        check_request(headers)
        head = self._interpret(headers)
        if unchanged and len(block) <= _REMEMBERED_NBYTES:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[block] = head
        return head

    def decode(self, block: bytes) -> Headers:
        """Raises BadBlock."""
        before = self._newest()
        try:
            headers = list(self._decoder.decode(block, raw=True))
        except hpack.HPACKError as error:
            raise BadBlock(str(error)) from None
        finally:
            if self._newest() is not before:
                self._remembered.clear()
        return headers

    def _newest(self) -> object:
        """Another object after each change of the table but one that a block announces at its start."""
        entries = self._decoder.header_table.dynamic_entries
        return entries[0] if entries else None


def check_request(headers: Headers) -> None:
    """Raises Malformed (RFC 9113, sections 8.2 and 8.3.1)."""
    seen: set[bytes] = set()
    pseudo = True
    for name, value in headers:
        if name[:1] == b":":
            if not pseudo or name in seen or name not in _PSEUDO:
                raise Malformed(f"pseudo-header {name!r}")
            seen.add(name)
            continue
        pseudo = False
        if name != name.lower() or name in _CONNECTION_SPECIFIC or not name:
            raise Malformed(f"header {name!r}")
        if name == b"te" and value != b"trailers":
            raise Malformed("te")
    if not seen >= {b":method", b":path", b":scheme"}:
        raise Malformed("a pseudo-header is missing")


# --- responses ----------------------------------------------------------------------------------------------------


def encode(headers: Headers) -> bytes:
    """A block that neither uses nor changes a table: literals, names and values as they are."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in headers)


def shrink_table(block: bytes) -> bytes:
    """The block that follows a peer's wish for a smaller table must begin with our consent (RFC 7541, 4.2)."""
    return _SHRUNK_TABLE + block


def _string(text: bytes) -> bytes:
    return _integer(len(text)) + text


def _integer(value: int) -> bytes:
    """A prefix of seven bits (RFC 7541, 5.1), without the flag for Huffman's code."""
    if value < 0x7F:
        return bytes((value,))
    groups = bytearray(b"\x7f")
    value -= 0x7F
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
