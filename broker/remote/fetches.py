"""Tensors whose reader does not share memory with their owner: the owner is asked for their bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from broker.queue import Frames
from protocol.messages import Handle
from protocol.services import FETCH, Fetch, Fetched

# Frames in the order of the handles, each as long as its handle says; b"" for one whose owner is gone or would not.
Then = Callable[[list[memoryview | bytes]], None]


def owner_of(handle: Handle) -> str:
    """The service in whose host's memory it lies, by the name of its segment; "" for a name of another form."""
    return handle.segment[-32:-24]


class _Fetch:
    """What ``then`` waits for; ``missing`` are the numbers of what is not here yet, with the places of its frames."""

    __slots__ = ("frames", "handles", "missing", "then")

    def __init__(self, handles: Sequence[Handle], then: Then) -> None:
        self.handles = handles
        self.frames: list[memoryview | bytes] = [b""] * len(handles)
        self.missing: dict[int, list[int]] = {}
        self.then = then


class Fetches:
    """Invariant: each fetch is in here until all its owners have answered or are gone."""

    def __init__(self, send: Callable[[str, Fetch], bool]) -> None:
        """``send`` is False if the service cannot be reached."""
        self._send = send
        self._numbers = count(1)
        self._own = ""
        self._read: Callable[[Handle], bytes] = lambda handle: b""
        self._waiting: dict[int, tuple[str, _Fetch]] = {}  # by number; the owner
        self.total = 0  # tensors that were asked for so far

    def owns(self, service: str, read: Callable[[Handle], bytes]) -> None:
        """The memory of this one is the broker's own; ``read`` copies what is there, b"" if nothing is."""
        self._own = service
        self._read = read

    def begin(self, handles: Sequence[Handle], then: Then, fleeting: bool = False) -> None:
        """``then`` is called once, perhaps at once. What is ``fleeting`` is on lease only until the owner has heard of
        this: what it hears next may end that."""
        fetch = _Fetch(handles, then)
        owners: dict[str, list[int]] = {}
        for place, handle in enumerate(handles):
            owners.setdefault(owner_of(handle), []).append(place)
        asked = []
        for place in owners.pop(self._own, ()):
            fetch.frames[place] = self._read(handles[place])
        for owner, places in owners.items():
            number = next(self._numbers)
            fetch.missing[number] = places
            self.total += len(places)
            self._waiting[number] = (owner, fetch)
            asked.append((number, owner, Fetch(FETCH, number, [handles[place] for place in places], fleeting)))
        for number, owner, message in asked:
            if not self._send(owner, message):
                self._end(number, ())
        if not asked:
            then(fetch.frames)

    def fetched(self, service: str, message: Fetched, frames: Frames) -> None:
        found = self._waiting.get(message.number)
        if found is not None and found[0] == service:
            self._end(message.number, frames)

    def gone(self, service: str) -> None:
        for number in [number for number, (owner, _) in self._waiting.items() if owner == service]:
            self._end(number, ())

    def _end(self, number: int, frames: Frames) -> None:
        _, fetch = self._waiting.pop(number)
        places = fetch.missing.pop(number)
        if len(frames) == len(places):
            for place, frame in zip(places, frames, strict=True):
                if len(frame) == fetch.handles[place].nbytes:
                    fetch.frames[place] = frame
        if not fetch.missing:
            fetch.then(fetch.frames)
