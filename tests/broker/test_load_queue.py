"""Versions in line, in a place, or without a host."""

import pytest

from broker.load_queue import LoadQueue
from broker.model import Generation, ModelVersion, VersionState
from tests.broker.model_sources import source


def version(name: str) -> ModelVersion:
    return Generation([source(name)], 0).versions[0]


@pytest.fixture
def queue() -> LoadQueue:
    return LoadQueue(places=1)


@pytest.fixture
def first(queue: LoadQueue) -> ModelVersion:
    """Has the place."""
    found = version("first")
    queue.add(found)
    assert queue.next() is found
    return found


@pytest.fixture
def second(queue: LoadQueue, first: ModelVersion) -> ModelVersion:
    """Waits for the place."""
    found = version("second")
    queue.add(found)
    assert queue.next() is None
    return found


def test_a_version_waits_for_the_place_of_another(queue, first, second):
    queue.leave(first)
    assert queue.next() is second
    queue.leave(second)
    assert queue.next() is None and queue.is_empty


def test_one_that_is_given_up_in_line_is_passed_over(queue, first, second):
    third = version("third")
    queue.add(third)
    second.state = VersionState.UNAVAILABLE
    queue.leave(second)
    queue.leave(first)
    assert queue.next() is third


def test_one_that_skips_the_line_takes_no_place(queue, first, second):
    assert queue.skip(second) and not queue.skip(second)
    queue.leave(first)
    assert queue.is_empty


def test_who_waits_for_a_host_gives_its_place_away_and_stands_in_line_again(queue, first, second):
    queue.wait_for_host(first)
    assert queue.next() is second and not queue.is_empty
    queue.found_hosts(lambda version: False)
    queue.leave(second)
    assert queue.next() is None and not queue.is_empty
    queue.found_hosts(lambda version: version is first)
    assert queue.next() is first


def test_only_what_is_beyond_the_line_begins_again(queue, first, second):
    homeless = version("homeless")
    queue.wait_for_host(homeless)
    assert not queue.begin_again(second) and not queue.begin_again(homeless)
    assert queue.begin_again(first)


def test_one_that_had_come_up_takes_a_place_to_begin_again(queue, first, second):
    queue.leave(first)
    assert queue.begin_again(first) and queue.next() is None
    queue.leave(first)
    assert queue.next() is second
