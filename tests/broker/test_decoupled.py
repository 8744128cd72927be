"""Requests with more than one response, or with one that comes after ``execute`` has returned."""

from __future__ import annotations

import pytest

from broker.events import ClientGone, StopServing, StubSaid
from broker.statistics import statistics
from protocol.errors import ErrorKind
from protocol.messages import RESULTS, Cancel, Execute, Executed, Response, Results, TensorRef
from protocol.statistics import Duration


@pytest.fixture
def bench(make_bench):
    """One decoupled model with one instance."""
    bench = make_bench()
    bench.load(decoupled=True)
    bench.bring_up()
    return bench


def recorder(bench):
    (only,) = bench.recorder
    return only


def test_every_response_is_passed_on_in_order_and_the_final_one_ends_the_request(bench):
    request = bench.submit()
    bench.turn()
    key = bench.only()
    bench.executed(key)
    for lease in (1, 2):
        bench.results(key, responses=[Response(request, [], lease, final=False)])
    assert bench.core.in_flight() == {"'m' (version 1)": 1}
    bench.results(key, responses=[Response(request, [])])
    assert [(one.lease, one.final) for one in bench.sinks[request].responses] == [(1, False), (2, False), (0, True)]
    assert bench.core.in_flight() == {}
    assert (recorder(bench).success, recorder(bench).execution_count) == (1, 1)


def test_an_instance_executes_the_next_batch_while_requests_are_open(bench):
    first, second = bench.submit(), bench.submit()
    bench.turn()
    key = bench.only()
    bench.executed(key)
    assert bench.held(key) == [second]
    bench.executed(key)
    bench.results(key, responses=[Response(second, []), Response(first, [])])
    assert bench.response(first) and bench.response(second)


def test_a_request_may_end_before_execute_returns_and_counts_with_its_times(bench):
    request = bench.submit()
    bench.turn()
    key = bench.only()
    bench.results(key, responses=[Response(request, [])])
    assert bench.response(request) is not None
    assert recorder(bench).success == 0
    bench.executed(key)
    assert (recorder(bench).success, recorder(bench).compute_infer_ns) == (1, 2)


def test_an_error_among_the_responses_makes_the_request_a_failure_and_does_not_end_it(bench):
    request = bench.submit()
    bench.turn()
    key = bench.only()
    bench.executed(key)
    bench.results(key, responses=[Response(request, [], error=(1, "half way"), final=False)])
    assert bench.response(request) is None
    bench.results(key, responses=[Response(request, [])])
    assert bench.response(request).error is None
    assert (recorder(bench).success, recorder(bench).failures["BACKEND"]) == (0, 1)


def test_responses_count_by_their_place_among_those_to_a_request(bench):
    tensor = TensorRef("X", "FP32", (4,), 0)
    for _ in range(2):
        request = bench.submit()
        bench.turn()
        key = bench.only()
        bench.executed(key)
        bench.now += 5
        bench.results(key, responses=[Response(request, [tensor], final=False)])
        bench.results(
            key, responses=[Response(request, [], error=(1, "bad"), final=False), Response(request, [], flag_only=True)]
        )
    (row,) = [statistics(one) for one in bench.core.registry]
    first, second, third = row.response_stats
    assert (first.index, first.success, first.compute_infer) == (0, Duration(2, 10), Duration(2, 10))
    assert (second.fail.count, second.success.count, second.compute_infer.count) == (2, 0, 2)
    assert (third.empty_response.count, third.compute_infer.count) == (2, 0)


def test_open_requests_fail_with_their_process_and_those_ended_do_not(bench):
    ended, opened = bench.submit(), bench.submit()
    bench.turn()
    key = bench.only()
    bench.executed(key)
    bench.executed(key)
    bench.results(key, responses=[Response(ended, [])])
    bench.die(key)
    assert bench.response(ended).error is None
    assert bench.error(opened) == "Stub process 'm_0' is not healthy."


