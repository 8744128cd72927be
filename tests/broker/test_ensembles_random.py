"""Random requests to ensembles, answers of their models, cancels, deaths and calls: no request is lost, none is
answered twice, and the outputs of every response are given back once.

"chain" is m, n; "fork" is n and n, joined by j; "stream" is d (decoupled), m; "nested" is chain, m.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from broker.events import ClientGone, LoadModels, OutputsRead, Submitted
from broker.model import VersionSource
from protocol.messages import Answered, Execute, Executed, Handle, Request, Response, TensorRef
from tests.broker.model_sources import source
from tests.random_events import run_random_events

STEPS = {
    "chain": [("m", {"X": "X"}, {"X": "t"}), ("n", {"X": "t"}, {"X": "Y"})],
    "fork": [
        ("n", {"X": "X"}, {"X": "t"}),
        ("n", {"X": "X"}, {"X": "u"}),
        ("j", {"X": "t", "Z": "u"}, {"X": "Y"}),
    ],
    "stream": [("d", {"X": "X"}, {"X": "t"}), ("m", {"X": "t"}, {"X": "Y"})],
    "nested": [("chain", {"X": "X"}, {"Y": "t"}), ("m", {"X": "t"}, {"X": "Y"})],
}


def sources(max_inflight: int = 0) -> list[VersionSource]:
    models = [source("m"), source("n", instances=3), source("j", inputs=("X", "Z"))]
    stream = source("d", model_transaction_policy={"decoupled": True})
    limit = {"max_inflight_requests": max_inflight}
    ensembles = [source(name, steps, output="Y", ensemble_scheduling=limit) for name, steps in STEPS.items()]
    return [*models, stream, *ensembles]


class Sink:
    def __init__(self) -> None:
        self.responses: list[Response] = []
        self.unread: list[tuple[str, int]] = []
        self.inputs_released = 0

    def on_response(self, response, origin, frames) -> None:
        self.responses.append(response)
        if response.lease:
            self.unread.append((origin, response.lease))

    def on_inputs_released(self) -> None:
        self.inputs_released += 1

    def check(self) -> None:
        finals = [one for one in self.responses if one.final]
        assert len(finals) <= 1, "answered twice"
        assert not finals or self.responses[-1].final
        assert self.inputs_released <= 1


class EnsemblesMachine(RuleBasedStateMachine):
    make_bench: Callable[[], Any]
    max_inflight = 0

    def __init__(self) -> None:
        super().__init__()
        self.bench = type(self).make_bench()
        self.bench.tell(LoadModels(sources(self.max_inflight)))
        self.bench.bring_up()
        self.bench.turn()
        assert {one.name for one in self.bench.core.registry.serving()} == {"m", "n", "j", "d", *STEPS}
        self.sinks: dict[int, Sink] = {}
        self.leases: dict[str, Counter[int]] = {}  # of living stubs, what they have lent
        self.retained: list[tuple[str, int]] = []
        self.open: list[tuple[str, int]] = []
        self.calls = 0

    @rule(model=st.sampled_from(sorted(STEPS)), count=st.integers(1, 3), turn=st.booleans())
    def submit(self, model: str, count: int, turn: bool) -> None:
        for _ in range(count):
            id = len(self.sinks) + 1
            tensor = TensorRef("X", "FP32", (4,), bytes(16) if id % 3 == 0 else Handle("g", 128, 16))
            self.sinks[id] = Sink()
            self.bench.tell(Submitted(Request(id, model, -1, [tensor]), (), self.sinks[id], self.bench.now))
        if turn:
            self.bench.turn()

    def response(self, key: str, request: int, lends: bool, retains: bool, final: bool) -> Response:
        lease, outputs = 0, []
        if lends:
            lease = sum(self.leases.setdefault(key, Counter()).values()) + 1
            self.leases[key][lease] += 1
            outputs = [TensorRef("X", "FP32", (4,), Handle("s", 0, 16))]
        elif request % 2:
            outputs = [TensorRef("X", "FP32", (4,), Handle("s", 0, 16), True)]
        else:
            outputs = [TensorRef("X", "FP32", (4,), bytes(16))]
        if retains:
            self.retained.append((key, request))
        return Response(request, outputs, lease, final=final, retained=retains)

    def holding(self) -> list[str]:
        return [key for key in sorted(self.bench.alive) if self.bench.held(key)]

    @rule(data=st.data(), lends=st.booleans(), retains=st.booleans(), fails=st.integers(0, 9))
    def answer(self, data, lends: bool, retains: bool, fails: int) -> None:
        if not self.holding():
            return
        key = data.draw(st.sampled_from(self.holding()))
        if self.bench.alive[key].startswith("d"):
            self.stream(key, data.draw(st.integers(0, 3)), data.draw(st.booleans()))
            return
        request = self.bench.held(key)[0]
        answer = Response(request, [], error=(1, "bad")) if fails == 9 else None
        self.bench.executed(key, answer or self.response(key, request, lends, retains, True))

    def stream(self, key: str, count: int, ends: bool) -> None:
        """Some responses, then the final flag, perhaps later."""
        request = self.bench.held(key)[0]
        responses = [self.response(key, request, True, False, False) for _ in range(count)]
        if ends:
            responses.append(Response(request, []))
        else:
            self.open.append((key, request))
        self.bench.executed(key, *responses)

    @rule()
    def go_on(self) -> None:
        """A stream that is open has another response, and ends."""
        if self.open:
            key, request = self.open.pop(0)
            if key in self.bench.alive:
                responses = [self.response(key, request, True, False, False), Response(request, [])]
                self.bench.results(key, responses=responses)

    @rule()
    def let_go(self) -> None:
        if self.retained:
            key, request = self.retained.pop()
            if key in self.bench.alive:
                self.bench.results(key, released=[request])

    @rule(data=st.data())
    def read(self, data) -> None:
        unread = [sink for sink in self.sinks.values() if sink.unread]
        if unread:
            sink = data.draw(st.sampled_from(unread))
            self.bench.tell(OutputsRead(*sink.unread.pop(0)))

    @rule(data=st.data(), model=st.sampled_from(sorted(STEPS)), waits=st.booleans())
    def call(self, data, model: str, waits: bool) -> None:
        if self.holding():
            key = data.draw(st.sampled_from(self.holding()))
            self.calls += 1
            self.bench.call(key, model, self.calls, self.bench.inside(key), waits, model == "stream")

    @rule(data=st.data())
    def cancel(self, data) -> None:
        if self.sinks:
            self.bench.tell(ClientGone(data.draw(st.sampled_from(sorted(self.sinks)))))
            self.bench.turn()

    @precondition(lambda self: self.bench.alive)
    @rule(data=st.data())
    def die(self, data) -> None:
        key = data.draw(st.sampled_from(sorted(self.bench.alive)))
        self.bench.die(key, inside=self.bench.inside(key) if self.bench.held(key) else 0)
        self.leases.pop(key, None)

    @rule(seconds=st.sampled_from([0.01, 1.0, 40.0]))
    def sleep(self, seconds: float) -> None:
        self.bench.sleep(seconds)
        self.bring_up()

    def bring_up(self) -> None:
        for key in list(self.bench.alive):
            found = self.bench.core._roster.serving(key)
            if found is not None and found[1].state.value == "starting":
                self.bench.hello(key)
                self.bench.loaded(key)

    def unread_by_models(self) -> list[tuple[str, list[tuple[str, int]]]]:
        found = []
        for key in self.bench.alive:
            answered = self.bench.sent(key, Answered)
            found.append((key, [(one.origin, one.response.lease) for one in answered if one.response.lease]))
        return [(key, leases) for key, leases in found if leases]

    def teardown(self) -> None:
        for _ in range(300):
            ended = all(sink.responses and sink.responses[-1].final for sink in self.sinks.values())
            calls = self.bench.core.in_flight()  # of models, which may wait for an instance
            if ended and not (self.holding() or self.open or self.retained or calls):
                break
            self.sleep(40)
            self.bench.turn()
            for key in self.holding():
                batch = self.bench.take_batch(key)
                responses = [self.response(key, one.id, True, False, True) for one in batch.requests]
                self.bench.results(key, [Executed(batch.id, 1, 2, 3, False, responses)])
            self.go_on()
            self.let_go()
        for sink in self.sinks.values():
            assert sink.responses and sink.responses[-1].final, "lost"
            sink.check()
            for one in sink.unread:
                self.bench.tell(OutputsRead(*one))
            if sink.responses[-1].retained:
                assert sink.inputs_released == 1
            else:
                assert sink.inputs_released == 0
        for key, leases in self.unread_by_models():
            self.bench.results(key, read=leases)
        self.bench.sleep(40)
        assert self.bench.core.in_flight() == {}
        assert not self.bench.core._answering.ensembles._leases._lent
        assert not self.bench.core._answering.ensembles._steps
        assert not self.bench.core._answering.ensembles._patience._crowded
        for slots in [one.step_slots for one in self.bench.core.registry if one.step_slots is not None]:
            assert not slots.first() and not any(slots.running(step) for step in range(3))
        assert all(one.expected == 0 == one.flows for one in self.bench.core.registry)
        for key, lent in self.leases.items():
            if key in self.bench.alive:
                assert self.given_back(key) == lent

    def given_back(self, key: str) -> Counter[int]:
        return Counter(lease for message in self.bench.sent(key, Execute) for lease in message.released)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("max_inflight", "max_unread", "examples"), [(0, 0, 100), (1, 16, 40), (2, 0, 20)])
def test_no_request_is_lost_and_every_lease_ends_once(make_bench, max_inflight, max_unread, examples):
    class Machine(EnsemblesMachine):
        pass

    Machine.make_bench = staticmethod(lambda: make_bench(max_unread_bytes=max_unread))
    Machine.max_inflight = max_inflight
    run_random_events(Machine, usual=examples)
