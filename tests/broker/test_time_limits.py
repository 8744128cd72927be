"""Models that take too long to load, or to execute: aborted, killed if need be, and then like any dead process."""

from __future__ import annotations

import pytest

from broker.events import Abort, Say, StubSaid
from protocol.messages import STARVED, Response, Starved

LOAD, EXECUTE = "LOAD_TIMEOUT_SECONDS", "EXECUTE_TIMEOUT_SECONDS"


def limited(make_bench, parameter: str, seconds: str = "2"):
    bench = make_bench()
    bench.load(parameters={parameter: {"string_value": seconds}})
    return bench


def aborted(bench) -> list[str]:
    return [action.key for action in bench.said if isinstance(action, Abort)]


@pytest.fixture
def bench(make_bench):
    """One instance, whose executions may take two seconds."""
    bench = limited(make_bench, EXECUTE)
    bench.bring_up()
    return bench


def test_an_execution_that_hangs_is_aborted_and_its_request_told_why(bench):
    request = bench.submit()
    bench.turn()
    key = bench.only()
    bench.sleep(1.9)
    assert aborted(bench) == []
    bench.sleep(0.1)
    assert aborted(bench) == [key]
    bench.die(key, status=-6, inside=bench.inside(key))
    assert bench.error(request) == "execute took longer than the 2 s that EXECUTE_TIMEOUT_SECONDS of model 'm' allows."
    assert [one.event for one in bench.said if isinstance(one, Say)].count(bench.error(request)) == 1
    bench.bring_up()
    second = bench.submit()
    bench.turn()
    bench.answer(bench.only())
    assert bench.response(second).error is None


def test_one_that_survives_the_abort_is_killed_a_second_later(bench):
    bench.submit()
    bench.turn()
    key = bench.only()
    bench.sleep(2)
    assert bench.killed == []
    assert bench.core.next_deadline() <= bench.now + 1_000_000_000
    bench.sleep(1)
    assert bench.killed == [key]


def test_each_execution_has_its_own_time(bench):
    requests = [bench.submit() for _ in range(3)]
    bench.turn()
    for request in requests:
        bench.sleep(1.5)
        bench.answer(bench.only())
        assert bench.response(request) is not None
    bench.sleep(60)
    assert aborted(bench) == []


def test_an_open_request_is_no_execution(make_bench):
    bench = make_bench()
    bench.load(decoupled=True, parameters={EXECUTE: {"string_value": "2"}})
    bench.bring_up()
    request = bench.submit()
    bench.turn()
    bench.executed(bench.only())
    bench.sleep(60)
    assert aborted(bench) == []
    bench.results(bench.only(), responses=[Response(request, [])])


def test_an_execution_that_waits_for_a_client_to_read_has_all_the_time(bench):
    bench.submit()
    bench.submit()
    bench.turn()
    key = bench.only()
    bench.tell(StubSaid(key, Starved(STARVED), ()))
    bench.sleep(60)
    assert aborted(bench) == []
    bench.answer(key)
    bench.sleep(2)
    assert aborted(bench) == [key], "the next one has its limit"


def test_a_process_that_dies_by_itself_is_what_it_always_was(bench):
    request = bench.submit()
    bench.turn()
    key = bench.only()
    bench.die(key, inside=bench.inside(key))
    assert bench.error(request) == "Stub process 'm_0' is not healthy."


def test_a_model_that_does_not_come_up_in_time_fails_to_load(make_bench):
    bench = limited(make_bench, LOAD)
    key = bench.only()
    bench.hello(key)
    bench.sleep(2)
    assert aborted(bench) == [key]
    bench.die(key, status=-6)
    (row,) = bench.core.registry.index(ready=False)
    assert row.reason == "Internal: loading took longer than the 2 s that LOAD_TIMEOUT_SECONDS of model 'm' allows."


def test_a_model_that_is_up_may_idle(make_bench):
    bench = limited(make_bench, LOAD)
    bench.bring_up()
    bench.sleep(60)
    assert aborted(bench) == []


@pytest.mark.parametrize("seconds", ["soon", "0", "-1", "inf", "nan"])
def test_a_limit_that_is_none_is_an_error_of_the_configuration(make_bench, seconds):
    bench = limited(make_bench, EXECUTE, seconds)
    (row,) = bench.core.registry.index(ready=False)
    assert row.state == "UNAVAILABLE"
    assert f"parameter {EXECUTE} of model 'm' must be a number of seconds, not '{seconds}'" in row.reason
