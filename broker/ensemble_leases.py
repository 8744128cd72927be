"""Outputs of steps, on lease until the steps that read them and whoever got them in an ensemble's response are done."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from broker.ensemble import Memory
from broker.events import Action
from broker.flow import Flow
from broker.queue import Frames, Pending
from protocol.messages import TensorRef, unread_nbytes

ORIGIN = "ensembles"  # of the leases of responses; no stub has such a key


class LeaseOwner(Protocol):
    """Who is told that leases are over."""

    def outputs_read(self, origin: str, lease: int, now: int) -> list[Action]: ...

    def released(self, pending: Pending, now: int) -> list[Action]: ...


class EnsembleLeases:
    """Invariant: a memory is in ``_lent`` from the response that brought it until nobody uses it."""

    def __init__(self, owner: LeaseOwner, first_lease: int = 0) -> None:
        """``first_lease``: beyond any of an earlier broker whose responses somebody may still read."""
        self._owner = owner
        self._lent: dict[tuple[str, int], Memory] = {}
        self._responses: dict[int, tuple[Flow, list[Memory], int]] = {}  # unread ones and their bytes, by lease
        self._last_lease = first_lease

    def lend(self, origin: str, lease: int) -> Memory:
        """For the outputs of a step's response; with a use, of who brings it."""
        memory = self._lent[origin, lease] = Memory(origin, lease, 1)
        return memory

    def new_lease(self, flow: Flow, memories: list[Memory], outputs: list[TensorRef], frames: Frames) -> int:
        """For a response that shows these memories, if any: it is over when the response has been read."""
        self._last_lease += 1
        nbytes = unread_nbytes(outputs, sum(map(len, frames)))
        flow.unread += nbytes
        self._responses[self._last_lease] = (flow, memories, nbytes)
        return self._last_lease

    def end(self, flow: Flow, now: int) -> list[Action]:
        """Of what nobody uses any more."""
        ended, flow.run.ended = flow.run.ended, []
        actions: list[Action] = []
        for memory in ended:
            if memory is not flow.own:
                del self._lent[memory.origin, memory.lease]
                actions += self._owner.outputs_read(memory.origin, memory.lease, now)
            elif flow.retained:
                actions += self._owner.released(flow.pending, now)
        return actions

    def read(self, lease: int) -> Flow:
        """Somebody has read a response of this flow."""
        flow, memories, nbytes = self._responses.pop(lease)
        flow.unread -= nbytes
        for memory in memories:
            flow.run.drop(memory)
        return flow

    def uses(self, lease: tuple[str, int]) -> bool:
        return lease in self._lent

    def lends(self, keys: Collection[str]) -> bool:
        """Whether outputs of these stubs wait for their readers."""
        return any(origin in keys for origin, _ in self._lent)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert all(memory.uses > 0 for memory in self._lent.values())
