"""Loads, unloads, updates of instances, polls, deaths, failures, requests and the stop in any order, with and without
namespaces: everybody gets an answer, nothing is left."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from broker.events import Override, Reload, Removed, StopServing
from protocol.errors import InternalError, NotFound
from protocol.messages import Load
from tests.broker.test_control import Asked, ControlBench, source
from tests.random_events import run_random_events

MODELS = st.sampled_from(["a", "b", "c"])


class ControlMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = ControlBench()
        self.asked: list[Asked] = []
        self.stopped = False
        self.private: set[str] = set()
        self.asks: Counter[str] = Counter()  # by the key of the stub that waits

    @initialize(
        auto_complete=st.booleans(),
        load_concurrency=st.integers(1, 2),
        load_retries=st.integers(0, 1),
        namespaces=st.sampled_from([(), ("r", "s")]),
    )
    def choose(self, **settings: object) -> None:
        self.bench = ControlBench(**settings)
        self.namespaces = settings["namespaces"]

    def models(self, name: str) -> list[str]:
        """All that bear the name, if there are namespaces."""
        return [f"{namespace}::{name}" for namespace in self.namespaces] or [name]

    @rule(model=MODELS, override=st.booleans())
    def load(self, model: str, override: bool) -> None:
        self.asked.append(self.bench.ask_load(model, Override("{}", {"file:1/model.py": b""}) if override else None))

    @rule(model=MODELS)
    def unload(self, model: str) -> None:
        self.asked.append(self.bench.unload(model))

    @rule(data=st.data(), name=MODELS, gone=st.booleans())
    def poll(self, data, name: str, gone: bool) -> None:
        model = data.draw(st.sampled_from(self.models(name)))
        if gone:
            self.bench.tell(Removed(model))
            self.bench.turn()
        else:
            self.poll_of(model)

    @rule(data=st.data(), operation=st.sampled_from(["load", "unload", "is_ready"]), model=MODELS)
    def a_model_asks(self, data, operation: str, model: str) -> None:
        able = [key for key in self.bench.alive if self.bench.state(key) in ("loading", "ready")]
        if able:
            key = data.draw(st.sampled_from(able))
            self.asks[key] += 1
            self.bench.says(key, operation, model)

    @rule(
        data=st.data(),
        versions=st.sets(st.integers(1, 3), min_size=1),
        fingerprint=st.sampled_from(["a", "b"]),
        files=st.sampled_from(["", "x", "x", "x", "y"]),
        instances=st.integers(1, 3),
        fails=st.integers(0, 4),
    )
    def found(self, data, versions: set[int], fingerprint: str, files: str, instances: int, fails: int) -> None:
        if not self.bench.polls:
            return
        poll = self.bench.polls[0]
        if fails == 0:
            missing = bool(self.namespaces) and data.draw(st.booleans())
            self.bench.found(error=NotFound("") if missing else InternalError("failed to poll"))
            return
        directory = ""
        if poll.override is not None:
            directory = f"/private/{poll.number}"
            self.private.add(directory)
        self.bench.found(
            *(
                source(poll.model, version, fingerprint, files=files, instances=instances, private_directory=directory)
                for version in sorted(versions)
            )
        )

    @rule(name=MODELS, instances=st.integers(1, 3), comes_up=st.booleans())
    def load_at_once(self, name: str, instances: int, comes_up: bool) -> None:
        """So that more than half of a load is seen: the same code with other instances, most often."""
        self.poll_of(self.models(name)[0])
        while self.bench.polls:
            poll = self.bench.polls[0]
            if poll.override is not None:
                return
            self.bench.found(source(poll.model, 1, f"f{poll.number}", files="x", instances=instances))
        for key in self.coming() if comes_up else ():
            if key in self.bench.alive:
                self.bring_up(key)

    def poll_of(self, model: str) -> None:
        self.asked.append(Asked())
        self.bench.tell(Reload(model, self.asked[-1]))
        self.bench.turn()

    @rule(data=st.data(), fails=st.integers(0, 5))
    def come_up(self, data, fails: int) -> None:
        coming = self.coming()
        if coming:
            key = data.draw(st.sampled_from(coming))
            if fails:
                self.bring_up(key)
            elif self.bench.state(key) != "loading":
                self.bench.fail(key)
                self.bench.die(key, 1)

    @rule(data=st.data())
    def hello(self, data) -> None:
        starting = [key for key in self.bench.alive if self.bench.state(key) == "starting"]
        if starting:
            self.bench.hello(data.draw(st.sampled_from(starting)))

    def coming(self) -> list[str]:
        """A stub whose ``initialize`` waits for an answer does not come up."""
        coming = [key for key in self.bench.alive if self.bench.state(key) in ("starting", "loading", "")]
        return [key for key in coming if len(self.bench.told(key)) == self.asks[key]]

    def bring_up(self, key: str) -> None:
        completes = not self.bench.state(key)
        if self.bench.state(key) != "loading":
            self.bench.hello(key)
        if any(isinstance(message, Load) for message in self.bench.inbox[key]):
            self.bench.loaded(key)
            if completes:
                self.bench.die(key, 0)

    @rule(data=st.data())
    def die(self, data) -> None:
        if self.bench.alive:
            key = data.draw(st.sampled_from(sorted(self.bench.alive)))
            self.bench.die(key, inside=None)

    @rule(model=MODELS, version=st.sampled_from([-1, 1, 2]))
    def submit(self, model: str, version: int) -> None:
        self.bench.submit(model, version)
        self.bench.turn()

    @rule(data=st.data())
    def answer(self, data) -> None:
        holding = [key for key in self.bench.alive if self.bench.held(key)]
        if holding:
            self.bench.answer(data.draw(st.sampled_from(holding)))

    @rule()
    def finish(self) -> None:
        for key in self.bench.finishing() + self.bench.killed:
            if key in self.bench.alive:
                self.bench.die(key, 0)

    @rule(seconds=st.sampled_from([0.01, 0.2, 40.0]))
    def sleep(self, seconds: float) -> None:
        self.bench.sleep(seconds)

    @rule(really=st.integers(0, 20))
    def stop(self, really: int) -> None:
        if really == 0:
            self.stopped = True
            self.bench.tell(StopServing())
            self.bench.turn()

    def teardown(self) -> None:
        """Everything comes to its end; then all is unloaded, and nothing is left of it."""
        self.settle()
        assert all(len(asked.answers) == 1 for asked in self.asked), "somebody waits for ever"
        assert not self.bench.core.loading
        if not self.stopped:
            for model in "abc":
                self.bench.unload(model)
            self.settle()
        else:
            self.settle()
        self.nothing_is_left()

    def settle(self) -> None:
        for _ in range(60 + 4 * len(self.asked)):  # a load takes two rounds, and may have to wait for all others
            while self.bench.polls:
                self.found_one()
            for key in self.coming():
                if key in self.bench.alive:
                    self.bring_up(key)
            for key in list(self.bench.alive):
                if key in self.bench.alive and self.bench.held(key):
                    self.bench.answer(key, 10)
            self.finish()
            self.bench.sleep(40)
            busy = any(self.bench.held(key) for key in self.bench.alive)
            if not (busy or self.bench.polls or self.coming()) and all(asked.answers for asked in self.asked):
                return

    def found_one(self) -> None:
        self.bench.found(source(self.bench.polls[0].model))

    def nothing_is_left(self) -> None:
        for _ in range(5):
            self.finish()
            self.bench.sleep(40)
        core = self.bench.core
        assert self.bench.alive == {} and core.processes == 0
        assert all(sink.responses for sink in self.bench.sinks.values()), "a request was lost"
        assert {row.state for row in core.registry.index(ready=False)} <= {"UNAVAILABLE", "UNLOADING"}
        if not self.stopped:
            assert list(self.bench.recorder) == []
            assert {row[2:] for row in self.bench.index()} <= {("UNAVAILABLE", "unloaded")}
            assert sorted(self.bench.discarded) == sorted(self.private)
            assert len(list(core.registry)) == len(self.bench.index())


@pytest.mark.timeout(300)
def test_everybody_gets_an_answer_and_nothing_is_left():
    run_random_events(ControlMachine, usual=200, steps=50)
