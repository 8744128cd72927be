"""Random requests, batches, answers, cancels, deaths and waits of sequences, without the rest of the broker.

Nothing is lost and nothing comes back twice; a sequence is executed in order, on one instance, one request at a time;
no batch is above its limits and no slot is leaked.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from broker.instance import Dispatched, Instance, InstanceState
from broker.model_config import InstanceSpec
from broker.queue import Pending
from broker.sequence_rules import SequenceRules
from broker.sequences import Sequences
from protocol.errors import ServingError
from protocol.messages import SEQUENCE_END, SEQUENCE_START, Request, TensorRef
from tests.random_events import run_random_events

IDS = [1, 2, 3, 4, "1", "a"]
IDLE_NS, MS = 1_000_000_000, 1_000_000


class SequencesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1
        self.last_id = 0
        self.waiting: dict[int, Pending] = {}
        self.executing: dict[int, Pending] = {}
        self.runs: dict[int, int] = {}  # the number of its sequence, by request
        self.live: dict[Any, int] = {}
        self.orders: dict[int, list[int]] = {}  # requests of each sequence that have still to be executed
        self.places: dict[int, tuple[int, int]] = {}  # instance and slot of each sequence

    @initialize(
        oldest=st.booleans(),
        slots=st.integers(1, 4),
        count=st.integers(1, 3),
        delay_ms=st.sampled_from([0, 0, 5]),
        utilization=st.sampled_from([0.0, 0.5, 1.0]),
        preferred=st.sets(st.integers(1, 3)),
        ragged=st.booleans(),
        iterative=st.sampled_from([False, False, True]),
    )
    def build(self, oldest, slots, count, delay_ms, utilization, preferred, ragged, iterative) -> None:
        max_size = 3 if oldest else slots
        self.rules = SequenceRules(
            model="m",
            oldest=oldest,
            slots=slots,
            max_size=max_size,
            idle_ns=IDLE_NS,
            delay_ns=delay_ms * MS,
            utilization=utilization,
            preferred=frozenset(preferred) if oldest else frozenset(),
            stacked=frozenset() if ragged else frozenset(["X"]),
            optional=False,
            iterative=iterative,
            control=("", ""),
        )
        self.instances = [Instance(InstanceSpec(f"m_{n}", "CPU", 0, False), n + 1) for n in range(count)]
        for instance in self.instances:
            instance.state = InstanceState.READY
        self.sequences = Sequences(self.rules, self.instances)

    # --- what happens -----------------------------------------------------------------------------------------------

    @rule(
        id=st.sampled_from(IDS),
        flags=st.integers(0, 3),
        starts=st.booleans(),
        timeout_ms=st.sampled_from([0, 0, 3, 50]),
        rows=st.integers(1, 2),
        count=st.integers(1, 4),
    )
    def push(self, id, flags, starts, timeout_ms, rows, count) -> None:
        flags |= SEQUENCE_START if starts else 0
        for _ in range(count):
            self.push_one(id, flags, timeout_ms, rows)
            flags = 0

    def push_one(self, id: Any, flags: int, timeout_ms: int, rows: int) -> None:
        self.last_id += 1
        tensor = TensorRef("X", "FP32", (1, rows), 0)
        request = Request(self.last_id, "m", 1, [tensor], "", [], {}, id, flags, 0, timeout_ms * 1000)
        pending = Pending(request, (), None, 1, self.now)
        live = self.sequences.is_live(id)
        assert live == (id in self.live)
        try:
            self.sequences.admit(request, 1)
        except ServingError as error:
            assert "must specify the START flag" in str(error)
            assert not live and not flags & SEQUENCE_START
            return
        assert live or flags & SEQUENCE_START
        if not live:
            self.live[id] = self.last_id
            self.orders[self.last_id] = []
        run = self.live[id]
        assert self.sequences.push(pending, self.now) == (live and bool(flags & SEQUENCE_START))
        self.runs[request.id] = run
        self.orders[run].append(request.id)
        self.waiting[request.id] = pending
        if flags & SEQUENCE_END:
            del self.live[id]

    @rule()
    def take(self) -> None:
        for instance, requests, slots, places in self.sequences.take(self.now):
            assert instance.state is InstanceState.READY and not instance.outstanding
            assert 0 < len(requests) == len(slots) == len(set(slots)) <= self.rules.max_size
            assert len({self.runs[one.request.id] for one in requests}) == len(requests)
            assert (
                places == 0 if self.rules.oldest else slots == sorted(slots) and max(slots) < places <= self.rules.slots
            )
            assert max(slots) < self.rules.slots
            if self.rules.stacked:
                assert len({one.request.inputs[0].shape for one in requests}) == 1
            for pending, slot in zip(requests, slots, strict=True):
                self.taken(pending, (instance.index, slot))
            instance.outstanding.append(Dispatched(self.now, requests, self.now))
        assert all(self.sequences.take(self.now) == [] for _ in range(2))

    def taken(self, pending: Pending, place: tuple[int, int]) -> None:
        id = pending.request.id
        run = self.runs[id]
        assert self.orders[run][0] == id, "out of order"
        assert not any(self.runs[one] == run for one in self.executing), "two at a time"
        if not pending.request.flags & SEQUENCE_START and run in self.places:
            assert self.places[run] == place, "it has moved"
        self.places[run] = place
        pending.holder = place[0]
        self.executing[id] = self.waiting.pop(id)

    @rule(data=st.data(), opened=st.booleans(), again=st.booleans())
    def execute(self, data, opened: bool, again: bool) -> None:
        """A batch returns; one of its requests may stay open, or be wanted again."""
        busy = [one for one in self.instances if one.outstanding]
        if not busy:
            return
        instance = data.draw(st.sampled_from(busy))
        first, *rest = instance.outstanding.popleft().requests
        if again and self.rules.iterative:
            first.request = first.request._replace(flags=0)
            del self.executing[first.request.id]
            self.waiting[first.request.id] = first
            self.sequences.again(first, self.now)
        elif not opened:
            self.answered(first)
        for pending in rest:
            self.answered(pending)

    @rule(data=st.data())
    def answer_open(self, data) -> None:
        held = {
            one.request.id for instance in self.instances for batch in instance.outstanding for one in batch.requests
        }
        left = sorted(self.executing.keys() - held)
        if left:
            self.answered(self.executing[data.draw(st.sampled_from(left))])

    def answered(self, pending: Pending) -> None:
        id = pending.request.id
        del self.executing[id]
        run = self.runs[id]
        self.orders[run].remove(id)
        if self.rules.iterative:
            self.end(run)
        self.sequences.done(pending, self.now)

    def end(self, run: int) -> None:
        for id in [id for id, number in self.live.items() if number == run]:
            del self.live[id]

    def given_up(self, pendings: list[Pending], ends: bool) -> None:
        for pending in pendings:
            id = pending.request.id
            del self.waiting[id]
            self.orders[self.runs[id]].remove(id)
            if ends:
                self.end(self.runs[id])

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data) -> None:
        id = data.draw(st.sampled_from(sorted(self.waiting)))
        run = self.runs[id]
        cancelled = self.sequences.cancel(self.waiting[id], self.now)
        assert {one.request.id for one in cancelled} == {one for one in self.waiting if self.runs[one] == run}
        self.given_up(cancelled, ends=True)

    @rule(data=st.data(), inside=st.booleans())
    def die(self, data, inside: bool) -> None:
        alive = [one for one in self.instances if one.state is InstanceState.READY]
        if not alive:
            return
        instance = data.draw(st.sampled_from(alive))
        batches = [one for batch in instance.outstanding for one in batch.requests]
        instance.outstanding.clear()
        spared = [] if inside else batches
        instance.state = InstanceState.BACKOFF
        runs = {run for run, place in self.places.items() if place[0] == instance.index}
        for pending in [one for one in self.executing.values() if one.holder == instance.index]:
            if pending not in spared:
                self.answered(pending)
        for pending in spared:
            self.waiting[pending.request.id] = self.executing.pop(pending.request.id)
        lost = self.sequences.died(instance, spared)
        assert all(not one.request.flags & SEQUENCE_START for one in lost)
        self.given_up(lost, ends=False)
        for run in runs:
            self.places.pop(run)
            if not self.orders[run]:
                self.end(run)

    @rule(data=st.data())
    def revive(self, data) -> None:
        dead = [one for one in self.instances if one.state is not InstanceState.READY]
        if dead:
            data.draw(st.sampled_from(dead)).state = InstanceState.READY

    @rule()
    def drain(self) -> None:
        if all(one.state is not InstanceState.READY for one in self.instances):
            self.given_up(self.sequences.drain(), ends=True)
            assert not self.waiting

    @rule(ms=st.sampled_from([1, 5, 40, 999, 2000]))
    def wait(self, ms: int) -> None:
        self.now += ms * MS
        idle = set(self.live.values()) - {self.runs[id] for id in (*self.waiting, *self.executing)}
        self.given_up(self.sequences.expire(self.now), ends=True)
        for run in idle:
            if not any(self.sequences.is_live(id) for id, number in self.live.items() if number == run):
                self.end(run)

    # --- what holds -------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "sequences"):
            return
        for instance in self.instances:
            instance.state = InstanceState.READY
        for _ in range(1000):
            self.now += 10 * MS
            self.take()
            for instance in self.instances:
                while instance.outstanding:
                    instance.outstanding.popleft()
            for pending in list(self.executing.values()):
                self.answered(pending)
            self.given_up(self.sequences.expire(self.now), ends=True)
            self.sequences.check()
            if not self.waiting:
                break
        assert not self.waiting and not self.executing, "lost"
        self.now += 2 * IDLE_NS
        assert self.sequences.expire(self.now) == []
        assert self.sequences.live == len(self.sequences) == 0
        assert not any(self.sequences._seated.values())

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "sequences"):
            self.sequences.check()
            assert len(self.sequences) == len(self.waiting)
            assert self.sequences.live == len(self.live)


@pytest.mark.timeout(300)
def test_sequences_are_kept_in_order_and_nothing_is_lost():
    run_random_events(SequencesMachine, usual=150)
