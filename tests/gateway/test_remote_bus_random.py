"""Whatever happens in whatever order, each request has one final response and each question one answer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.bus import Frames
from gateway.remote_bus import LOST_S, READ_DELAY_S, RemoteBus
from protocol.errors import Unavailable
from protocol.messages import Handle, Request, Response, TensorRef
from protocol.services import (
    ANSWERS,
    CATALOGUE,
    FATE,
    SAID,
    Answers,
    Ask,
    Catalogue,
    Fate,
    NewRequests,
    Read,
    Row,
    Said,
    Unanswered,
    Withdrawn,
)
from shm.store import Block, Store
from tests.gateway.fake_bus import signature
from tests.random_events import run_random_events

LATEST = 10


class Timer:
    def cancel(self) -> None:
        pass


class Loop:
    """Callbacks run when the test lets a turn end; so do short timers, the others do not."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self.kept: list[Callable[[], None]] = []  # until the inputs of what was given up are let go of

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def call_later(self, delay: float, callback: Callable[..., None], *args: int) -> Timer:
        if delay <= READ_DELAY_S:
            self.callbacks.append(callback)
        elif delay == LOST_S:
            self.kept.append(partial(callback, *args))
        return Timer()

    def turn(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


class Sink:
    """As the data plane's: the block is freed once, when the lease of the inputs ends."""

    def __init__(self, machine: Machine, block: Block) -> None:
        self.machine, self.block = machine, block
        self.finals = 0

    def on_response(self, response: Response, origin: str, frames: Frames) -> None:
        assert not self.finals, "a response after the final one"
        if response.lease:
            self.machine.bus.release(origin, response.lease)
        if response.final:
            self.finals += 1
            if not response.retained:
                self.on_inputs_released()

    def on_inputs_released(self) -> None:
        self.machine.store.free(self.block)


class Machine(RuleBasedStateMachine):
    """A bus, and a broker that is there, away, or another one than before."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.store = Store(self.directory.name)
        self.loop = Loop()
        self.bus = RemoteBus(self.loop, self.store, self.on_sent)
        self.is_up = False  # the broker hears what is sent
        self.has: list[int] = []  # of the requests of this broker, those without a final response, in their order
        self.retained: list[int] = []
        self.asks: list[int] = []
        self.undecided: list[int] | None = None
        self.sinks: dict[int, Sink] = {}
        self.told: list[list[Any]] = []
        self.id = 0
        self.lease = 0
        self.leases: set[tuple[str, int]] = set()

    def teardown(self) -> None:
        """The broker is there, answers all that it has, and has lost the rest."""
        self.join(shared=True, same=True)
        self.decide(again=NONE, lost=ALL)
        self.loop.turn()
        while self.has:
            self.answer(0, True, False)
        self.bus.heard(Answers(ANSWERS, [], self.retained), ())
        while self.asks:
            self.say(False)
        self.loop.callbacks += self.loop.kept
        while self.loop.callbacks:
            self.loop.turn()
        assert all(sink.finals == 1 for sink in self.sinks.values())
        assert all(len(told) == 1 for told in self.told)
        assert self.bus.is_idle and not self.leases
        self.store.check()
        assert all(region.arena.is_empty for region in self.store._regions)
        self.store.close()
        self.directory.cleanup()

    def on_sent(self, message: Any, frames: Frames) -> None:
        if not self.is_up:
            return
        if isinstance(message, NewRequests):
            unanswered = [id for id in self.undecided or () if not self.sinks[id].finals]
            assert not unanswered, "something has overtaken the undecided"
            ids = [request.id for request, _ in message.requests]
            assert not set(ids) & set(self.has), "sent twice"
            assert sum(count for _, count in message.requests) == len(frames)
            self.has += ids
            self.leases.difference_update(message.read)
        elif isinstance(message, Unanswered):
            self.undecided = message.requests or None
        elif isinstance(message, Read):
            self.leases.difference_update(message.leases)
        elif isinstance(message, Ask):
            self.asks.append(message.number)
        else:
            assert isinstance(message, Withdrawn)

    # --- clients ----------------------------------------------------------------------------------------------------

    @rule()
    def submit(self) -> None:
        self.id += 1
        block = self.store.allocate(4)
        sink = Sink(self, block)
        ref = TensorRef("IN", "INT32", (1,), Handle(*block[:3]))
        try:
            self.bus.submit(Request(self.id, "m", 1, [ref]), (), sink)
        except Unavailable:
            self.store.free(block)
        else:
            self.sinks[self.id] = sink

    @rule(back=st.integers(0, LATEST))
    def cancel(self, back: int) -> None:
        self.bus.cancel(self.id - back)

    @rule()
    def ask(self) -> None:
        told: list[Any] = []
        self.told.append(told)
        self.bus.statistics("m", -1, told.append)

    @rule()
    def turn(self) -> None:
        self.loop.turn()

    # --- the broker -------------------------------------------------------------------------------------------------

    @rule(index=st.integers(0, LATEST), final=st.booleans(), retained=st.booleans())
    def answer(self, index: int, final: bool, retained: bool) -> None:
        if not self.has or not self.is_up:
            return
        id = self.has[index % len(self.has)]
        self.lease += 1
        self.leases.add(("stub", self.lease))
        if final:
            self.has.remove(id)
            if retained:
                self.retained.append(id)
        response = Response(id, [], self.lease, final=final, retained=final and retained)
        self.bus.heard(Answers(ANSWERS, [(response, "stub", 0)], []), ())

    @rule()
    def let_go(self) -> None:
        if self.is_up:
            released, self.retained = self.retained, []
            self.bus.heard(Answers(ANSWERS, [], released), ())

    @rule(fails=st.booleans())
    def say(self, fails: bool) -> None:
        if self.asks and self.is_up:
            self.bus.heard(Said(SAID, self.asks.pop(0), (3, "no") if fails else None), ())

    @rule()
    def cut(self) -> None:
        self.is_up = False
        self.asks.clear()
        self.bus.lost()

    @rule(shared=st.booleans(), same=st.booleans())
    def join(self, shared: bool, same: bool) -> None:
        """``same``: it has what it had."""
        if self.is_up:
            return
        self.is_up = True
        self.leases.clear()  # of a gateway that was lost
        if not same:
            self.has = []
        self.undecided = None
        self.bus.joined()
        row = Row(1, "READY", signature("m"), shared)
        self.bus.heard(Catalogue(CATALOGUE, {"m": [row]}, []), ())

    @rule(again=st.sets(st.integers(0, LATEST)), lost=st.sets(st.integers(0, LATEST)))
    def decide(self, again: Any, lost: Any) -> None:
        """What it has not is sent again, or is lost; by index."""
        if self.undecided is None or not self.is_up:
            return
        unknown = [id for id in self.undecided if id not in self.has]
        known = [id for id in self.undecided if id in self.has]
        gone = [id for index, id in enumerate(known) if index in lost]
        self.has = [id for id in self.has if id not in gone]
        again_ids = [id for index, id in enumerate(unknown) if index in again]
        rest = [id for id in unknown if id not in again_ids]
        self.undecided = None
        self.bus.heard(Fate(FATE, again_ids, rest + gone), ())

    @rule()
    def give_up(self) -> None:
        self.bus.give_up()
        self.undecided = None

    @rule()
    def refuse(self) -> None:
        if not self.is_up:
            self.bus.refuse()

    @invariant()
    def in_order(self) -> None:
        self.bus.check()
        assert all(sink.finals <= 1 for sink in self.sinks.values())


NONE: frozenset[int] = frozenset()
ALL = frozenset(range(1000))


def test_whatever_the_broker_does_each_request_is_answered_once():
    run_random_events(Machine, usual=60)
