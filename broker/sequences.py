"""The sequences of one model version: who has a slot, who waits for one, and whose requests make the next batch. Pure.

    a request comes --> its sequence has a slot?  yes: behind the others of its sequence
                                                  no: in the backlog, until the oldest sequence there gets a free slot
    an instance is idle --> one request of each of its sequences at most

A slot is one of an instance's: all requests of a sequence are executed there, in order, the next one when the one
before has its final answer. It is free again when the sequence has ended: by its END flag, because nothing has come for
too long, because one of its requests was cancelled, because its process has died. A START flag on a sequence that has
not ended begins it anew in its place, behind what waits there.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Sequential
from heapq import heappop, heappush
from typing import NamedTuple

from broker.instance import Instance, InstanceState
from broker.queue import Pending
from broker.sequence_batch import ReadySequences, Sequence, Slot, choose, number
from broker.sequence_rules import SequenceRules
from broker.settings import NO_DELAY, DelayScheduler
from protocol.messages import SEQUENCE_END, SEQUENCE_START, Request

Id = int | str  # two spaces: 7 and "7" are different sequences


class SlotBatch(NamedTuple):
    """``slots`` are those of the requests. With the direct strategy they ascend: a request's slot is its place among
    the ``places`` of the batch. With the other that is 0."""

    instance: Instance
    requests: list[Pending]
    slots: list[int]
    places: int


class Sequences:
    """Invariant: whatever has been pushed comes back exactly once, by ``take`` or as what a method returns."""

    def __init__(
        self,
        rules: SequenceRules,
        instances: list[Instance],
        delay: DelayScheduler = NO_DELAY,
        leaving: Sequential[Instance] = (),
    ) -> None:
        """Instances that are ``leaving`` only go on with the sequences that they have."""
        self.rules = rules
        self._instances = instances  # it is filled later
        self._leaving = leaving
        self._delay = delay
        self._begun: set[int] = set()  # indices of instances that it does not hold back any more
        self._live: dict[Id, Sequence] = {}  # those that have not ended
        self._backlog: dict[Sequence, None] = {}  # without a slot, the oldest first
        self._free: dict[int, list[int]] = {}  # slot numbers, a heap for each instance's index
        self._seated: dict[int, dict[int, Sequence]] = {}  # by instance and slot
        self._ready: dict[int, ReadySequences] = {}  # by instance
        self._idle: dict[Sequence, None] = {}  # have a slot and nothing to do, the longest first
        self._expiries: list[tuple[int, int, Sequence]] = []  # a heap; some are not so any more
        self._of: dict[int, Sequence] = {}  # by the ids of the requests that it has
        self._waiting = 0
        self._again_ns = 0  # when a batch has waited for long enough
        self._numbers = 0  # given to requests that are sequences of their own

    def __len__(self) -> int:
        """Requests that wait."""
        return self._waiting

    @property
    def live(self) -> int:
        """Sequences for which more requests may come."""
        return len(self._live)

    def is_live(self, id: Id) -> bool:
        return id in self._live

    def seat_of(self, pending: Pending) -> Instance | None:
        """The instance that is to execute it; None while its sequence has no slot."""
        sequence = self._of.get(pending.request.id)
        return None if sequence is None or sequence.slot is None else sequence.slot.instance

    # --- a request comes ------------------------------------------------------------------------------------------

    def admit(self, request: Request, batch_size: int) -> None:
        """Raises InvalidArgument."""
        self.rules.check(request, batch_size)
        starts = request.flags & SEQUENCE_START or not request.correlation_id
        if not starts and request.correlation_id not in self._live:
            raise self.rules.not_started(request)

    def new_id(self) -> int:
        """For a request that comes without one, and is to be executed until it is answered."""
        self._numbers += 1
        while self._numbers in self._live:
            self._numbers += 1
        return self._numbers

    def push(self, pending: Pending, now: int) -> bool:
        """Of an admitted request. True if it starts a sequence of which the last one had not ended."""
        request = pending.request
        sequence = self._live.get(request.correlation_id)
        conflict = sequence is not None and bool(request.flags & SEQUENCE_START)
        if sequence is None:
            sequence = self._live[request.correlation_id] = Sequence(request.correlation_id)
            self._backlog[sequence] = None
        sequence.waiting.append(pending)
        self._of[request.id] = sequence
        self._waiting += 1
        if request.flags & SEQUENCE_END:
            self._end(sequence)
        if sequence.slot is not None:
            self._settle(sequence, now)
            return conflict
        if request.timeout_us:
            self._limit(sequence, now + request.timeout_us * 1000)
        self._seat(now)
        return conflict

    def _limit(self, sequence: Sequence, at: int) -> None:
        if not sequence.expires_ns or at < sequence.expires_ns:
            sequence.expires_ns = at
            heappush(self._expiries, (at, id(sequence), sequence))

    # --- slots ----------------------------------------------------------------------------------------------------

    def _seat(self, now: int) -> None:
        """As many from the backlog as there are free slots."""
        while self._backlog:
            slot = self._take_slot()
            if slot is None:
                return
            sequence = next(iter(self._backlog))
            del self._backlog[sequence]
            sequence.slot, sequence.expires_ns = slot, 0
            self._seated.setdefault(slot.instance.index, {})[slot.number] = sequence
            self._settle(sequence, now)

    def _take_slot(self) -> Slot | None:
        """That with the lowest number of all that are free: sequences spread over the instances."""
        best: list[int] | None = None
        for instance in self._instances:
            if instance.state is InstanceState.READY and not instance.spec.passive:
                free = self._free.setdefault(instance.index, list(range(self.rules.slots)))
                if free and (best is None or free[0] < best[0]):
                    best, chosen = free, instance
        return None if best is None else Slot(chosen, heappop(best))

    def _unseat(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        instance, number = sequence.slot
        sequence.slot = None
        del self._seated[instance.index][number]
        self._ready.get(instance.index, {}).pop(sequence, None)
        self._idle.pop(sequence, None)
        heappush(self._free[instance.index], number)

    def _settle(self, sequence: Sequence, now: int) -> None:
        """What is to be done with a sequence that has a slot."""
        assert sequence.slot is not None
        sequence.touched_ns = now
        if sequence.executing is not None:
            return
        if sequence.waiting:
            self._idle.pop(sequence, None)
            self._ready.setdefault(sequence.slot.instance.index, {}).setdefault(sequence, now)
        elif sequence.ended:
            self._unseat(sequence)
            self._seat(now)
        else:
            self._idle.pop(sequence, None)
            self._idle[sequence] = None

    def _end(self, sequence: Sequence) -> None:
        """From now on its id means another one."""
        sequence.ended = True
        if self._live.get(sequence.id) is sequence:
            del self._live[sequence.id]

    # --- batches --------------------------------------------------------------------------------------------------

    def take(self, now: int) -> list[SlotBatch]:
        """The next execution of each instance that is idle and has something to do."""
        self._seat(now)
        if self._is_delayed():
            return []
        self._again_ns = 0
        batches = []
        for instance in (*self._instances, *self._leaving):
            ready = self._ready.get(instance.index)
            if not ready or instance.outstanding or instance.state is not InstanceState.READY or instance.barred:
                continue
            if self._begins(instance, len(ready)):
                chosen, places, again_ns = choose(ready, self.rules, now)
                if chosen:
                    batches.append(self._leave(instance, chosen, places))
                elif not self._again_ns or again_ns < self._again_ns:
                    self._again_ns = again_ns
        return batches

    def _is_delayed(self) -> bool:
        """With the direct strategy all instances begin at once; the other has a queue for each of them."""
        if self.rules.oldest or not self._delay.requests:
            return False
        backlog = sum(len(sequence.waiting) for sequence in self._backlog)
        if self._waiting - backlog < self._delay.requests or backlog < self._delay.backlog:
            return True
        self._delay = NO_DELAY
        return False

    def _begins(self, instance: Instance, ready: int) -> bool:
        if ready >= self._delay.requests:
            self._begun.add(instance.index)
        return instance.index in self._begun

    def _leave(self, instance: Instance, chosen: list[Sequence], places: int) -> SlotBatch:
        ready = self._ready[instance.index]
        requests = []
        for sequence in chosen:
            del ready[sequence]
            sequence.executing = sequence.waiting.popleft()
            requests.append(sequence.executing)
        self._waiting -= len(requests)
        return SlotBatch(instance, requests, [number(sequence) for sequence in chosen], places)

    # --- a request ends -------------------------------------------------------------------------------------------

    def done(self, pending: Pending, now: int) -> None:
        """One that was taken has its final answer."""
        sequence = self._of.pop(pending.request.id)
        sequence.executing = None
        if self.rules.iterative:
            self._end(sequence)
        self._settle(sequence, now)

    def again(self, pending: Pending, now: int) -> None:
        """One that was taken is to be executed again, before the others of its sequence."""
        sequence = self._of[pending.request.id]
        sequence.executing = None
        sequence.waiting.appendleft(pending)
        self._waiting += 1
        self._settle(sequence, now)

    def cancel(self, pending: Pending, now: int) -> list[Pending]:
        """One that waits is not wanted any more: all of its sequence that wait, and the end of the sequence."""
        sequence = self._of[pending.request.id]
        self._end(sequence)
        cancelled = self._withdraw(sequence, len(sequence.waiting))
        if sequence.slot is None:
            del self._backlog[sequence]
        else:
            self._ready.get(sequence.slot.instance.index, {}).pop(sequence, None)
            self._settle(sequence, now)
        return cancelled

    def _withdraw(self, sequence: Sequence, count: int) -> list[Pending]:
        """The first ones that wait."""
        withdrawn = [sequence.waiting.popleft() for _ in range(count)]
        for pending in withdrawn:
            del self._of[pending.request.id]
        self._waiting -= count
        return withdrawn

    def holds(self, instance: Instance) -> bool:
        """Whether it has sequences that have not ended."""
        return bool(self._seated.get(instance.index))

    # --- an instance's end ----------------------------------------------------------------------------------------

    def died(self, instance: Instance, spared: Iterable[Pending]) -> list[Pending]:
        """Its sequences have lost what the process knew of them. Returns the requests of no use any more: those before
        the next START. ``spared`` were taken and not executed; what else was has been answered."""
        for pending in reversed(list(spared)):
            self._of[pending.request.id].executing = None
            self._of[pending.request.id].waiting.appendleft(pending)
            self._waiting += 1
        lost: list[Pending] = []
        left: list[Sequence] = []
        for sequence in list(self._seated.get(instance.index, {}).values()):
            self._unseat(sequence)
            starts = (number for number, one in enumerate(sequence.waiting) if one.request.flags & SEQUENCE_START)
            lost += self._withdraw(sequence, next(starts, len(sequence.waiting)))
            if sequence.waiting:
                left.append(sequence)
            else:
                self._end(sequence)
        left.sort(key=lambda sequence: sequence.waiting[0].arrived_ns)
        self._backlog = {**dict.fromkeys(left), **self._backlog}
        return lost

    def drain(self) -> list[Pending]:
        """All that wait: no instance serves."""
        waiting: list[Pending] = []
        for sequence in [*self._backlog, *(one for seats in self._seated.values() for one in seats.values())]:
            waiting += self._withdraw(sequence, len(sequence.waiting))
            if sequence.executing is None:
                self._end(sequence)
                if sequence.slot is not None:
                    self._unseat(sequence)
        self._backlog.clear()
        return waiting

    # --- time -----------------------------------------------------------------------------------------------------

    def expire(self, now: int) -> list[Pending]:
        """Ends sequences that have been idle for too long; returns the requests of those that waited for a slot for too
        long."""
        while self._idle:
            sequence = next(iter(self._idle))
            if sequence.touched_ns + self.rules.idle_ns > now:
                break
            self._end(sequence)
            self._unseat(sequence)
        self._seat(now)
        rejected: list[Pending] = []
        while self._expiries and self._expiries[0][0] <= now:
            expires_ns, _, sequence = heappop(self._expiries)
            if sequence in self._backlog and sequence.expires_ns == expires_ns:
                del self._backlog[sequence]
                self._end(sequence)
                rejected += self._withdraw(sequence, len(sequence.waiting))
        return rejected

    def next_deadline(self) -> int | None:
        """When to ``take`` or to ``expire`` though nothing has happened; perhaps too soon."""
        deadlines = [self._expiries[0][0]] if self._expiries else []
        if self._idle:
            deadlines.append(next(iter(self._idle)).touched_ns + self.rules.idle_ns)
        if self._again_ns:
            deadlines.append(self._again_ns)
        return min(deadlines, default=None)

    # --- invariants -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        seated = [sequence for seats in self._seated.values() for sequence in seats.values()]
        for index, free in self._free.items():
            slots = sorted([*free, *self._seated.get(index, {})])
            assert slots == list(range(self.rules.slots)), slots
        for index, seats in self._seated.items():
            for place, sequence in seats.items():
                assert sequence.slot is not None
                assert (sequence.slot.instance.index, sequence.slot.number) == (index, place)
                is_ready = bool(sequence.waiting) and sequence.executing is None
                assert (sequence in self._ready.get(index, {})) == is_ready
                is_idle = not sequence.waiting and sequence.executing is None
                assert (sequence in self._idle) == is_idle and not (is_idle and sequence.ended)
        assert sum(len(ready) for ready in self._ready.values()) + len(self._idle) <= len(seated)
        for sequence in self._backlog:
            assert sequence.slot is None and sequence.waiting and sequence.executing is None
        assert all(not one.ended and (one.slot is not None or one in self._backlog) for one in self._live.values())
        known = [*seated, *self._backlog]
        assert self._waiting == sum(len(one.waiting) for one in known)
        held = [pending for one in known for pending in (*one.waiting, one.executing) if pending is not None]
        assert {pending.request.id for pending in held} == set(self._of)
