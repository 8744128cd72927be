"""The order in which requests of several priorities leave."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.batcher import queue as queue_of
from broker.model_config import ModelConfigMessage, from_message
from broker.policy_queue import PolicyQueue
from broker.queue import Pending, RequestQueue
from broker.queue_policy import QueuePolicy
from protocol.messages import Request

REJECTS, DELAYS = QueuePolicy(default_timeout_us=10), QueuePolicy(default_timeout_us=10, delays=True)
MAX_UINT64 = 2**64 - 1


def request(id: int, priority: int = 0, timeout_us: int = 0) -> Pending:
    return Pending(Request(id, "m", 1, [], priority=priority, timeout_us=timeout_us), (), None, 1, 0)


@pytest.fixture
def queue():
    queue = PolicyQueue(DELAYS, priorities=3, default_level=2, policies={3: REJECTS._replace(max_size=2)})
    yield queue
    queue.check()


def pushed(queue: PolicyQueue, *priorities: int) -> list[Pending]:
    waiting = [request(id, priority) for id, priority in enumerate(priorities)]
    for pending in waiting:
        queue.push(pending)
    return waiting


def test_a_better_priority_leaves_first_and_equals_leave_in_the_order_of_their_arrival(queue):
    waiting = pushed(queue, 3, 2, 1, 2, 1)
    order = [waiting[position] for position in (2, 4, 1, 3, 0)]
    assert list(queue) == order
    assert [queue.pop() for _ in range(6)] == [*order, None]


@pytest.mark.parametrize("priority", [0, 4, MAX_UINT64])
def test_a_priority_that_there_is_not_is_the_default_one(queue, priority):
    waiting = pushed(queue, 3, priority, 2)
    assert list(queue) == [waiting[1], waiting[2], waiting[0]]


def test_there_may_be_as_many_priorities_as_there_are_numbers():
    queue = PolicyQueue(DELAYS, MAX_UINT64, default_level=2**32)
    waiting = pushed(queue, MAX_UINT64, 0, 1)
    assert queue.take(3) == waiting[::-1]
    queue.check()


def test_who_has_waited_for_too_long_is_served_after_the_others_of_its_priority(queue):
    early, other, better, worse = pushed(queue, 2, 2, 1, 3)
    assert not queue.expire(early)
    assert list(queue) == [better, other, early, worse]
    assert not queue.expire(early)  # never again
    late = request(9, 2)
    queue.push(late)
    assert queue.take(5) == [better, other, late, early, worse]


def test_a_priority_s_own_policy_may_reject(queue):
    (worse,) = pushed(queue, 3)
    assert queue.expire(worse)
    assert len(queue) == 0


def test_only_the_priority_that_is_full_is_full_and_those_that_are_late_count():
    queue = PolicyQueue(DELAYS._replace(max_size=2), 2, 2)
    first, _ = pushed(queue, 1, 1)
    assert queue.is_full(request(5, 1).request)
    queue.expire(first)
    assert queue.is_full(request(5, 1).request)
    assert not queue.is_full(request(5, 2).request)
    queue.pop()
    assert not queue.is_full(request(5, 1).request)
    queue.check()


def test_the_time_that_a_request_has_is_that_of_its_priority(queue):
    assert queue.timeout_ns(request(1, 3, timeout_us=5).request) == 10_000
    queue = PolicyQueue(DELAYS, 2, 1, {2: REJECTS._replace(allow_override=True)})
    assert queue.timeout_ns(request(1, 1, timeout_us=5).request) == 10_000
    assert queue.timeout_ns(request(1, 2, timeout_us=5).request) == 5_000


def test_what_is_given_back_leaves_first_among_its_priority_and_in_its_old_order(queue):
    waiting = pushed(queue, 2, 2, 1, 2)
    queue.push_front(queue.take(3))
    assert queue.take(4) == [waiting[position] for position in (2, 0, 1, 3)]


def test_a_cancelled_request_neither_counts_nor_leaves(queue):
    first, late, other = pushed(queue, 1, 2, 2)
    queue.expire(late)
    queue.cancel(late)
    queue.cancel(first)
    assert (len(queue), queue.drain(), len(queue)) == (1, [other], 0)


@pytest.mark.parametrize(
    ("rules", "kind"),
    [
        ({}, RequestQueue),
        ({"default_queue_policy": {"max_queue_size": 3}}, RequestQueue),
        ({"default_queue_policy": {"timeout_action": "DELAY"}}, PolicyQueue),
        ({"priority_levels": 1, "default_priority_level": 1}, PolicyQueue),
    ],
)
def test_priorities_and_delays_cost_only_those_who_use_them(rules, kind):
    assert type(queue_of(from_message(ModelConfigMessage(name="m", dynamic_batching=rules)))) is kind


def test_what_the_configuration_says():
    rules = {
        "priority_levels": 2,
        "default_priority_level": 2,
        "default_queue_policy": {"timeout_action": "DELAY", "default_timeout_microseconds": 7},
        "priority_queue_policy": {1: {"max_queue_size": 1}},
    }
    queue = queue_of(from_message(ModelConfigMessage(name="m", dynamic_batching=rules)))
    assert (queue.timeout_ns(request(1, 1).request), queue.timeout_ns(request(1).request)) == (0, 7_000)
    first, second = pushed(queue, 1, 2)
    assert (queue.is_full(first.request), queue.is_full(second.request)) == (True, False)
    assert not queue.expire(second)


STEPS = st.lists(st.tuples(st.sampled_from(["push", "expire", "cancel", "pop", "give back"]), st.integers(0, 4)))


@given(STEPS)
def test_none_is_lost_and_none_leaves_before_a_better_one(steps):
    queue = PolicyQueue(DELAYS, 3, 2, {3: REJECTS._replace(max_size=2)})
    here: dict[int, Pending] = {}
    delayed: set[int] = set()
    for id, (what, number) in enumerate(steps):
        if what == "push":
            pending = request(id, number)
            if not queue.is_full(pending.request):
                queue.push(pending)
                here[id] = pending
        elif what in ("expire", "cancel") and here:
            pending = list(here.values())[number % len(here)]
            if what == "cancel":
                queue.cancel(pending)
                del here[pending.request.id]
            elif queue.expire(pending):
                del here[pending.request.id]
            else:
                delayed.add(pending.request.id)
        elif what == "pop" and here:
            pending = queue.pop()
            rank = (queue.level(pending.request), pending.request.id in delayed)
            assert all(rank <= (queue.level(one.request), id in delayed) for id, one in here.items())
            del here[pending.request.id]
        elif what == "give back" and here:
            taken = queue.take(min(number, len(queue)))
            queue.push_front(taken)
            delayed -= {one.request.id for one in taken}
            assert queue.take(len(taken)) == taken
            queue.push_front(taken)
        queue.check()
        assert {one.request.id for one in queue} == here.keys()
        assert len(queue) == len(here)
        assert sum(queue.level(one.request) == 3 for one in queue) <= 2
