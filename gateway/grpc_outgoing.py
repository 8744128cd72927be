"""What one call sends: messages are taken from it as the client takes their bytes from us, and not before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gateway.grpc_call import Call
from gateway.grpc_message import PREFIX, Buffer, Message

Release = Callable[[], None]


class Outgoing:
    """Invariant: ``_pieces`` is the rest of one message, and ``_release`` what it asks for at its end."""

    __slots__ = ("_call", "_in_message", "_pieces", "_release")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._pieces: deque[Buffer] = deque()
        self._release: Release | None = None
        self._in_message = False

    @property
    def in_message(self) -> bool:
        """A message has been begun and not ended."""
        return bool(self._pieces) and self._in_message

    @property
    def ended(self) -> bool:
        return not self._pieces and self._call.ended

    def fill(self, room: int, releases: list[Release]) -> tuple[list[Buffer], int]:
        """Up to ``room`` bytes of what the call has to send. To ``releases`` go those of large messages whose last
        bytes these are, to be called when the bytes have left."""
        buffers: list[Buffer] = []
        left = room
        while left:
            if not self._pieces:
                message = self._call.next()
                if message is None:
                    break
                self._take(message)
            piece = self._pieces.popleft()
            if len(piece) > left:
                view = memoryview(piece)
                self._pieces.appendleft(view[left:])
                piece = view[:left]
            buffers.append(piece)
            left -= len(piece)
            self._in_message = bool(self._pieces)
            if self._release is not None and not self._pieces:
                releases.append(self._release)
                self._release = None
        return buffers, room - left

    def _take(self, message: Message) -> None:
        if isinstance(message, bytes):
            self._pieces.append(PREFIX.pack(0, len(message)) + message)
        else:
            self._pieces.append(PREFIX.pack(0, message.nbytes))
            self._pieces.extend(message.pieces)
            self._release = message.release

    def close(self, releases: list[Release]) -> None:
        """Nothing more will be sent; what has been may still be on its way."""
        self._pieces.clear()
        if self._release is not None:
            releases.append(self._release)
            self._release = None
