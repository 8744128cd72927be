"""Random arrivals, answers, calls, cancels, deaths and waits: no request is lost, none is answered twice.

"m" has one instance, "n" three, "d" is decoupled, "s" runs sequences, "o" iterative ones. Models call each other as
they like; a stub answers a batch in full, or in part and later, or wants it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from broker.events import ClientGone, OutputsRead, StopServing, StubSaid
from protocol.messages import CANCEL_CALL, Answered, CancelCall, Response
from tests.random_events import run_random_events


class CoreMachine(RuleBasedStateMachine):
    make_bench: Callable[[], Any]

    def __init__(self) -> None:
        super().__init__()
        self.stop_at_end = False
        self.bench = type(self).make_bench()
        self.requests: list[int] = []
        self.load_models()
        self.bench.bring_up()
        self.calls: dict[str, set[int]] = {}  # unanswered ones, by the caller's key
        self.last_call = 0

    def load_models(self) -> None:
        self.bench.load("m", instances=1)
        self.bench.load("n", instances=3)
        self.bench.load("d", instances=2, decoupled=True)
        self.bench.load("s", instances=2, max_batch_size=2, sequence_batching={"direct": {}})
        iterative = {"iterative_sequence": True, "oldest": {"max_candidate_sequences": 3}}
        self.bench.load("o", instances=2, decoupled=True, max_batch_size=2, sequence_batching=iterative)

    @initialize(stop_at_end=st.booleans())
    def choose_end(self, stop_at_end: bool) -> None:
        self.stop_at_end = stop_at_end

    @rule(model=st.sampled_from(["m", "n", "d", "unknown"]), count=st.integers(1, 5), turn=st.booleans())
    def submit(self, model: str, count: int, turn: bool) -> None:
        self.requests += [self.bench.submit(model) for _ in range(count)]
        if turn:
            self.bench.turn()

    @rule(
        model=st.sampled_from(["s", "s", "o"]),
        id=st.sampled_from([1, 2, 3, 4, 5, 6, "a"]),
        flags=st.sampled_from([0, 1, 1, 2, 3]),
        timeout_us=st.sampled_from([0, 0, 5_000]),
        count=st.integers(1, 3),
        turn=st.booleans(),
    )
    def submit_to_sequence(
        self, model: str, id: int | str, flags: int, timeout_us: int, count: int, turn: bool
    ) -> None:
        for _ in range(count):
            fields = {"correlation_id": id, "flags": flags, "timeout_us": timeout_us}
            self.requests.append(self.bench.submit(model, rows=1, **fields))
            flags = 0
        if turn:
            self.bench.turn()

    @rule(
        data=st.data(),
        count=st.integers(1, 4),
        execute_ns=st.sampled_from([1_000, 200_000, 10**9]),
        lie=st.integers(0, 9),
    )
    def answer(self, data, count: int, execute_ns: int, lie: int) -> None:
        holding = [key for key in self.bench.alive if self.bench.held(key)]
        if holding:
            key = data.draw(st.sampled_from(holding))
            expected = self.bench.held(key)[0]
            self.bench.answer(key, count, execute_ns, lie == 9, lease=7)
            assert expected < 0 or self.bench.response(expected) is not None
            if lie == 9:
                assert self.bench.killed[-1] == key
                self.bench.die(key)
                return
            self.bench.tell(OutputsRead(key, 7))

    @rule(data=st.data(), rounds=st.integers(0, 3), final=st.booleans(), failed=st.booleans())
    def answer_in_part(self, data, rounds: int, final: bool, failed: bool) -> None:
        """By response senders: some before execute returns, the last one perhaps after it."""
        holding = [key for key in self.bench.alive if self.bench.held(key)]
        if not holding:
            return
        key = data.draw(st.sampled_from(holding))
        request = self.bench.held(key)[0]
        error = (1, "bad") if failed else None
        responses = [Response(request, [], error=error, final=False)] * rounds
        self.bench.results(key, responses=responses)
        if final:
            self.bench.results(key, responses=[Response(request, [])])
        self.bench.executed(key)

    @rule(data=st.data())
    def end_open(self, data) -> None:
        opened = [(key, id) for key in self.bench.alive for id in self.open(key)]
        if opened:
            key, request = data.draw(st.sampled_from(opened))
            self.bench.results(key, responses=[Response(request, [], retained=True)], released=[])
            self.bench.results(key, released=[request])

    @rule(data=st.data())
    def reschedule(self, data) -> None:
        holding = [key for key in self.bench.alive if self.bench.held(key)]
        if holding:
            key = data.draw(st.sampled_from(holding))
            self.bench.executed(key, rescheduled=[self.bench.held(key)[0]])

    @rule(
        data=st.data(), model=st.sampled_from(["m", "n", "d", "o", "unknown"]), waits=st.booleans(), turn=st.booleans()
    )
    def call(self, data, model: str, waits: bool, turn: bool) -> None:
        holding = [key for key in self.bench.alive if self.bench.held(key)]
        if holding:
            key = data.draw(st.sampled_from(holding))
            self.last_call += 1
            self.calls.setdefault(key, set()).add(self.last_call)
            batch = data.draw(st.sampled_from([0, self.bench.inside(key)]))
            self.bench.call(key, model, self.last_call, batch, waits, data.draw(st.booleans()))

    @rule(data=st.data())
    def cancel_call(self, data) -> None:
        calls = [(key, call) for key, calls in self.calls.items() if key in self.bench.alive for call in calls]
        if calls:
            key, call = data.draw(st.sampled_from(calls))
            self.bench.tell(StubSaid(key, CancelCall(CANCEL_CALL, call), ()))

    def open(self, key: str) -> list[int]:
        found = self.bench.core._roster.serving(key)
        return list(found[1].open) if found is not None else []

    def unanswered(self) -> int:
        """Calls of living stubs that have no final answer; each has at most one."""
        left = 0
        for key, calls in self.calls.items():
            if key in self.bench.alive:
                finals = [one.call for one in self.bench.sent(key, Answered) if one.response.final]
                assert len(finals) == len(set(finals)), "answered twice"
                left += len(calls - set(finals))
        return left

    @precondition(lambda self: self.bench.alive)
    @rule(data=st.data(), known=st.booleans())
    def die(self, data, known: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.bench.alive)))
        batches = self.bench.batches(key)
        inside = data.draw(st.sampled_from(batches)) if batches else None
        self.bench.die(key, inside=None if not known else inside.id if inside is not None else 0)
        for request in inside.requests if inside is not None and known else ():
            if request.id > 0:
                assert "is not healthy" in self.bench.error(request.id)

    @rule(data=st.data())
    def cancel(self, data) -> None:
        if self.requests:
            self.bench.tell(ClientGone(data.draw(st.sampled_from(self.requests))))

    @rule(seconds=st.sampled_from([0.01, 1.0, 40.0]))
    def sleep(self, seconds: float) -> None:
        self.bench.sleep(seconds)

    @rule()
    def bring_up(self) -> None:
        for key in list(self.bench.alive):
            if key in self.bench.killed:
                self.bench.die(key)
            elif not self.known(key):
                self.bench.hello(key)
                self.bench.loaded(key)

    def known(self, key: str) -> bool:
        found = self.bench.core._roster.serving(key)
        return found is not None and found[1].state.value not in ("starting", "loading")

    def teardown(self) -> None:
        """Let everything come to its end."""
        if self.stop_at_end:
            self.bench.tell(StopServing())
        for _ in range(200):
            calls = self.bench.core.in_flight()  # of models, some of which nobody waits for any more
            if all(self.bench.response(one) for one in self.requests) and not (self.unanswered() or calls):
                break
            self.bench.sleep(40)
            self.bring_up()
            self.bench.turn()
            for key in list(self.bench.alive):
                if self.bench.held(key):
                    self.bench.answer(key, 10)
                for request in self.open(key):
                    self.bench.results(key, responses=[Response(request, [])])
        for one in self.requests:
            assert self.bench.response(one) is not None, "lost"
        assert not self.unanswered()
        for recorder in self.bench.recorder:
            recorder.check()
            assert recorder.pending == 0


@pytest.mark.timeout(300)
def test_no_request_is_lost_or_answered_twice(make_bench):
    CoreMachine.make_bench = staticmethod(make_bench)
    run_random_events(CoreMachine, usual=200)
