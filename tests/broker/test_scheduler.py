"""Which instance is given which of the waiting requests, and how many."""

import pytest

from broker.events import LoadModels
from broker.model import VersionSource
from broker.model_config import ModelConfigMessage, from_message


def test_requests_of_one_turn_leave_in_one_message_once_executions_are_known_to_be_short(bench):
    bench.submit()
    bench.turn()
    bench.answer(bench.only(), execute_ns=50_000)
    ids = [bench.submit() for _ in range(5)]
    bench.turn()
    (message,) = bench.inbox[bench.only()]
    assert [batch.requests[0].id for batch in message.batches] == ids


def test_a_slow_single_instance_holds_one_request_at_a_time(bench):
    first, second = bench.submit(), bench.submit()
    bench.turn()
    assert bench.held(bench.only()) == [first]
    bench.answer(bench.only(), execute_ns=5_000_000)
    assert bench.held(bench.only()) == [second]


def test_with_several_instances_each_holds_one_and_none_idles(make_bench):
    bench = make_bench()
    bench.load(instances=2)
    bench.bring_up()
    ids = [bench.submit() for _ in range(3)]
    bench.turn()
    one, two = bench.alive
    assert [bench.held(one), bench.held(two)] == [[ids[0]], [ids[1]]]
    bench.answer(two)
    assert bench.held(two) == [ids[2]]


def test_a_passive_instance_is_never_given_work(make_bench):
    message = ModelConfigMessage(name="m", backend="python")
    for io in (message.input.add(), message.output.add()):
        io.name, io.data_type, io.dims[:] = "X", 11, [4]
    message.instance_group.add(count=1, name="idle", passive=True)
    message.instance_group.add(count=1, name="busy")
    bench = make_bench()
    bench.tell(LoadModels([VersionSource("m", 1, "/m", from_message(message))]))
    bench.bring_up()
    idle, busy = bench.alive
    ids = [bench.submit() for _ in range(3)]
    bench.turn()
    for id in ids:
        assert (bench.held(idle), bench.held(busy)) == ([], [id])
        bench.answer(busy)


def test_a_model_without_an_active_instance_refuses_requests_instead_of_keeping_them(make_bench):
    bench = make_bench()
    bench.load(instances=2, passive=True)
    bench.bring_up()
    assert bench.error(bench.submit()) == "all instances of model 'm' are passive: none executes requests"


def test_a_train_has_its_longest_length(bench):
    bench.submit()
    bench.turn()
    bench.answer(bench.only(), execute_ns=1)
    ids = [bench.submit() for _ in range(40)]
    bench.turn()
    assert bench.held(bench.only()) == ids[: bench.settings.train_requests]


def test_a_train_grows_no_longer_than_it_is_expected_to_run(bench):
    bench.submit()
    bench.turn()
    bench.answer(bench.only(), execute_ns=bench.settings.train_ns // 3)
    ids = [bench.submit() for _ in range(5)]
    bench.turn()
    assert bench.held(bench.only()) == ids[:3]
    bench.answer(bench.only(), execute_ns=bench.settings.train_ns // 3)
    assert bench.held(bench.only()) == ids[1:4]


def test_an_instance_that_is_not_ready_is_given_nothing(make_bench):
    bench = make_bench()
    bench.load(instances=2)
    bench.bring_up()
    dead, living = bench.alive
    bench.die(dead)
    ids = [bench.submit() for _ in range(2)]
    bench.turn()
    assert bench.held(living) == [ids[0]]
    (successor,) = bench.alive.keys() - {living}
    bench.hello(successor)
    bench.loaded(successor)
    assert bench.held(successor) == [ids[1]]


def test_models_do_not_wait_for_each_other(make_bench):
    bench = make_bench()
    for name in ("busy", "idle"):
        bench.load(name)
    bench.bring_up()
    busy, idle = bench.alive
    first, _, other = bench.submit("busy"), bench.submit("busy"), bench.submit("idle")
    bench.turn()
    assert [bench.held(busy), bench.held(idle)] == [[first], [other]]


def _batched(make_bench, cycle_s: float, **rules):
    """A model whose only instance executes a batch of one, and takes ``cycle_s`` for one."""
    bench = make_bench()
    bench.load(max_batch_size=8, dynamic_batching=rules)
    bench.bring_up()
    for _ in range(2):
        bench.submit(rows=1)
        bench.turn()
        bench.now += int(cycle_s * 1e9)
        bench.answer(bench.only())
    bench.submit(rows=1)
    bench.turn()
    assert len(bench.held(bench.only())) == 1
    return bench


def test_the_next_batch_comes_to_a_lone_instance_just_before_it_is_free(make_bench):
    bench = _batched(make_bench, 0.01)
    waiting = [bench.submit(rows=1) for _ in range(3)]
    bench.turn()
    key = bench.only()
    assert len(bench.held(key)) == 1
    assert bench.core.next_request_deadline() == bench.now + 9_000_000
    bench.sleep(0.008)
    assert len(bench.held(key)) == 1
    bench.sleep(0.001)
    assert bench.held(key)[1:] == waiting
    later = bench.submit(rows=1)
    bench.sleep(0.001)
    assert bench.held(key)[1:] == waiting
    bench.answer(key)
    assert bench.held(key) == waiting
    bench.sleep(0.009)
    assert bench.held(key) == [*waiting, later]


@pytest.mark.parametrize(
    ("cycle_s", "rules"),
    [
        (0.0005, {}),  # too short to be worth it
        (0.01, {"default_queue_policy": {"max_queue_size": 9}}),
        (0.01, {"default_queue_policy": {"default_timeout_microseconds": 10**9}}),
        (0.01, {"priority_levels": 2, "default_priority_level": 1}),
    ],
)
def test_a_batch_is_not_closed_early_where_that_would_show(make_bench, cycle_s, rules):
    bench = _batched(make_bench, cycle_s, **rules)
    bench.submit(rows=1)
    bench.sleep(10)
    assert len(bench.held(bench.only())) == 1
