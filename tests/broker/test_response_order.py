"""What answers a request waits for the answers of those before it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.events import ClientGone
from broker.queue import Pending
from broker.response_order import Held, ResponseOrder
from protocol.errors import ErrorKind
from protocol.messages import Answered, Request, Response


def ordered(count: int) -> tuple[ResponseOrder, list[Pending]]:
    order = ResponseOrder()
    pendings = [Pending(Request(id, "m", 1, []), (), None, 1, 0) for id in range(count)]
    for pending in pendings:
        order.join(pending)
    return order, pendings


def answer(pending: Pending, final: bool = True, lease: int = 0, origin: str = "") -> Held:
    return Held(pending, Response(pending.request.id, [], lease, final=final), origin, ())


def test_the_first_passes_and_those_behind_it_wait_for_it():
    order, (first, second, third) = ordered(3)
    answers = [answer(one) for one in (first, second, third)]
    assert list(order.answered(answers[2])) == []
    assert list(order.answered(answers[0])) == [answers[0]]
    assert list(order.answered(answers[1])) == answers[1:]
    assert not any(one.request.id in order for one in (first, second, third))
    order.check()


def test_each_of_many_responses_passes_in_its_turn():
    order, (first, second) = ordered(2)
    parts = [answer(second, final=False), answer(second, final=False)]
    assert list(order.answered(parts[0])) == []
    assert list(order.answered(begun := answer(first, final=False))) == [begun]
    assert list(order.answered(parts[1])) == []
    assert list(order.answered(end := answer(first))) == [end, *parts]
    assert list(order.answered(last := answer(second))) == [last]
    order.check()


def test_the_outputs_of_a_dead_process_become_errors_in_their_turn():
    order, (first, second, third) = ordered(3)
    lost, kept = answer(second, lease=7, origin="dead"), answer(third, lease=8, origin="alive")
    for one in (lost, kept):
        order.answered(one)
    assert order.replace("dead", (2, "gone")) == [lost]
    _, failed, last = order.answered(answer(first))
    assert (failed.response.error, failed.response.lease, failed.response.final) == ((2, "gone"), 0, True)
    assert last == kept


@given(st.data(), st.integers(1, 6))
def test_whatever_the_order_of_the_answers_all_leave_in_the_order_of_the_requests(data, count):
    order, pendings = ordered(count)
    left = {pending.request.id: data.draw(st.integers(1, 3)) for pending in pendings}
    passed: list[int] = []
    while left:
        id = data.draw(st.sampled_from(sorted(left)))
        left[id] -= 1
        passed += [one.response.request for one in order.answered(answer(pendings[id], final=not left[id]))]
        if not left[id]:
            del left[id]
        order.check()
    assert passed == sorted(passed)
    assert set(passed) == set(range(count))


@pytest.fixture
def bench(make_bench):
    """Two instances, each of which holds one request; ``bench.stubs`` are their keys, in that order."""
    bench = make_bench()
    rules = {"preserve_ordering": True, "default_queue_policy": {"default_timeout_microseconds": 1000}}
    bench.load(instances=2, max_batch_size=4, dynamic_batching=rules)
    bench.bring_up()
    bench.requests = []
    for _ in range(2):
        bench.requests.append(bench.submit(rows=4))
        bench.turn()
    bench.stubs = list(bench.alive)
    assert [bench.held(key) for key in bench.stubs] == [[request] for request in bench.requests]
    return bench


def test_expired_and_cancelled_requests_keep_their_turn(bench):
    first, second = bench.stubs
    expired = bench.submit(rows=4)
    cancelled = bench.submit(rows=4)
    bench.tell(ClientGone(cancelled))
    bench.sleep(0.001)
    bench.answer(second)
    assert [bench.response(one) for one in (*bench.requests, expired, cancelled)] == [None] * 4
    bench.answer(first)
    assert [bench.response(one).error for one in bench.requests] == [None, None]
    assert bench.error(expired) == "Request timeout expired"
    assert bench.response(cancelled).error[0] == int(ErrorKind.CANCELLED)


def test_a_response_whose_process_dies_before_its_turn_is_an_error(bench):
    first, second = bench.stubs
    bench.answer(second, lease=7)
    bench.die(second)
    assert bench.response(bench.requests[1]) is None
    bench.answer(first)
    assert "is not healthy" in bench.error(bench.requests[1])
    assert bench.response(bench.requests[1]).lease == 0


def test_a_call_of_a_model_to_itself_does_not_wait_for_its_caller(make_bench):
    bench = make_bench()
    bench.load(instances=2, dynamic_batching={"preserve_ordering": True})
    bench.bring_up()
    first, second = bench.alive
    request = bench.submit()
    bench.turn()
    bench.call(first, "m")
    bench.answer(second)
    (answered,) = bench.sent(first, Answered)
    assert answered.response.error is None
    assert bench.response(request) is None
