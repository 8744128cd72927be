"""How long a queue gets, and how long a request stays in it."""

from __future__ import annotations

import pytest

from broker.events import ClientGone
from broker.queue_policy import QueuePolicy
from protocol.errors import ErrorKind
from protocol.messages import Request


@pytest.mark.parametrize(
    ("policy", "asked_us", "timeout_us"),
    [
        (QueuePolicy(), 5, 0),
        (QueuePolicy(default_timeout_us=10), 5, 10),
        (QueuePolicy(default_timeout_us=10, allow_override=True), 5, 5),
        (QueuePolicy(default_timeout_us=10, allow_override=True), 0, 10),
        (QueuePolicy(default_timeout_us=10, allow_override=True), 11_000_000_000, 10),
        (QueuePolicy(allow_override=True), 5, 0),
    ],
)
def test_a_request_can_only_ask_for_less_than_the_default(policy, asked_us, timeout_us):
    assert policy.timeout_ns(Request(1, "m", 1, [], timeout_us=asked_us)) == timeout_us * 1000


@pytest.fixture
def bench(make_bench):
    bench = make_bench()
    policy = {"max_queue_size": 2, "default_timeout_microseconds": 1000}
    bench.load(max_batch_size=4, dynamic_batching={"default_queue_policy": policy})
    bench.bring_up()
    return bench


def test_a_request_beyond_the_queue_s_size_is_refused_and_counted_nowhere(bench):
    bench.submit()
    bench.turn()
    waiting = [bench.submit(), bench.submit()]
    refused = bench.submit()
    assert bench.response(refused).error == (
        int(ErrorKind.UNAVAILABLE),
        f"[request id: client-{refused}] Exceeds maximum queue size",
    )
    assert [bench.response(one) for one in waiting] == [None, None]
    recorder = next(iter(bench.recorder))
    assert (recorder.fail_count, recorder.pending) == (0, 2)


def test_a_burst_fills_the_instance_and_then_the_queue(bench):
    """All of it may come within one turn."""
    requests = [bench.submit(rows=4) for _ in range(5)]
    bench.turn()
    assert bench.held(bench.only()) == requests[:1]
    assert [bench.response(one) is None for one in requests] == [True, True, True, False, False]


def test_a_request_that_waits_for_too_long_is_rejected_while_the_instance_is_busy(bench):
    running = bench.submit(rows=4)
    bench.turn()
    waiting = bench.submit()
    assert bench.core.next_deadline() <= bench.now + 1_000_000
    bench.sleep(0.001)
    assert bench.response(waiting).error == (int(ErrorKind.UNAVAILABLE), "Request timeout expired")
    assert bench.response(running) is None
    recorder = next(iter(bench.recorder))
    assert (recorder.failures["REJECTED"], recorder.pending) == (1, 0)


def test_a_request_whose_time_was_up_within_its_first_turn_goes_to_no_instance(bench):
    request = bench.submit()
    bench.now += 1_000_000
    bench.turn()
    assert bench.response(request).error == (int(ErrorKind.UNAVAILABLE), "Request timeout expired")
    assert bench.held(bench.only()) == []


def test_a_request_that_was_dispatched_in_time_is_left_alone(bench):
    request = bench.submit()
    bench.turn()
    bench.sleep(1)
    assert bench.response(request) is None
    bench.answer(bench.only())
    assert bench.response(request).error is None


def test_requests_that_wait_together_are_executed_together_after_the_delay(make_bench):
    bench = make_bench()
    bench.load(max_batch_size=4, dynamic_batching={"max_queue_delay_microseconds": 500})
    bench.bring_up()
    for _ in range(3):
        bench.submit(rows=1)
    bench.turn()
    key = bench.only()
    assert bench.held(key) == []
    assert bench.core.next_deadline() == bench.now + 500_000
    bench.sleep(0.0005)
    assert len(bench.take_batch(key).requests) == 3
    assert next(iter(bench.recorder)).closed["delay"] == 1