def test_one_that_ended_inside_execute_counts_though_the_process_died_there(bench):
    request = bench.submit()
    bench.turn()
    key = bench.only()
    bench.results(key, responses=[Response(request, [])])
    bench.die(key, inside=bench.inside(key))
    assert recorder(bench).success == 1
    assert recorder(bench).fail_count == 0


@pytest.mark.parametrize("stranger", [99, "ended"])
def test_a_response_to_a_request_that_the_stub_does_not_hold_breaks_the_protocol(bench, stranger):
    request = bench.submit()
    bench.turn()
    key = bench.only()
    bench.executed(key, Response(request, []))
    bench.results(key, responses=[Response(request if stranger == "ended" else stranger, [])])
    assert bench.killed == [key]


def test_inputs_that_are_retained_after_the_final_response_stay_on_lease(bench):
    request = bench.submit()
    bench.turn()
    key = bench.only()
    bench.executed(key)
    bench.results(key, responses=[Response(request, [], retained=True)])
    assert bench.sinks[request].inputs_released == 0
    bench.results(key, released=[request])
    assert bench.sinks[request].inputs_released == 1


def test_the_stub_is_told_once_that_a_request_is_not_wanted_any_more(bench):
    request = bench.submit()
    bench.turn()
    key = bench.only()
    bench.executed(key)
    bench.tell(ClientGone(request))
    bench.tell(ClientGone(request))
    assert [message.requests for message in bench.sent(key, Cancel)] == [[request]]
    bench.results(key, responses=[Response(request, [], error=(int(ErrorKind.CANCELLED), "gone"))])
    assert recorder(bench).failures["CANCELED"] == 1


def test_a_server_that_stops_waits_for_open_requests(bench):
    request = bench.submit()
    bench.turn()
    key = bench.only()
    bench.executed(key)
    bench.tell(StopServing())
    bench.turn()
    assert bench.core.in_flight()
    bench.results(key, responses=[Response(request, [])])
    bench.finish()
    assert bench.core.processes == 0


# --- executed again ---------------------------------------------------------------------------------------------


@pytest.fixture
def iterative(make_bench):
    bench = make_bench()
    bench.load(sequence_batching={"iterative_sequence": True})
    bench.bring_up()
    return bench


def test_a_rescheduled_request_comes_back_with_the_same_inputs_and_no_start_flag(iterative):
    request = iterative.submit()
    iterative.turn()
    key = iterative.only()
    seen = []
    for _ in range(3):
        (inside,) = iterative.take_batch(key).requests
        seen.append((inside.id, inside.correlation_id, inside.flags, inside.inputs[0].shared))
        batch = iterative.core._roster.serving(key)[1].outstanding[0].id
        iterative.results(key, executed=[Executed(batch, 0, 0, 0, False, [], [request])])
    assert seen == [(request, 1, 1, True), (request, 1, 0, True), (request, 1, 0, True)]
    assert iterative.response(request) is None
    iterative.executed(key, Response(request, []))
    assert iterative.response(request).error is None
    second = iterative.submit()
    iterative.turn()
    assert iterative.take_batch(key).requests[0].correlation_id == 2
    assert second


def test_a_rescheduled_request_that_nobody_wants_is_not_executed_again(iterative):
    request = iterative.submit()
    iterative.turn()
    iterative.tell(ClientGone(request))
    iterative.executed(iterative.only(), rescheduled=[request])
    assert iterative.response(request).error == (int(ErrorKind.CANCELLED), "")


def test_rescheduling_without_an_iterative_sequence_is_an_error(bench):
    request = bench.submit()
    bench.turn()
    bench.executed(bench.only(), rescheduled=[request])
    assert "iterative_sequence" in bench.error(request)
    assert bench.core.in_flight() == {}


def test_results_of_an_unknown_stub_are_ignored(bench):
    bench.tell(StubSaid("9.9", Results(RESULTS, [], [], [Response(1, [])]), ()))
    assert bench.killed == []
    assert bench.sent(bench.only(), Execute) == []
