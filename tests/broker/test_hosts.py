"""Instances on stub hosts: they come, they go, they are lost, and what was with them ends once."""

from __future__ import annotations

import pytest

from broker.events import Dismiss, HostJoined, HostLeaves, HostLost, Spawn
from protocol.errors import ErrorKind


class HostBench:
    """A Bench that knows on which host each process runs."""

    def __init__(self, make_bench, **settings: object) -> None:
        self.bench = make_bench(hosted=True, **settings)
        self.hosts: dict[str, str] = {}  # by key
        self.up: set[str] = set()
        carry_out = self.bench._carry_out

        def noting(actions: list) -> None:
            self.hosts.update({action.key: action.host for action in actions if isinstance(action, Spawn)})
            carry_out(actions)

        self.bench._carry_out = noting

    def join(self, host: str, *models: str) -> None:
        self.bench.tell(HostJoined(host, models or ("*",)))
        self.bench.turn()

    def leave(self, host: str) -> None:
        self.bench.tell(HostLeaves(host))
        self.bench.turn()

    def lose(self, host: str) -> None:
        for key in self.on(host):
            del self.bench.alive[key]
        self.bench.tell(HostLost(host))
        self.bench.turn()

    def bring_up(self) -> None:
        """Every living stub that has not said a word yet."""
        for key in [key for key in self.bench.alive if key not in self.up]:
            self.up.add(key)
            self.bench.hello(key)
            if self.bench.inbox[key]:
                self.bench.loaded(key)

    def on(self, host: str) -> list[str]:
        return [key for key in self.bench.alive if self.hosts[key] == host]

    @property
    def dismissed(self) -> list[str]:
        return [action.host for action in self.bench.said if isinstance(action, Dismiss)]

    def state(self, model: str = "m") -> str:
        return self.bench.core.registry.rows(model)[0].state.value

    def ready(self, model: str = "m") -> bool:
        return self.bench.core.registry.rows(model)[0].healthy()


@pytest.fixture
def stack(make_bench):
    """A model "m" of one instance, which serves on host "a"."""
    stack = HostBench(make_bench)
    stack.bench.load()
    stack.join("a")
    stack.bring_up()
    return stack


def test_a_model_waits_for_the_first_host_that_runs_it(make_bench):
    stack = HostBench(make_bench)
    stack.bench.load("m")
    stack.bench.turn()
    stack.join("a", "other*")
    assert (stack.state(), stack.bench.alive) == ("LOADING", {})
    stack.join("b", "m", "n")
    stack.bring_up()
    assert stack.state() == "READY"
    assert list(map(stack.hosts.get, stack.bench.alive)) == ["b"]


def test_the_configuration_is_completed_on_one_host_and_serves_on_all(make_bench):
    stack = HostBench(make_bench, auto_complete=True)
    stack.join("a")
    stack.join("b")
    stack.bench.load(instances=2)
    stack.bench.turn()
    assert len(stack.bench.alive) == 1
    stack.bring_up()
    stack.bench.die(next(iter(stack.bench.alive)), 0)
    stack.bring_up()
    assert stack.state() == "READY"
    assert (len(stack.on("a")), len(stack.on("b"))) == (2, 2)


def test_a_host_that_joins_later_takes_work_once_its_instance_is_up(stack):
    bench = stack.bench
    stack.join("b")
    requests = [bench.submit() for _ in range(3)]
    bench.turn()
    (old,), (new,) = stack.on("a"), stack.on("b")
    assert bench.held(old)
    assert not bench.held(new)
    assert stack.ready()
    stack.bring_up()
    assert len(bench.held(new)) == 1
    for key in (old, new, old):
        bench.answer(key)
    assert all(bench.response(one).error is None for one in requests)


def test_a_host_that_leaves_ends_what_it_holds_and_is_dismissed(stack):
    bench = stack.bench
    stack.join("b")
    stack.bring_up()
    requests = [bench.submit() for _ in range(2)]
    bench.turn()
    (going,), (staying,) = stack.on("a"), stack.on("b")
    stack.leave("a")
    later = bench.submit()
    bench.turn()
    assert not stack.dismissed
    bench.answer(going)
    bench.answer(staying)
    bench.finish()
    assert stack.dismissed == ["a"]
    bench.answer(staying)
    assert all(bench.response(one).error is None for one in (*requests, later))
    assert not stack.on("a")


def test_what_an_instance_that_leaves_had_not_begun_fails_if_it_dies_and_was_the_last(stack):
    bench = stack.bench
    first = bench.submit()
    bench.turn()
    (going,) = stack.on("a")
    bench.answer(going)
    inside, behind = bench.submit(), bench.submit()
    bench.turn()
    assert bench.held(going) == [inside, behind]
    stack.leave("a")
    bench.die(going, inside=next(batch.id for batch in bench.batches(going) if batch.requests[0].id == inside))
    assert bench.response(first).error is None
    assert "not healthy" in bench.response(inside).error[1]
    assert bench.response(behind).error == (int(ErrorKind.UNAVAILABLE), "no stub host runs model 'm' now")


def test_what_a_lost_host_held_fails_once_and_is_not_executed_again(stack):
    bench = stack.bench
    held = [bench.submit() for _ in range(2)]
    bench.turn()
    stack.join("b")
    stack.bring_up()
    waiting = bench.submit()
    bench.turn()
    (other,) = stack.on("b")
    stack.lose("a")
    kinds = [bench.response(one).error[0] for one in held if one not in bench.held(other)]
    assert ErrorKind.UNAVAILABLE in kinds
    while bench.held(other):
        bench.answer(other)
    answered = [bench.response(one) for one in (*held, waiting)]
    assert all(one is not None for one in answered)
    lost = "the stub host of instance 'm_0' was lost, and the request with it"
    assert answered[0].error == (int(ErrorKind.UNAVAILABLE), lost)


def test_nobody_writes_to_the_inputs_that_a_lost_host_may_still_look_at(stack):
    """It was stopped, perhaps, and goes on."""
    bench = stack.bench
    request = bench.submit()
    bench.turn()
    stack.lose("a")
    sink = bench.sinks[request]
    assert sink.responses[0].retained and sink.inputs_released == 0
    bench.sleep(59)
    assert sink.inputs_released == 0
    bench.sleep(2)
    assert sink.inputs_released == 1


def test_without_any_host_requests_are_refused_and_the_model_is_not_ready(stack):
    stack.lose("a")
    request = stack.bench.submit()
    assert stack.bench.response(request).error == (int(ErrorKind.UNAVAILABLE), "no stub host runs model 'm' now")
    assert not stack.ready()
    stack.join("b")
    stack.bring_up()
    request = stack.bench.submit()
    stack.bench.turn()
    stack.bench.answer(stack.on("b")[0])
    assert stack.bench.response(request).error is None


def test_a_load_begins_again_elsewhere_when_its_host_is_lost(make_bench):
    stack = HostBench(make_bench)
    stack.bench.load()
    stack.join("a")
    stack.join("b")
    stack.lose("a")
    stack.bench.finish()  # the process on b was killed with the first try
    stack.bring_up()
    assert stack.state() == "READY"
    assert list(map(stack.hosts.get, stack.bench.alive)) == ["b"]


def test_a_process_that_dies_on_a_host_starts_again_there(stack):
    stack.join("b")
    stack.bring_up()
    stack.bench.die(stack.on("b")[0])
    stack.bring_up()
    assert (len(stack.on("a")), len(stack.on("b"))) == (1, 1)
