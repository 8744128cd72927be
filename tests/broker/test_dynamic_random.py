"""Random arrivals, waits, time-outs, cancels, deaths and reloads of models with dynamic batching.

No request is lost, none is answered twice, none is overtaken where the order is promised, and no batch breaks a rule.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from broker.events import ClientGone, LoadModel, Polled, Submitted
from broker.model import ModelVersion, VersionSource
from broker.model_config import ModelConfigMessage, from_message
from broker.queue import Pending
from protocol.errors import ErrorKind
from protocol.messages import Execute, Executed, Handle, Request, Response, TensorRef
from tests.broker.conftest import Sink
from tests.broker.test_control import ControlBench
from tests.random_events import run_random_events

MAX_SIZE = 8
RULES: dict[str, dict] = {
    "plain": {"preferred_batch_size": [3, 5], "max_queue_delay_microseconds": 2000},
    "lone": {},
    "limited": {
        "max_queue_delay_microseconds": 1000,
        "default_queue_policy": {
            "max_queue_size": 3,
            "default_timeout_microseconds": 3000,
            "allow_timeout_override": True,
        },
    },
    "ranked": {
        "preferred_batch_size": [4],
        "priority_levels": 3,
        "default_priority_level": 2,
        "default_queue_policy": {
            "timeout_action": "DELAY",
            "default_timeout_microseconds": 2000,
            "allow_timeout_override": True,
        },
        "priority_queue_policy": {3: {"max_queue_size": 2, "default_timeout_microseconds": 4000}},
    },
    "ordered": {"preserve_ordering": True, "default_queue_policy": {"default_timeout_microseconds": 5000}},
}
INSTANCES = {"plain": 2, "lone": 1, "limited": 1, "ranked": 2, "ordered": 3}


def source(model: str, fingerprint: int) -> VersionSource:
    message = ModelConfigMessage(name=model, backend="python", max_batch_size=MAX_SIZE, dynamic_batching=RULES[model])
    message.instance_group.add(count=INSTANCES[model], name=model)
    for io in (message.input.add(), message.output.add()):
        io.name, io.data_type, io.dims[:] = "X", 11, [-1]
    return VersionSource(model, 1, f"/repo/{model}", from_message(message), fingerprint=str(fingerprint))


class OrderedSink(Sink):
    def __init__(self, answered: list[int], request: int) -> None:
        super().__init__()
        self._answered = answered
        self._request = request

    def on_response(self, response, origin, frames) -> None:
        super().on_response(response, origin, frames)
        if response.final:
            self._answered.append(self._request)


class DynamicMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = ControlBench(explains=lambda: True)
        self.fingerprint = 0
        self.versions: dict[int, ModelVersion] = {}  # that took each request
        self.refused: set[int] = set()
        self.answered: list[int] = []
        self.seen: set[int] = set()  # batches
        for model in RULES:
            self.load(model)
        while self.bench.loading():  # some wait until others are up
            self.bench.bring_up()

    def load(self, model: str) -> None:
        self.fingerprint += 1
        self.bench.tell(LoadModel(model, None, lambda error: None))
        while self.bench.polls:
            poll = self.bench.polls.pop()
            self.bench.tell(Polled(poll.number, poll.model, [source(poll.model, self.fingerprint)]))

    @rule(
        model=st.sampled_from(list(RULES)),
        requests=st.lists(
            st.tuples(
                st.integers(0, MAX_SIZE), st.sampled_from([4, 4, 5]), st.integers(0, 4), st.sampled_from([0, 500])
            ),
            min_size=1,
            max_size=5,
        ),
        turn=st.booleans(),
    )
    def submit(self, model: str, requests: list, turn: bool) -> None:
        for rows, width, priority, timeout_us in requests:
            bench = self.bench
            bench.last_id += 1
            id = bench.last_id
            sink = bench.sinks[id] = OrderedSink(self.answered, id)
            tensor = TensorRef("X", "FP32", (rows, width), Handle("g", 128, 16))
            request = Request(id, model, 1, [tensor], priority=priority, timeout_us=timeout_us)
            version = bench.core.registry.find(model, 1)
            bench.tell(Submitted(request, (), sink, bench.now))
            self.versions[id] = version
            if bench.response(id) is not None and "Exceeds maximum queue size" in bench.error(id):
                assert version.queue.is_full(request)
                self.refused.add(id)
        if turn:
            self.turn()

    def turn(self) -> None:
        self.bench.turn()
        self.look()

    @rule(data=st.data(), count=st.integers(1, 2), failed=st.booleans())
    def answer(self, data, count: int, failed: bool) -> None:
        holding = [key for key in self.bench.alive if self.bench.held(key)]
        if holding:
            key = data.draw(st.sampled_from(holding))
            self.bench.answer(key, count, error=(int(ErrorKind.INTERNAL), "bad") if failed else None, lease=0)
            self.look()

    @rule(data=st.data())
    def answer_with_senders(self, data) -> None:
        """``execute`` returns before the responses come, which come in any order."""
        holding = [key for key in self.bench.alive if self.bench.held(key)]
        if holding:
            key = data.draw(st.sampled_from(holding))
            batch = self.bench.take_batch(key)
            self.bench.results(key, executed=[Executed(batch.id, 1, 2, 3, False, [])])
            for request in data.draw(st.permutations(batch.requests)):
                self.bench.results(key, responses=[Response(request.id, [])])
            self.look()

    @rule(data=st.data())
    def cancel(self, data) -> None:
        if self.versions:
            self.bench.tell(ClientGone(data.draw(st.sampled_from(sorted(self.versions)))))
            self.turn()

    @precondition(lambda self: self.bench.alive)
    @rule(data=st.data(), known=st.booleans())
    def die(self, data, known: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.bench.alive)))
        held = self.bench.held(key)
        self.bench.die(key, inside=self.bench.inside(key) if known and held else None if held else 0)
        self.look()

    @rule(model=st.sampled_from(list(RULES)))
    def reload(self, model: str) -> None:
        self.load(model)
        self.look()

    @rule(us=st.sampled_from([100, 500, 1000, 2000, 5000, 40_000_000]))
    def sleep(self, us: int) -> None:
        self.bench.sleep(us / 1e6)
        self.look()

    @rule()
    def bring_up(self) -> None:
        self.bench.finish()
        self.bench.bring_up()
        self.look()

    # --- what must hold

    def look(self) -> None:
        """At the batches that have come to stubs since the last time, and at who waits too long."""
        for key in self.bench.alive:
            for message in self.bench.inbox[key]:
                if isinstance(message, Execute):
                    for batch in message.batches:
                        if batch.id not in self.seen:
                            self.seen.add(batch.id)
                            self.check_batch(batch.requests)
        now = self.bench.now
        for version, pending in self.bench.core._answering.living.values():
            if not pending.holder and version.name in ("limited", "ordered"):
                assert now < pending.arrived_ns + version.queue.timeout_ns(pending.request), "not rejected in time"

    def check_batch(self, requests: list[Request]) -> None:
        sizes = [request.inputs[0].shape[0] or 1 for request in requests]
        assert sum(sizes) <= MAX_SIZE or len(sizes) == 1
        assert len({request.inputs[0].shape[1] for request in requests}) == 1
        pendings = [self.bench.core._answering.living[request.id][1] for request in requests]
        version = self.versions[requests[0].id]
        self.check_order(version, pendings)

    def check_order(self, version: ModelVersion, pendings: list[Pending]) -> None:
        """Nobody who waits had come before one that leaves, but for better priorities and those that were delayed."""
        ranks = [self.rank(version, pending) for pending in pendings]
        fresh = [rank for rank, pending in zip(ranks, pendings, strict=True) if not pending.requeued]
        if version.name != "ranked":
            assert fresh == sorted(fresh)
        levels = [rank[0] for rank in ranks]
        assert levels == sorted(levels)

    @staticmethod
    def rank(version: ModelVersion, pending: Pending) -> tuple[int, int]:
        level = getattr(version.queue, "level", lambda request: 0)(pending.request)
        return level, pending.request.id

    def teardown(self) -> None:
        """Let everything come to its end."""
        for _ in range(300):
            if all(self.bench.response(id) for id in self.versions):
                break
            self.bench.sleep(0.05)
            self.bring_up()
            for key in list(self.bench.alive):
                if self.bench.held(key):
                    self.bench.answer(key, 10)
                    self.look()
        for id in self.versions:
            assert self.bench.response(id) is not None, "lost"
        for version in set(self.versions.values()):
            assert version.recorder.pending == 0
            version.recorder.check()
            if version.order is not None:
                mine = [id for id in self.answered if self.versions[id] is version and id not in self.refused]
                assert mine == sorted(mine), "out of order"


@pytest.mark.timeout(300)
def test_no_request_is_lost_answered_twice_or_batched_against_the_rules():
    run_random_events(DynamicMachine, usual=60)
