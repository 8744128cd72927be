"""The limit on the running requests of each step of an ensemble, shared by all requests to it."""

from __future__ import annotations

import pytest

from broker.events import ClientGone, OutputsRead, Say
from broker.step_slots import StepSlots
from protocol.messages import Credit, Execute, Response
from tests.broker.model_sources import source
from tests.broker.test_ensembles import CHAIN, load, output


def test_a_step_runs_so_often_and_those_behind_get_their_turn_in_order() -> None:
    slots = StepSlots(2)
    assert [slots.take(0, who) for who in "abc"] == [True, True, False]
    assert slots.take(1, "c"), "another step"
    assert slots.next(0) is None
    slots.free(0)
    assert slots.next(0) == "c"
    assert not slots.take(0, "a"), "c was there before"
    assert slots.take(0, "c")
    slots.free(0)
    assert slots.take(0, "a")
    slots.check()


def test_who_has_gone_is_in_no_line() -> None:
    slots = StepSlots(1)
    assert [slots.take(0, who) for who in "abc"] == [True, False, False]
    slots.forget("b")
    slots.free(0)
    assert slots.next(0) == "c"


def limited(make_bench, limit: int, decoupled: bool = False, max_unread: int = 0):
    """ "e" is "a", then "b"; "a" streams if ``decoupled``."""
    fields = {"ensemble_scheduling": {"max_inflight_requests": limit}}
    ensemble = source("e", CHAIN, output="Y", **fields)
    bench = make_bench(max_unread_bytes=max_unread)
    return load(bench, source("a", model_transaction_policy={"decoupled": decoupled}), source("b"), ensemble)


def answer(bench, key: str) -> None:
    (request, *_) = bench.held(key)
    bench.executed(key, Response(request, output()))


def pending(bench, model: str) -> int:
    (recorder,) = [one for one in bench.recorder if one.model == model]
    return recorder.pending


def test_the_limit_is_in_the_log(make_bench) -> None:
    bench = limited(make_bench, 2)
    text = "Ensemble model 'e' configured with max_inflight_requests: 2"
    assert [one.event for one in bench.said if isinstance(one, Say) and "max_inflight" in one.event] == [text]


def test_requests_to_an_ensemble_wait_before_a_step_that_runs_often_enough(make_bench) -> None:
    bench = limited(make_bench, 2)
    requests = [bench.submit("e") for _ in range(4)]
    bench.turn()
    assert len(bench.held(bench.a)) + pending(bench, "a") == 2
    answer(bench, bench.a)
    assert len(bench.held(bench.a)) + pending(bench, "a") == 2
    for _ in range(3):
        answer(bench, bench.a)
    for _ in range(4):
        answer(bench, bench.b)
    assert [bench.response(one).error for one in requests] == [None] * 4


def test_one_that_is_cancelled_while_it_waits_leaves_its_place(make_bench) -> None:
    bench = limited(make_bench, 1)
    _, second, _ = (bench.submit("e") for _ in range(3))
    bench.turn()
    bench.tell(ClientGone(second))
    bench.turn()
    answer(bench, bench.a)
    answer(bench, bench.a)
    assert bench.held(bench.a) == [], "the cancelled one never comes to its model"
    assert bench.response(second) is not None


def stream(bench, count: int, ends: bool = False) -> None:
    """Of the request that "a" holds, or has begun."""
    responses = [Response(bench.streaming, output(), final=False) for _ in range(count)]
    bench.results(bench.a, responses=[*responses, Response(bench.streaming, [])] if ends else responses)


def begin(bench) -> int:
    request = bench.submit("e")
    bench.turn()
    (execute,) = bench.sent(bench.a, Execute)
    ((bench.streaming, bench.window),) = execute.paced
    return request


def credit(bench) -> int:
    return sum(one.responses for one in bench.sent(bench.a, Credit))


def test_a_stream_has_credit_for_what_the_step_behind_it_can_take(make_bench) -> None:
    bench = limited(make_bench, 2, decoupled=True)
    request = begin(bench)
    assert bench.window == 2
    stream(bench, 2)
    assert credit(bench) == 2, "both run"
    stream(bench, 2)
    assert credit(bench) == 2, "both wait"
    answer(bench, bench.b)
    assert credit(bench) == 2
    answer(bench, bench.b)
    assert credit(bench) == 4, "none waits"
    stream(bench, 0, ends=True)
    answer(bench, bench.b)
    answer(bench, bench.b)
    assert len(bench.sinks[request].responses) == 4 and bench.response(request) is not None


@pytest.mark.parametrize("small", [False, True])
def test_a_stream_of_an_ensemble_pauses_while_the_client_does_not_read(make_bench, small: bool) -> None:
    bench = limited(make_bench, 0, decoupled=True, max_unread=16)
    request = begin(bench)
    for lease in range(bench.window):
        stream(bench, 1)
        (step,) = bench.held(bench.b)
        bench.executed(bench.b, Response(step, output(bytes(16))) if small else Response(step, output(), lease + 1))
    assert credit(bench) == 0
    for response in bench.sinks[request].responses:
        bench.tell(OutputsRead("ensembles", response.lease))
    assert credit(bench) == bench.window


def test_all_that_wait_run_in_the_end_one_after_the_other(make_bench) -> None:
    bench = limited(make_bench, 1)
    requests = [bench.submit("e") for _ in range(3)]
    bench.turn()
    bench.sleep(301)
    bench.sleep(301)
    for key in (bench.a, bench.b):
        for _ in requests:
            answer(bench, key)
            bench.sleep(301)
    assert [bench.response(one).error for one in requests] == [None] * 3


@pytest.mark.parametrize("seconds", [299, 301])
def test_what_waits_for_very_long_runs_all_the_same(make_bench, seconds: int) -> None:
    bench = limited(make_bench, 1)
    bench.submit("e")
    bench.submit("e")
    bench.turn()
    assert pending(bench, "a") == 0
    bench.sleep(seconds)
    assert pending(bench, "a") == (seconds > 300)
    text = "Ensemble 'e' unable to schedule step 0 (inflight: 1 >= limit: 1) for 300 seconds. "
    text += "Proceeding to avoid deadlock."
    assert [one.event for one in bench.said if isinstance(one, Say) and "deadlock" in one.event] == (
        [text] if seconds > 300 else []
    )
