"""Responses in the order of their requests, across batches and instances: preserve_ordering. Pure.

A request takes its turn when it is queued. What answers the first of them passes; what answers those behind it is held
back until each before it has had its final response, however that came about. Only requests of clients take a turn:
a call of a model, or a step of an ensemble, may be what a request before it waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from broker.queue import Frames, Pending
from protocol.messages import Response


class Held(NamedTuple):
    """A response, with whose outputs it shows and what came with it."""

    pending: Pending
    response: Response
    origin: str
    frames: Frames


class ResponseOrder:
    """Invariant: of the first request nothing is held."""

    __slots__ = ("_held", "_turns")

    def __init__(self) -> None:
        self._turns: deque[int] = deque()  # requests, by id, without those that have had their final response passed
        self._held: dict[int, list[Held]] = {}  # by request

    def join(self, pending: Pending) -> None:
        self._turns.append(pending.request.id)
        self._held[pending.request.id] = []

    def __contains__(self, request: int) -> bool:
        return request in self._held

    def answered(self, one: Held) -> Sequence[Held]:
        """What may go to the clients now, in order. ``one`` answers a request that has joined."""
        id = one.pending.request.id
        if id != self._turns[0]:
            self._held[id].append(one)
            return ()
        return [one, *self._next()] if one.response.final else (one,)

    def _next(self) -> list[Held]:
        """The first has had its final response: what of those behind it follows."""
        free: list[Held] = []
        ended = True
        while ended:
            del self._held[self._turns.popleft()]
            if not self._turns:
                break
            held = self._held[self._turns[0]]
            free += held
            ended = bool(held) and held[-1].response.final
            held.clear()
        return free

    def replace(self, origin: str, error: tuple[int, str]) -> list[Held]:
        """The process that has the outputs of what is held is dead: its responses become errors. Returns them as they
        were; nobody will read them."""
        lost: list[Held] = []
        for responses in self._held.values():
            for position, one in enumerate(responses):
                if one.origin == origin and one.response.lease:
                    lost.append(one)
                    failed = one.response._replace(outputs=[], lease=0, error=error)
                    responses[position] = one._replace(response=failed)
        return lost

    def check(self) -> None:
        assert set(self._turns) == self._held.keys(), (self._turns, self._held)
        assert not self._turns or not self._held[self._turns[0]]
        for held in self._held.values():
            assert not any(one.response.final for one in held[:-1])
