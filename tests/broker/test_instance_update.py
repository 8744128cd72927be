"""A version that serves gets other instances, and those that stay notice nothing."""

from __future__ import annotations

import dataclasses

import pytest

from broker.events import Override, StubDied
from broker.instance import Instance
from broker.instance_update import compare
from broker.model_config import InstanceSpec, ModelConfigMessage, from_message
from protocol.messages import SEQUENCE_END, SEQUENCE_START, Finish
from tests.broker.test_control import ControlBench, source


def with_groups(fingerprint: str = "b", version: int = 1, files: str = "f", **groups: int):
    """Instances of CPU groups by name; ``fingerprint`` tells that something has changed, ``files`` that code has."""
    one = source(version=version, fingerprint=fingerprint, files=files)
    message = ModelConfigMessage()
    message.CopyFrom(one.config.message)
    del message.instance_group[:]
    for name, count in groups.items():
        message.instance_group.add(name=name, count=count, kind=2)
    return dataclasses.replace(one, config=from_message(message))


@pytest.fixture
def bench():
    """ "m" version 1 serves with two instances."""
    bench = ControlBench()
    bench.serve(with_groups("a", m=2))
    return bench


def ask(bench, *sources, override=None):
    asked = bench.ask_load(override=override)
    bench.found(*sources)
    return asked


def names(bench) -> list[str]:
    return [one.spec.name for row in bench.core.registry.serving() for one in row.instances]


def finish(bench) -> None:
    for key in bench.finishing() + bench.killed:
        if key in bench.alive:
            bench.die(key, 0)


def test_a_version_that_comes_beside_one_that_stays_is_the_highest(bench):
    registry = bench.core.registry
    stays = registry.find("m", -1)
    ask(bench, with_groups(m=2), with_groups(version=2, m=1))
    bench.bring_up()
    assert registry.find("m", 1) is stays and registry.find("m", -1).version == 2


def test_instances_are_added_and_those_that_serve_stay(bench):
    old = list(bench.alive)
    asked = ask(bench, with_groups(m=3))
    (new,) = bench.loading()
    assert list(bench.alive) == [*old, new] and not asked.answers and len(names(bench)) == 2
    bench.bring_up()
    assert asked.error is None and names(bench) == ["m_0", "m_1", "m_2"]
    assert bench.index() == [("m", 1, "READY", "")] and not bench.finishing()
    requests = [bench.submit() for _ in range(3)]
    bench.turn()
    assert [len(bench.held(key)) for key in bench.alive] == [1, 1, 1]
    for key in bench.alive:
        bench.answer(key)
    assert all(bench.response(request).error is None for request in requests)


def test_the_load_is_answered_when_the_surplus_has_finalized(bench):
    first, second = bench.alive
    asked = ask(bench, with_groups(m=1))
    assert bench.finishing() == [second] and names(bench) == ["m_0"] and not asked.answers
    finish(bench)
    bench.turn()
    assert asked.error is None and list(bench.alive) == [first]


def test_the_surplus_ends_what_it_holds(bench):
    requests = [bench.submit() for _ in range(2)]
    bench.turn()
    first, second = bench.alive
    ask(bench, with_groups(m=1))
    assert bench.finishing() == [] and bench.core._control.next_deadline()
    bench.submit()
    bench.turn()
    assert len(bench.held(second)) == 1
    bench.answer(second)
    assert bench.finishing() == [second]
    bench.answer(first)
    assert all(bench.response(request).error is None for request in requests)


def test_a_load_does_not_wait_for_ever_for_what_the_surplus_holds(bench):
    for _ in range(2):
        bench.submit()
    bench.turn()
    asked = ask(bench, with_groups(m=1))
    bench.sleep(4.9)
    assert not asked.answers
    bench.sleep(0.2)
    assert asked.error is None and len(bench.alive) == 2


def test_another_name_is_no_change(bench):
    ask(bench, with_groups(m=1, other=1), override=Override("{}"))
    assert not bench.loading() and not bench.finishing()


def test_a_group_of_another_kind_has_other_instances(bench):
    one = with_groups(m=1)
    one.config.message.instance_group.add(name="model", count=2, kind=3)
    asked = ask(bench, dataclasses.replace(one, config=from_message(one.config.message)))
    assert len(bench.loading()) == 2 and not bench.finishing()
    bench.bring_up()
    assert len(bench.finishing()) == 1 and names(bench) == ["m_0", "model_0", "model_1"]
    finish(bench)
    bench.turn()
    assert asked.error is None


def test_one_that_fails_leaves_all_as_it_was(bench):
    old = list(bench.alive)
    asked = ask(bench, with_groups(m=4))
    first, second = bench.loading()
    bench.hello(first)
    bench.loaded(first)
    bench.fail(second, "ValueError: no memory")
    assert asked.error == ("load failed for model 'm': version 1 is at READY state: Internal: ValueError: no memory;\n")
    assert bench.index() == [("m", 1, "READY", "Internal: ValueError: no memory")]
    assert bench.core.registry.all_loaded()
    bench.die(second, 1)
    bench.die(first, -9)
    bench.turn()
    assert list(bench.alive) == old and names(bench) == ["m_0", "m_1"]
    assert bench.core.registry.rows("m")[0].leaving == []
    asked = ask(bench, with_groups(m=3))  # it is tried again
    bench.bring_up()
    assert asked.error is None and bench.index() == [("m", 1, "READY", "")]


