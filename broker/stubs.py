"""The stubs of the server's own host, on a Unix socket. Another way to reach stubs has the same methods (Stubs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from broker.events import Send, WatchStatus
from broker.queue import Frames
from broker.router import Router
from protocol.codec import encode
from protocol.messages import Answered, Execute, Handle, TensorRef, ToStub
from shm.errors import BadSegment
from shm.segment import Segment
from shm.store import Reader

log = structlog.get_logger()

Heard = Callable[[str, memoryview, list[memoryview]], None]


class Stubs(Protocol):
    """``heard`` is called with each message of a stub, ``done`` after those that came together."""

    def start(self, heard: Heard, done: Callable[[], None]) -> None:
        """On the running loop. Raises OSError."""

    def send(self, action: Send) -> None:
        """Raises Unreachable and DoesNotRead (router.py)."""

    def watch(self, action: WatchStatus) -> None:
        """The stub has a status word."""

    def hear_out(self, key: str) -> int | None:
        """The process is dead: hears what it has said before; returns its status word, None if that is not known."""

    def close(self) -> None: ...


class LocalStubs:
    def __init__(self, bus: str, shm_directory: str, reader: Reader) -> None:
        """``bus`` is ipc://<path>."""
        self._bus = bus
        self._shm_directory = shm_directory
        self._reader = reader
        self._status_words: dict[str, Segment] = {}

    def start(self, heard: Heard, done: Callable[[], None]) -> None:
        self._router = Router(heard, done)
        self._router.bind(self._bus)

    def send(self, action: Send) -> None:
        key, message, frames, shared = action
        if not shared:
            message, frames = self._inline(message, list(frames))
        self._router.send(key, encode(message), frames)

    def _inline(self, message: ToStub, frames: list[memoryview | bytes]) -> tuple[ToStub, Frames]:
        """For a stub that does not share our memory: every tensor by handle becomes a frame. Inputs are on lease until
        they are answered, so they are sent from where they lie, however long that takes. Outputs are not: the lease of
        what answers a call ends with this."""
        lasts = isinstance(message, Execute)

        def inlined(handle: Handle) -> int:
            view = self._reader.view(*handle)
            frames.append(view if lasts else bytes(view))
            return len(frames) - 1

        return replace_handles(message, inlined), frames

    def watch(self, action: WatchStatus) -> None:
        try:
            self._status_words[action.key] = Segment.attach(self._shm_directory, action.segment)
        except (BadSegment, OSError) as fault:
            log.warning("a stub's status word cannot be read", stub=action.key, cause=str(fault))

    def hear_out(self, key: str) -> int | None:
        segment = self._status_words.pop(key, None)
        inside = None
        if segment is not None:
            inside = segment.status
            segment.close()
        self._router.hear_out(key)
        return inside

    def close(self) -> None:
        self._router.close()
        while self._status_words:  # a process may be reported dead after this
            self._status_words.popitem()[1].close()


def replace_handles(message: ToStub, place: Callable[[Handle], Handle | int]) -> ToStub:
    """The message with each tensor by handle at another ``place``, where that is another."""

    def placed(tensor: TensorRef) -> TensorRef:
        return tensor._replace(place=place(tensor.place)) if isinstance(tensor.place, Handle) else tensor

    if isinstance(message, Execute):
        batches = [
            batch._replace(
                requests=[request._replace(inputs=list(map(placed, request.inputs))) for request in batch.requests]
            )
            for batch in message.batches
        ]
        return message._replace(batches=batches)
    if isinstance(message, Answered):
        outputs = list(map(placed, message.response.outputs))
        return message._replace(response=message.response._replace(outputs=outputs))
    return message
