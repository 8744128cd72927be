"""Stubs that have outlived their broker: the next one takes them over with what they hold, and runs nothing twice."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.config_json import to_json
from broker.events import HostJoined, HostLost, LoadModels, Override, Polled, Say, Spawn, StartServing
from broker.model import VersionSource
from broker.model_config import ModelConfigMessage, from_message
from protocol.codec import encode
from protocol.messages import NEW_FAMILY, NEW_METRIC, READY, Cancel, Executed, NewFamily, NewMetric, Ready, Response
from protocol.services import Given, HeldMetric, HeldStub
from tests.broker.conftest import Bench, Sink
from tests.random_events import examples

OLD_NONCE = b"o" * 32


class Adopting(Bench):
    """A new broker, and the sinks of requests that an old one had taken."""

    def __init__(self, **settings: object) -> None:
        super().__init__(hosted=True, auto_complete=True, first_number=1000, **settings)
        self.spawned: list[str] = []
        self.old: dict[int, Sink] = {}
        self.up: set[str] = set()

    def _carry_out(self, actions: list) -> None:
        self.spawned += [action.key for action in actions if isinstance(action, Spawn)]
        super()._carry_out(actions)

    def sink(self, id: int) -> Sink:
        return self.old.setdefault(id, Sink())

    def serve(self, count: int = 1, stamp: str = "files-1", **fields: object) -> None:
        """A model "m", of which nothing but files and configuration are known."""
        self.tell(LoadModels([self.source(count, stamp, **fields)]))
        self.turn()

    @staticmethod
    def source(count: int = 1, stamp: str = "files-1", **fields: object) -> VersionSource:
        message = ModelConfigMessage(name="m", backend="python", **fields)
        message.instance_group.add(count=count, name="m")
        return VersionSource("m", 1, "/repo/m", from_message(message), files=stamp)

    def join(self, *held: HeldStub, host: str = "a", metrics: tuple[HeldMetric, ...] = ()) -> None:
        for stub in held:
            self.alive[stub.key] = stub.instance
            self.inbox[stub.key] = []
        self.tell(HostJoined(host, ("*",), (), held, self.sink, metrics))
        self.turn()

    def come_up(self) -> None:
        """What this broker has started does, and what it has killed goes."""
        for _ in range(3):
            self.finish()
            for key in [key for key in self.spawned if key in self.alive and key not in self.up]:
                self.up.add(key)
                self.hello(key)
                self.loaded(key)
                if key.startswith("c"):
                    self.die(key, 0)

    def version(self):
        return self.core.registry.rows("m")[0]

    def says(self, key: str, *executed: Executed, responses: tuple[Response, ...] = ()) -> None:
        self.results(key, list(executed), responses=list(responses))


def held(key="7.2", instance="m_0", stamp="files-1", batches=(), open=(), ready=True, **config) -> HeldStub:
    """A stub with the complete configuration that the old broker gave it: inputs and outputs are X."""
    message = ModelConfigMessage(name="m", backend="python", **config)
    stamp = VersionSource("m", 1, "/repo/m", from_message(message), files=stamp).stamp
    for io in (message.input.add(), message.output.add()):
        io.name, io.data_type, io.dims[:] = "X", 11, [4]
    said = encode(Ready(READY, OLD_NONCE, "segment")) if ready else b""
    return HeldStub(key, "m", 1, instance, stamp, to_json(message), said, list(batches), list(open))


@pytest.fixture
def bench():
    bench = Adopting()
    bench.serve()
    return bench


def test_a_stub_that_lives_serves_at_once_and_nothing_is_started(bench):
    bench.join(held())
    assert bench.version().state.value == "READY"
    assert (bench.spawned, bench.killed) == ([], [])
    request = bench.submit()
    bench.turn()
    assert bench.held("7.2") == [request]
    bench.answer("7.2")
    assert bench.response(request).error is None


def test_the_configuration_is_the_one_that_its_stubs_were_given(bench):
    bench.join(held())
    assert json.loads(bench.version().signature.config_json)["input"][0]["name"] == "X"


def test_what_a_stub_holds_is_answered_when_it_has_executed_it(bench):
    bench.join(held(batches=[(3, [11, 12]), (4, [13])], open=[10]))
    new = bench.submit()
    bench.turn()
    bench.says("7.2", responses=(Response(10, []),))
    bench.says("7.2", Executed(3, 1, 1, 1, False, [Response(11, []), Response(12, [])]))
    bench.says("7.2", Executed(4, 1, 1, 1, False, [Response(13, [])]))
    assert {id: len(sink.responses) for id, sink in bench.old.items()} == {10: 1, 11: 1, 12: 1, 13: 1}
    assert bench.held("7.2") == [new]
    assert bench.batches("7.2")[0].id > 4


def test_what_an_ensemble_or_a_model_had_asked_of_it_is_wanted_no_more(bench):
    bench.join(held(batches=[(3, [11, -7])], open=[10, -6]))
    assert [message.requests for message in bench.sent("7.2", Cancel)] == [[-7, -6]]
    bench.says("7.2", responses=(Response(-6, [], lease=1, final=False), Response(-6, [])))
    bench.says("7.2", Executed(3, 1, 1, 1, False, [Response(11, []), Response(-7, [])]))
    assert len(bench.old[11].responses) == 1
    assert not bench.core.is_living(-6) and not bench.core.is_living(-7)


def test_inputs_that_a_model_has_kept_are_given_back_though_another_broker_told_the_answer(bench):
    bench.join(held())
    bench.results("7.2", released=[17])
    assert bench.old[17].inputs_released == 1


def test_if_the_stub_dies_what_it_held_fails_or_goes_on_as_ever(bench):
    bench.join(held(batches=[(3, [11])]))
    bench.die("7.2", inside=3)
    assert "is not healthy" in bench.old[11].responses[0].error[1]
    assert bench.spawned == ["7.3"]


def test_what_is_missing_is_started_beside_the_stubs_that_live(make_bench):
    bench = Adopting()
    bench.serve(count=2)
    bench.join(held(instance="m_1"))
    assert bench.version().state.value == "LOADING"
    (new,) = bench.spawned
    bench.come_up()
    assert bench.version().state.value == "READY"
    assert sorted(one.key for one in bench.version().instances) == sorted(["7.2", new])


@pytest.mark.parametrize(
    "stub",
    [
        held(stamp="other files"),
        held(instance="m_9"),
        held(ready=False),
        held(key="c7"),
        held(key="../../etc"),
        held()._replace(model="unknown"),
        held()._replace(ready=b"\xc1"),
        held()._replace(version=2),
        held()._replace(given=Given("{}", files=False)),
        held(max_batch_size=2),
    ],
    ids=[
        *("changed", "no such instance", "not ready", "configuring", "no key", "no model", "no message", "no version"),
        *("given by a request", "another configuration"),
    ],
)
def test_a_stub_that_nobody_wants_is_killed(bench, stub):
    bench.join(stub)
    assert stub.key in bench.killed or bench.core.loading
    bench.come_up()
    assert stub.key in bench.killed
    assert stub.key not in {one.key for one in bench.version().instances}


def test_a_second_host_comes_back_to_a_model_that_serves_already(bench):
    bench.join(held())
    bench.join(held(key="8.0", batches=[(5, [21])]), host="b")
    assert sorted(one.key for one in bench.version().instances) == ["7.2", "8.0"]
    bench.says("8.0", Executed(5, 1, 1, 1, False, [Response(21, [])]))
    assert len(bench.old[21].responses) == 1
    assert bench.spawned == []


def test_a_stub_inside_a_sequence_is_not_taken_over_since_its_slots_are_not_known():
    bench = Adopting()
    bench.serve(max_batch_size=2, sequence_batching={"direct": {}})
    bench.join(held(batches=[(3, [11])], max_batch_size=2, sequence_batching={"direct": {}}))
    assert "7.2" in bench.killed or bench.core.loading
    assert bench.old == {}


def test_a_model_that_somebody_had_loaded_is_asked_for_again():
    bench = Adopting(explicit_control=True)
    bench.tell(StartServing())
    bench.join(held())
    polls = [action for action in bench.said if type(action).__name__ == "Poll"]
    assert [poll.model for poll in polls] == ["m"]
    assert bench.killed == []


def test_what_a_stub_says_before_it_is_taken_over_is_heard_then():
    bench = Adopting(explicit_control=True)
    bench.tell(StartServing())
    bench.join(held(batches=[(3, [11]), (4, [12])]), held(key="8.0", instance="m_1", batches=[(5, [13])]))
    bench.says("7.2", Executed(3, 1, 1, 1, False, [Response(11, [])]))
    bench.die("8.0", inside=5)
    assert bench.old == {} and bench.core.is_adopting
    (poll,) = [action for action in bench.said if type(action).__name__ == "Poll"]
    bench.tell(Polled(poll.number, "m", [bench.source(count=2)]))
    bench.turn()
    assert not bench.core.is_adopting
    assert bench.old[11].responses[0].error is None
    assert "is not healthy" in bench.old[13].responses[0].error[1]
    bench.says("7.2", Executed(4, 1, 1, 1, False, [Response(12, [])]))
    assert bench.old[12].responses[0].error is None
    assert bench.spawned == ["8.1"]


def with_metrics(stub: HeldStub, kind: str) -> HeldStub:
    buckets = [1.0] if kind == "histogram" else None
    made = [NewFamily(NEW_FAMILY, 0, 1, "seen", "", kind), NewMetric(NEW_METRIC, 0, 1, 1, {}, buckets)]
    return stub._replace(made=[encode(one) for one in made])


def seen(bench) -> tuple[float, list[int], float]:
    (family,) = bench.recorder.custom
    (metric,) = family
    bench.core.check()
    return metric.value, metric.counts, metric.sum


def added(value: float = 0.0, is_set: bool = False, counts: tuple[int, ...] = (0,), total: float = 0.0) -> HeldMetric:
    return HeldMetric("seen", [], value, is_set, list(counts), total)


def test_metrics_are_made_again_with_what_each_host_has_added(bench):
    bench.join(with_metrics(held(), "counter"), metrics=(added(3.0),))
    assert seen(bench)[0] == 3.0
    bench.join(with_metrics(held(key="8.0"), "counter"), host="b", metrics=(added(4.0),))
    assert seen(bench)[0] == 7.0


def test_a_gauge_is_what_the_last_one_has_set_it_to(bench):
    bench.join(with_metrics(held(), "gauge"), metrics=(added(3.0, is_set=True),))
    bench.join(with_metrics(held(key="8.0"), "gauge"), host="b", metrics=(added(4.0, is_set=True),))
    assert seen(bench)[0] == 4.0


def test_buckets_of_a_histogram_are_added_up(bench):
    bench.join(with_metrics(held(), "histogram"), metrics=(added(counts=(1, 2), total=5.0),))
    bench.join(with_metrics(held(key="8.0"), "histogram"), host="b", metrics=(added(counts=(0, 3), total=9.0),))
    assert seen(bench) == (0.0, [1, 5], 14.0)


def test_of_a_host_that_was_lost_and_comes_back_nothing_counts_twice(bench):
    bench.join(with_metrics(held(), "counter"), metrics=(added(3.0),))
    bench.join(with_metrics(held(key="8.0"), "counter"), host="b", metrics=(added(4.0),))
    bench.tell(HostLost("b"))
    bench.join(with_metrics(held(key="8.0"), "counter"), host="b", metrics=(added(4.0),))
    assert seen(bench)[0] == 7.0  # the other one has held it meanwhile
    bench.tell(HostLost("a"))
    bench.tell(HostLost("b"))
    assert list(bench.recorder.custom) == []
    bench.join(with_metrics(held(key="8.0"), "counter"), host="b", metrics=(added(4.0),))
    assert seen(bench)[0] == 4.0


def polled(bench) -> list:
    return [action.override for action in bench.said if type(action).__name__ == "Poll"]


def test_a_model_is_loaded_again_with_what_a_request_has_given():
    bench = Adopting(explicit_control=True)
    bench.tell(StartServing())
    bench.join(held(key="6.0", instance="m_1"), held()._replace(given=Given("{}", files=False)))
    assert polled(bench) == [Override("{}")]


def test_files_that_were_given_come_back_from_a_host_and_their_stubs_are_taken_over():
    bench = Adopting(explicit_control=True)
    bench.tell(StartServing())
    given = held()._replace(given=Given("{}", files=True))
    bench.join(given._replace(files={"1/model.py": b"code"}), given._replace(key="8.0", instance="m_1"))
    bench.join(given._replace(key="9.0"), host="b")  # while it is read
    assert polled(bench) == [Override("{}", {"file:1/model.py": b"code"}, {1: "files-1"})]
    (poll,) = [action for action in bench.said if type(action).__name__ == "Poll"]
    source = dataclasses.replace(bench.source(count=2), private_directory="/tmp/m", given_config="{}")
    bench.tell(Polled(poll.number, "m", [source]))
    bench.turn()
    assert {one.key for one in bench.version().instances} >= {"7.2", "8.0", "9.0"}


def test_a_model_of_which_the_files_are_lost_is_said_to_be_gone():
    bench = Adopting(explicit_control=True)
    bench.tell(StartServing())
    bench.join(held()._replace(given=Given("{}", files=True)))
    assert polled(bench) == []
    assert [action.event for action in bench.said if isinstance(action, Say)] == ["a model is gone"]
    assert bench.killed == ["7.2"]


def test_nobody_waits_for_stubs_of_files_that_have_changed(bench):
    bench.join(held(stamp="other files"))
    assert bench.core.loading and not bench.core.is_adopting


@settings(max_examples=examples(40), deadline=None, database=None)
@given(st.permutations(["model is read", "7.2", "7.2", "8.0", "8.0", "8.0 dies"]))
def test_each_request_inside_is_answered_once_whenever_its_model_is_read(events):
    bench = Adopting(explicit_control=True)
    bench.tell(StartServing())
    batches = {"7.2": [(3, 11), (4, 12)], "8.0": [(5, 13), (6, 14)]}
    stubs = [
        held(key, f"m_{place}", batches=[(batch, [request]) for batch, request in batches[key]])
        for place, key in enumerate(("7.2", "8.0"))
    ]
    bench.join(*stubs)
    (poll,) = [action for action in bench.said if type(action).__name__ == "Poll"]
    for event in events:
        if event == "model is read":
            bench.tell(Polled(poll.number, "m", [bench.source(count=2)]))
            bench.turn()
        elif event == "8.0 dies":
            bench.die("8.0", inside=batches["8.0"][0][0] if batches["8.0"] else 0)
            batches["8.0"] = []
        elif batches[event]:
            batch, request = batches[event].pop(0)
            bench.says(event, Executed(batch, 1, 1, 1, False, [Response(request, [])]))
    assert {id: len(sink.responses) for id, sink in bench.old.items()} == dict.fromkeys((11, 12, 13, 14), 1)
    assert not bench.core.is_living(11) and "7.2" not in bench.killed