@pytest.mark.parametrize("leaves", ["rejected", "cancelled"])
def test_once_one_has_left_those_behind_it_may_have_a_preferred_size(make_bench, leaves):
    bench = make_bench()
    policy = {"default_timeout_microseconds": 5_000_000, "allow_timeout_override": True}
    rules = {"preferred_batch_size": [2, 8], "max_queue_delay_microseconds": 1_000_000, "default_queue_policy": policy}
    bench.load(max_batch_size=8, dynamic_batching=rules)
    bench.bring_up()
    first = bench.submit(rows=1, timeout_us=1000)
    bench.submit(rows=2)
    bench.turn()
    assert bench.held(bench.only()) == []
    if leaves == "cancelled":
        bench.tell(ClientGone(first))
        bench.turn()
    else:
        bench.sleep(0.001)
    assert len(bench.take_batch(bench.only()).requests) == 1


# --- policies and batches together, as Triton's own tests have them: one instance, preferred sizes 4 and 8, ten seconds


def _patient(make_bench, **rules: object):
    bench = make_bench()
    rules = {"preferred_batch_size": [4, 8], "max_queue_delay_microseconds": 10**7, **rules}
    bench.load(max_batch_size=32, dynamic_batching=rules)
    bench.bring_up()
    return bench


def _send(bench, wait_s: float, rows: int, **fields: int) -> int:
    request = bench.submit(rows=rows, **fields)
    bench.turn()
    bench.sleep(wait_s)
    return request


def test_a_late_request_is_delayed_and_those_behind_it_make_their_batch(make_bench):
    policy = {"timeout_action": "DELAY", "default_timeout_microseconds": 100_000}
    bench = _patient(make_bench, default_queue_policy=policy)
    first = _send(bench, 0.2, 1)
    others = [_send(bench, 0, 2), _send(bench, 0, 2)]
    assert bench.held(bench.only()) == others
    bench.answer(bench.only())
    bench.sleep(9.7)
    assert bench.held(bench.only()) == []
    bench.sleep(0.2)
    assert bench.held(bench.only()) == [first]


def test_a_late_request_is_rejected_and_those_behind_it_make_their_batch(make_bench):
    policy = {"default_timeout_microseconds": 1_000_000, "allow_timeout_override": True}
    bench = _patient(make_bench, default_queue_policy=policy)
    first = _send(bench, 0.2, 1, timeout_us=100_000)
    assert bench.error(first) == "Request timeout expired"
    others = [_send(bench, 0, 2), _send(bench, 0, 2)]
    assert bench.held(bench.only()) == others


def test_a_better_priority_makes_a_batch_with_the_first_of_those_that_wait(make_bench):
    bench = _patient(make_bench, priority_levels=2**64 - 1, default_priority_level=2**32)
    first, second = _send(bench, 0.1, 2), _send(bench, 0.2, 1, priority=2**32)
    better = _send(bench, 0, 2, priority=1)
    assert bench.held(bench.only()) == [better, first]
    bench.answer(bench.only())
    bench.sleep(9)
    assert bench.held(bench.only()) == []
    bench.sleep(0.9)
    assert bench.held(bench.only()) == [second]


def test_each_priority_has_its_policy_and_a_batch_reaches_from_one_into_the_next(make_bench):
    patience = {"allow_timeout_override": True, "default_timeout_microseconds": 11_000_000}
    bench = _patient(
        make_bench,
        preferred_batch_size=[4, 8, 32],
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy={"timeout_action": "DELAY", **patience},
        priority_queue_policy={2: {"timeout_action": "REJECT", **patience}},
    )
    key = bench.only()
    early = bench.submit(rows=4)  # keeps the instance busy while the others come
    bench.turn()
    one = _send(bench, 0.2, 2, priority=1)
    late = _send(bench, 0.2, 1, priority=1, timeout_us=1_000_000)
    two = _send(bench, 0.2, 2, priority=1)
    rejected = _send(bench, 0.2, 2, priority=2, timeout_us=2_000_000)
    three = _send(bench, 0.2, 3, priority=2)
    bench.sleep(1.6)
    assert bench.error(rejected) == "Request timeout expired"
    assert bench.held(key) == [early]
    bench.answer(key)
    assert bench.held(key) == [one, two, late, three]  # 8, in the order of level and lateness
