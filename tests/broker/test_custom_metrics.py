from __future__ import annotations

from typing import Any

from broker.events import StubSaid
from metrics.recorder import Recorder
from protocol.messages import (
    DROP_METRICS,
    NEW_FAMILY,
    NEW_METRIC,
    UPDATE_METRIC,
    DropMetrics,
    NewFamily,
    NewMetric,
    Told,
    UpdateMetric,
)


def ask(bench: Any, key: str, message: Any) -> Told:
    bench.tell(StubSaid(key, message, ()))
    return bench.inbox[key].pop()


def make(bench: Any, key: str, number: int = 1) -> None:
    """A counter "hits" without labels, incremented once."""
    for message in (
        NewFamily(NEW_FAMILY, 1, number, "hits", "", "counter"),
        NewMetric(NEW_METRIC, 2, number, number, {}, None),
        UpdateMetric(UPDATE_METRIC, 3, number, "increment", 1.0),
    ):
        assert ask(bench, key, message).error is None


def value(bench: Any) -> float | None:
    values = [metric.value for family in bench.recorder.custom for metric in family]
    return values[0] if values else None


def test_the_answer_bears_the_number_of_the_question_and_the_value(bench):
    make(bench, bench.only())
    told = ask(bench, bench.only(), UpdateMetric(UPDATE_METRIC, 9, 1, "value", 0.0))
    assert (told.call, told.error, told.value) == (9, None, 1.0)


def test_a_change_that_nobody_waits_for_is_made_and_not_answered(bench):
    make(bench, bench.only())
    for amount in (2.0, -1.0):
        bench.tell(StubSaid(bench.only(), UpdateMetric(UPDATE_METRIC, 0, 1, "increment", amount), ()))
    assert value(bench) == 3
    assert not [message for message in bench.inbox[bench.only()] if isinstance(message, Told)]


def test_a_refusal_names_the_instance(bench):
    told = ask(bench, bench.only(), NewFamily(NEW_FAMILY, 4, 1, "a b", "", "counter"))
    assert (told.call, told.error) == (
        4,
        (3, "Failed to process the request for model 'm_0', message: Invalid metric name"),
    )


def test_a_model_may_make_metrics_while_it_loads(make_bench):
    bench = make_bench()
    bench.load()
    bench.hello(bench.only())
    make(bench, bench.only())
    assert value(bench) == 1


def test_metrics_go_with_the_process_that_held_them(make_bench):
    bench = make_bench()
    bench.load(instances=2)
    bench.bring_up()
    first, second = bench.alive
    make(bench, first)
    make(bench, second)
    assert value(bench) == 2
    bench.die(first)
    assert value(bench) == 2
    bench.die(second)
    assert value(bench) is None


def test_they_go_with_a_process_that_fails_to_load(make_bench):
    bench = make_bench()
    bench.load()
    bench.hello(bench.only())
    make(bench, bench.only())
    bench.die(bench.only())
    assert value(bench) is None


def test_they_go_when_the_model_lets_go_of_them(bench):
    make(bench, bench.only())
    bench.tell(StubSaid(bench.only(), DropMetrics(DROP_METRICS, [1], [1]), ()))
    assert value(bench) is None


def test_a_process_that_a_model_forked_uses_its_metrics_and_is_answered_itself(bench):
    key = bench.only()
    make(bench, key)
    bench.alive[key + "/1"], bench.inbox[key + "/1"] = "fork", []
    assert ask(bench, key + "/1", UpdateMetric(UPDATE_METRIC, 1, 1, "value", 0.0)).value == 1
    make(bench, key + "/1", 2)
    assert value(bench) == 2


def test_a_dead_process_is_not_heard(make_bench):
    bench = make_bench()
    bench.load(instances=2)
    bench.bring_up()
    first, _ = bench.alive
    bench.die(first)
    bench.tell(StubSaid(first, NewFamily(NEW_FAMILY, 1, 1, "hits", "", "counter"), ()))
    assert list(bench.recorder.custom) == []


def test_without_metrics_a_model_is_told(make_bench, monkeypatch):
    monkeypatch.setitem(make_bench.__init__.__globals__, "Recorder", lambda: Recorder(custom=False))
    bench = make_bench()
    bench.load()
    bench.bring_up()
    told = ask(bench, bench.only(), NewFamily(NEW_FAMILY, 1, 1, "hits", "", "counter"))
    assert told.error == (3, "Failed to process the request for model 'm_0', message: metrics not supported")
    bench.tell(StubSaid(bench.only(), DropMetrics(DROP_METRICS, [1], []), ()))
    bench.die(bench.only())
