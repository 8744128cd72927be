"""The bound on the requests that wait in the whole server."""

from __future__ import annotations

from functools import partial

import pytest

from broker.events import ClientGone
from protocol.errors import ErrorKind, Unavailable
from protocol.messages import Response
from tests.broker.model_sources import source
from tests.broker.test_core_random import CoreMachine
from tests.broker.test_ensembles import CHAIN, load, output
from tests.random_events import run_random_events


@pytest.fixture
def bench(make_bench):
    """Two models with one slow instance each; three requests may wait."""
    bench = make_bench(max_queued_requests=3, train_requests=1)
    bench.load("m")
    bench.load("n")
    bench.bring_up()
    return bench


def fill(bench) -> list[int]:
    """One request in execution and three that wait."""
    first = bench.submit("m")
    bench.turn()
    return [first, bench.submit("m"), bench.submit("m"), bench.submit("m")]


def test_requests_are_refused_while_so_many_wait(bench) -> None:
    fill(bench)
    refused = bench.submit("m")
    bench.turn()
    error = bench.response(refused).error
    assert error == (
        int(ErrorKind.UNAVAILABLE),
        f"[request id: client-{refused}] Exceeds maximum queue size: 3 requests wait in this server, which takes none "
        "for model 'm' beyond --max-queued-requests=3",
    )
    assert bench.recorder.pressure.refused_for_requests == 1
    assert all(sum(one.failures.values()) == 0 for one in bench.recorder)
    with pytest.raises(Unavailable):
        bench.core.refuse_when_full("m", -1)


def test_a_model_of_which_none_waits_is_not_shut_out_by_others(bench) -> None:
    fill(bench)
    assert bench.response(bench.submit("n")) is None
    assert "Exceeds maximum queue size" in bench.error(bench.submit("n")), "one waits now, to the end of the turn"
    bench.turn()
    assert bench.response(bench.submit("n")) is None


@pytest.mark.parametrize("how", ["answered", "cancelled"])
def test_one_that_goes_makes_room(bench, how: str) -> None:
    requests = fill(bench)
    if how == "answered":
        bench.turn()
        bench.answer(next(iter(bench.alive)))
    else:
        bench.tell(ClientGone(requests[1]))
    taken = bench.submit("m")
    bench.turn()
    assert bench.response(taken) is None
    assert bench.recorder.pressure.queued == sum(one.pending for one in bench.recorder)


@pytest.mark.timeout(300)
def test_whatever_happens_what_is_counted_waits_and_what_was_taken_is_answered(make_bench) -> None:
    class Machine(CoreMachine):
        pass

    Machine.make_bench = staticmethod(partial(make_bench, max_queued_requests=3))
    run_random_events(Machine, usual=40)


def test_an_unknown_model_is_unknown_before_anything_else(bench) -> None:
    fill(bench)
    assert "unknown model" in bench.error(bench.submit("nobody"))


def test_what_models_call_is_never_refused(bench) -> None:
    first, *_ = fill(bench)
    bench.turn()
    caller = next(iter(bench.alive))
    assert bench.held(caller) == [first]
    bench.call(caller, "n")
    assert bench.core._answering.calls.find(caller, 1) is not None


def test_what_ensembles_lead_to_counts_and_is_never_refused(make_bench) -> None:
    bench = load(
        make_bench(max_queued_requests=1, train_requests=1), source("a"), source("b"), source("e", CHAIN, output="Y")
    )
    running, waiting = bench.submit("e"), bench.submit("e")
    bench.turn()
    refused = bench.submit("e")
    bench.turn()
    assert "Exceeds maximum queue size" in bench.error(refused)
    for _ in range(2):
        (step,) = bench.held(bench.a)
        bench.executed(bench.a, Response(step, output()))
    for _ in range(2):
        (step,) = bench.held(bench.b)
        bench.executed(bench.b, Response(step, output()))
    assert [bench.response(one).error for one in (running, waiting)] == [None, None]
