"""The order in which waiting requests leave."""

from __future__ import annotations

import pytest

from broker.queue import Pending, RequestQueue
from protocol.messages import Request
from tests.broker.conftest import Sink


@pytest.fixture
def queue():
    queue = RequestQueue()
    yield queue
    queue.check()


def pushed(queue: RequestQueue, count: int) -> list[Pending]:
    waiting = [Pending(Request(id, "m", 1, []), (), Sink(), 1, 0) for id in range(count)]
    for pending in waiting:
        queue.push(pending)
    return waiting


def test_who_comes_first_leaves_first(queue):
    first, second = pushed(queue, 2)
    assert [queue.pop(), queue.pop(), queue.pop()] == [first, second, None]


def test_what_is_given_back_leaves_first_and_in_its_old_order(queue):
    first, second, third = pushed(queue, 3)
    queue.push_front([queue.pop(), queue.pop()])
    assert [queue.pop(), queue.pop(), queue.pop()] == [first, second, third]


def test_a_cancelled_request_neither_counts_nor_leaves(queue):
    first, second, third = pushed(queue, 3)
    queue.cancel(second)
    assert len(queue) == 2
    queue.check()
    assert [queue.pop(), queue.pop(), queue.pop()] == [first, third, None]
    assert len(queue) == 0


def test_a_drained_queue_is_empty_and_has_given_all_that_was_not_cancelled(queue):
    first, *others = pushed(queue, 3)
    queue.cancel(first)
    assert queue.drain() == others
    assert (len(queue), queue.pop()) == (0, None)