def test_one_that_dies_while_it_loads_has_failed(bench):
    asked = ask(bench, with_groups(m=3))
    bench.die(bench.loading()[0])
    assert "is not healthy" in asked.error and len(bench.alive) == 2


def test_changed_code_and_another_configuration_need_a_whole_load(bench):
    asked = ask(bench, with_groups(files="g", m=2))
    assert len(bench.loading()) == 2
    bench.bring_up()
    assert asked.error is None
    one = with_groups("c", files="g", m=2)
    one.config.message.parameters["k"].string_value = "v"
    ask(bench, dataclasses.replace(one, config=from_message(one.config.message)))
    assert len(bench.loading()) == 2


def test_a_death_among_those_that_stay_is_no_end(bench):
    ask(bench, with_groups(m=3))
    old, *_ = bench.alive
    bench.tell(StubDied(old, -9, 0))
    del bench.alive[old]
    bench.turn()
    bench.bring_up()
    assert len(bench.alive) == 3 and bench.core.registry.serving()[0].healthy()


def test_an_unload_gives_it_up(bench):
    asked = ask(bench, with_groups(m=3))
    bench.unload()
    finish(bench)
    bench.turn()
    assert asked.error is not None and bench.alive == {} and bench.index() == [("m", 1, "UNAVAILABLE", "unloaded")]


def test_surplus_that_dies_is_not_restarted(bench):
    for _ in range(2):
        bench.submit()
    bench.turn()
    ask(bench, with_groups(m=1))
    bench.die(list(bench.alive)[1])
    assert len(bench.alive) == 1 and bench.core.registry.rows("m")[0].leaving == []


def test_versions_that_stay_are_left_alone_when_the_policy_changes(bench):
    (row,) = bench.core.registry.serving()
    asked = ask(bench, with_groups(m=2), with_groups(version=2, m=2))
    assert len(bench.loading()) == 2
    bench.bring_up()
    assert asked.error is None
    assert [(one.version, one is row) for one in bench.core.registry.serving()] == [(1, True), (2, False)]
    ask(bench, with_groups("c", m=2))
    bench.sleep(0.2)
    assert len(bench.finishing()) == 2 and bench.core.registry.serving() == [row]


def with_sequences(fingerprint: str, kind: int, count: int):
    one = with_groups(fingerprint)
    message = one.config.message
    message.sequence_batching.direct.SetInParent()
    message.sequence_batching.max_sequence_idle_microseconds = 10_000_000
    message.instance_group.add(name="m", count=count, kind=kind)
    return dataclasses.replace(one, config=from_message(message))


@pytest.mark.parametrize("rate_limits", [None, ()])
def test_sequences_go_on_where_they_are_until_they_end(rate_limits):
    """As three instances are replaced by one of another kind, of which two hold a sequence."""
    bench = ControlBench(rate_limits=rate_limits)
    bench.serve(with_sequences("a", 2, 3))
    holder = {}
    for id in (1, 2):
        step(bench, id, SEQUENCE_START, holder)
    asked = ask(bench, with_sequences("b", 3, 1))
    (new,) = bench.loading()
    bench.bring_up()
    (idle,) = bench.finishing()
    assert idle not in holder.values() and not asked.answers
    finish(bench)
    bench.turn()
    assert asked.error is None, "it waits for no sequence"
    for id in (1, 2):
        step(bench, id, 0, holder)
    step(bench, 3, SEQUENCE_START, holder)
    assert holder[3] == new and bench.finishing() == []
    for id in (1, 2):
        step(bench, id, SEQUENCE_END, holder)
        assert bench.finishing() == [holder[id]]
        finish(bench)
    bench.turn()
    assert list(bench.alive) == [new]


def step(bench, id: int, flags: int, holder: dict[int, str]) -> None:
    """A request of a sequence goes to where the sequence is, and is answered."""
    request = bench.submit(correlation_id=id, flags=flags)
    bench.turn()
    (key,) = [key for key in bench.alive if bench.held(key)]
    assert holder.setdefault(id, key) == key
    bench.answer(key)
    assert bench.response(request).error is None


def spec(name: str, likeness: bytes = b"", device: int = 0) -> InstanceSpec:
    return InstanceSpec(name, "CPU", device, False, likeness)


@pytest.mark.parametrize(
    ("old", "new", "missing", "surplus"),
    [
        ("ab", "ab", "", ""),
        ("ab", "b", "", "a"),
        ("b", "ab", "a", ""),
        ("abc", "bx", "", "c"),
        ("", "a", "a", ""),
    ],
)
def test_an_instance_stays_under_its_name_if_it_can(old, new, missing, surplus):
    instances = [Instance(spec(name), index) for index, name in enumerate(old)]
    added, gone = compare(instances, [spec(name) for name in new])
    assert "".join(one.name for one in added) == missing
    assert "".join(one.spec.name for one in gone) == surplus


def test_instances_of_another_device_or_group_do_not_fit():
    instances = [Instance(spec("a", b"x", 1), 0)]
    assert compare(instances, [spec("a", b"x", 0)])[1] == instances
    assert compare(instances, [spec("a", b"y", 1)])[1] == instances
    assert compare(instances, [spec("b", b"x", 1)]) == ([], [])


def test_a_sent_finish_is_the_only_one(bench):
    ask(bench, with_groups(m=1))
    bench.turn()
    bench.unload()
    assert [sum(isinstance(one, Finish) for one in bench.inbox[key]) for key in bench.alive] == [1, 1]
