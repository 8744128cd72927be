"""One instance: its states, what it may hold, and when its next process starts."""

from __future__ import annotations

import pytest

from broker.instance import TABLE, Dispatched, IllegalTransition, Instance, InstanceEvent, InstanceState, Open
from broker.model_config import InstanceSpec
from broker.queue import Pending, Timing
from broker.settings import BrokerSettings
from protocol.messages import Executed, Request, Response
from tests.broker.conftest import Sink

SETTINGS = BrokerSettings("ipc://x", "/x")
UP = (InstanceEvent.HELLO, InstanceEvent.READY)


@pytest.fixture
def instance():
    """READY since time 1."""
    instance = Instance(InstanceSpec("m_0", "CPU", 0, passive=False), 7)
    for event in UP:
        instance.on(event)
    instance.ready_since = 1
    yield instance
    instance.check()


def hold(instance: Instance, *ids: int) -> None:
    """A batch of one request for each id; the batch has the request's."""
    for id in ids:
        pending = Pending(Request(id, "m", 1, []), (), Sink(), 1, 0)
        instance.outstanding.append(Dispatched(id, [pending], 0))


def executed(batch: int, *requests: int) -> Executed:
    return Executed(batch, 0, 0, 0, False, [Response(request, []) for request in requests])


def die(instance: Instance, now: int) -> int:
    """How long its successor has to wait."""
    instance.on(InstanceEvent.DIED)
    instance.back_off(now, SETTINGS)
    delay = instance.retry_at - now
    instance.on(InstanceEvent.RETRY)
    return delay


# --- states -----------------------------------------------------------------------------------------------------


def test_every_state_but_the_last_can_be_left_and_only_death_comes_unasked():
    assert {state for state, _ in TABLE} == set(InstanceState) - {InstanceState.GONE}
    living = set(InstanceState) - {InstanceState.BACKOFF, InstanceState.GONE}
    assert {state for state, event in TABLE if event is InstanceEvent.DIED} == living


def test_what_the_table_does_not_know_is_told_with_instance_event_and_state(instance):
    with pytest.raises(IllegalTransition, match=r"^instance m_0: hello while ready$"):
        instance.on(InstanceEvent.HELLO)
    assert instance.state is InstanceState.READY


def test_each_process_has_a_key_of_its_own(instance):
    keys = {instance.key}
    for now in range(3):
        die(instance, now)
        keys.add(instance.key)
    assert len(keys) == 4


# --- what it holds ----------------------------------------------------------------------------------------------


def test_batches_are_answered_in_the_order_sent(instance):
    hold(instance, 1, 2)
    with pytest.raises(IllegalTransition, match="answered batch 2 out of order"):
        instance.take(executed(2, 2))
    assert [instance.take(executed(id, id)).id for id in (1, 2)] == [1, 2]
    with pytest.raises(IllegalTransition, match="answered batch 2 out of order"):
        instance.take(executed(2, 2))


def test_it_knows_what_it_holds_until_that_is_answered_finally(instance):
    hold(instance, 1, 2)
    batch = instance.outstanding[0]
    assert instance.held(1) is batch
    batch.requests[0].answered = True
    with pytest.raises(IllegalTransition, match="answered request 1, which it does not hold"):
        instance.held(1)
    opened = instance.open[2] = Open(instance.outstanding.pop().requests[0], 2, Timing(0, 0, 0, 0))
    assert instance.held(2) is opened


def test_the_requests_of_a_batch_are_those_not_answered_be_they_executed_or_not(instance):
    hold(instance, 1, 2, 3)
    instance.outstanding[0].requests[0].answered = True
    opened = instance.outstanding.pop().requests[0]
    instance.open[3] = Open(opened, 3, Timing(0, 0, 0, 0))
    ids = [[pending.request.id for pending in instance.requests_of(batch)] for batch in (0, 1, 2, 3)]
    assert ids == [[2, 3], [], [2], [3]]


def test_an_instance_of_unknown_speed_holds_one_batch(instance):
    assert instance.room(SETTINGS) == 1
    hold(instance, 1)
    assert instance.room(SETTINGS) == 0


def test_a_quick_one_holds_what_it_does_in_the_time_of_a_train(instance):
    instance.observe(SETTINGS.train_ns // 4)
    assert instance.room(SETTINGS) == 4
    hold(instance, 1, 2, 3)
    assert instance.room(SETTINGS) == 1


def test_there_is_room_for_one_batch_however_slow_and_for_no_more_than_a_train_however_quick(instance):
    instance.observe(1)
    assert instance.room(SETTINGS) == SETTINGS.train_requests
    instance.observe(10 * SETTINGS.train_ns)
    assert instance.room(SETTINGS) == 1


def test_one_slow_execution_is_believed_at_once_and_forgotten_slowly(instance):
    instance.observe(100)
    instance.observe(9_000)
    assert instance.execute_ns == 9_000
    instance.observe(1_000)
    assert instance.execute_ns == 8_000


# --- the next process -------------------------------------------------------------------------------------------


def test_the_first_death_in_service_is_followed_by_a_restart_at_once(instance):
    assert die(instance, 10) == 0
    assert not instance.hopeless


def test_processes_that_do_nothing_but_die_come_later_and_later_up_to_a_limit(instance):
    delays = [die(instance, 10) for _ in range(12)]
    assert delays[:4] == [0, SETTINGS.restart_delay_ns, 2 * SETTINGS.restart_delay_ns, 4 * SETTINGS.restart_delay_ns]
    assert delays[-1] == SETTINGS.restart_delay_max_ns
    assert instance.hopeless


@pytest.mark.parametrize("earn", ["an answer", "a long life"])
def test_an_answer_or_a_long_life_earns_an_immediate_restart(instance, earn):
    die(instance, 10)
    for event in UP:
        instance.on(event)
    instance.ready_since = 20
    if earn == "an answer":
        hold(instance, 1)
        instance.take(executed(1, 1))
    assert die(instance, 20 + (SETTINGS.healthy_ns if earn == "a long life" else 1)) == 0


def test_how_long_a_batch_keeps_an_instance_is_measured_by_the_process_itself(instance):
    """What is noticed late is no reason to send the next one late."""
    instance.began_ns = 1_000_000
    instance.outstanding.append(Dispatched(1, [], 0))
    instance.freed(11_000_000, now=15_000_000)
    assert instance.next_due_ns() == 11_000_000 + 10_000_000 - 1_000_000
    for odd in (0, 5, 99_000_000):  # not said, before it began, in the future
        instance.began_ns, instance.cycle_ns = 11_000_000, 0
        instance.freed(odd, now=15_000_000)
        assert instance.next_due_ns() == 15_000_000 + 4_000_000 - 1_000_000
