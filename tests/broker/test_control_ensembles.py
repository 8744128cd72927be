"""Loading and unloading of ensembles with the models that they are made of."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.events import LoadModels, UnloadModel
from broker.model import VersionSource
from broker.model_config import from_message
from protocol.errors import InternalError, ServingError
from protocol.messages import Load
from tests.broker import model_sources
from tests.broker.test_control import Asked, ControlBench, source
from tests.random_events import run_random_events

# What the ensembles of the repository are made of. "x" and "y" need each other.
PARTS = {"e": ["a", "b"], "f": ["e", "c"], "g": ["a", "nosuch"], "x": ["y"], "y": ["x", "a"]}


def ensemble(name: str, fingerprint: str = "a", parts: list[str] | None = None) -> VersionSource:
    parts = parts or PARTS[name]
    tensors = ["X", *(f"t{index}" for index in range(1, len(parts))), "Y"]
    steps = [
        (part, {"X": tensors[index]}, {"Y" if part in PARTS else "X": tensors[index + 1]})
        for index, part in enumerate(parts)
    ]
    return model_sources.source(name, steps, fingerprint, output="Y")


def of_five(name: str, fingerprint: str = "a") -> VersionSource:
    """A model that does not fit the others: its dimensions are [5]."""
    one = source(name, 1, fingerprint)
    message = one.config.message
    message.input[0].dims[:] = message.output[0].dims[:] = [5]
    return VersionSource(name, 1, one.directory, from_message(message), fingerprint=fingerprint)


class EnsembleBench(ControlBench):
    def find(self, *sources: VersionSource) -> None:
        """All polls are answered, by these or as the repository has it."""
        known = {one.model: one for one in sources}
        while self.polls:
            model = self.polls[0].model
            if model == "nosuch":
                self.found(error=InternalError("not there"))
            else:
                self.found(known.get(model) or (ensemble(model) if model in PARTS else source(model)))

    def load_at_once(self, model: str, *sources: VersionSource) -> Asked:
        asked = self.ask_load(model)
        self.find(*sources)
        self.bring_up()
        self.turn()
        self.find(*sources)
        return asked

    def serving(self) -> str:
        return "".join(sorted(one.name for one in self.core.registry.serving()))

    def unload_with_dependents(self, model: str) -> None:
        self.tell(UnloadModel(model, True, Asked()))
        self.turn()


@pytest.fixture
def bench() -> EnsembleBench:
    return EnsembleBench()


def test_loading_an_ensemble_loads_its_models_and_theirs(bench):
    asked = bench.ask_load("f")
    bench.find()
    assert bench.serving() == "" and not asked.answers
    bench.bring_up()
    assert (bench.serving(), asked.error) == ("abcef", None)


def test_at_the_start_an_ensemble_waits_for_models_that_come_after_it(make_bench):
    bench = make_bench()
    bench.tell(LoadModels([ensemble("e"), source("a"), source("b")]))
    bench.turn()
    assert bench.core.loading
    bench.bring_up()
    assert sorted(one.name for one in bench.core.registry.serving()) == ["a", "b", "e"]
    assert not bench.core.loading


def test_an_ensemble_with_a_model_that_does_not_load_says_why_and_has_no_row(bench):
    asked = bench.ask_load("e")
    bench.find()
    bench.fail(bench.loading()[0])
    bench.bring_up()
    assert asked.error == (
        "load failed for model 'e': ensemble 'e' depends on 'a' which has no loaded version. Model 'a' loading failed "
        "with error: version 1 is at UNAVAILABLE state: Internal: ValueError: no weights;\n"
    )
    assert ("e", -1, "", "") in bench.index()


def test_a_model_that_nobody_knows_is_named(bench):
    text = "ensemble g contains models that are not available or ambiguous: nosuch"
    assert bench.load_at_once("g").error == f"load failed for model 'g': {text}\n"


def test_ensembles_that_need_each_other_are_refused(bench):
    text = "circular dependency between ensembles: x -> ... -> y -> x"
    assert bench.load_at_once("x").error == f"load failed for model 'x': {text}\n"
    assert bench.serving() == "a"


def test_a_model_that_does_not_fit_is_loaded_and_the_ensemble_is_not(bench):
    asked = bench.load_at_once("e", of_five("b"))
    assert "ensemble tensor t1: inconsistent shape: [4] is inferred from model a while [5]" in asked.error
    assert bench.serving() == "ab"
    bench.load_at_once("b", source("b", 1, "fits"))
    assert bench.serving() == "abe"


def test_an_ensemble_goes_with_its_model_and_comes_back_with_it(bench):
    bench.load_at_once("f")
    bench.unload("a")
    assert bench.serving() == "bc"
    bench.finish()
    assert [row[3] for row in bench.index()] == ["unloaded", "", "", "unloaded", "unloaded"]
    bench.load_at_once("a")
    assert bench.serving() == "abcef"


def test_an_ensemble_that_was_unloaded_by_name_does_not_come_back(bench):
    bench.load_at_once("f")
    bench.unload("f")
    bench.unload("a")
    bench.load_at_once("a")
    assert bench.serving() == "abce"


def test_unloading_an_ensemble_leaves_its_models_unless_told_otherwise(bench):
    bench.load_at_once("c")
    bench.load_at_once("f")
    bench.unload("f")
    assert bench.serving() == "abce"
    bench.load_at_once("f")
    bench.unload_with_dependents("f")
    assert bench.serving() == "c"


def test_a_model_that_another_ensemble_needs_stays(bench):
    bench.load_at_once("f")
    bench.load_at_once("e")
    bench.unload_with_dependents("f")
    assert bench.serving() == "abe"


def test_a_model_that_changes_and_still_fits_leaves_the_ensemble_alone(bench):
    bench.load_at_once("e")
    (before,) = bench.core.registry.rows("e")
    bench.load_at_once("b", source("b", 1, "new"))
    assert bench.core.registry.rows("e") == [before]


def test_a_model_that_changes_and_no_longer_fits_takes_the_ensemble_with_it_until_it_does(bench):
    bench.load_at_once("f")
    bench.load_at_once("b", of_five("b", "new"))
    assert bench.serving() == "abc"
    bench.load_at_once("b", source("b", 1, "newer"))
    assert bench.serving() == "abcef"


def test_an_ensemble_that_changes_for_the_worse_goes_on_as_it_was(bench):
    bench.load_at_once("e")
    asked = bench.load_at_once("e", ensemble("e", "new", ["a", "nosuch"]))
    assert "nosuch" in asked.error
    assert bench.serving() == "abe"


def test_a_model_that_loads_an_ensemble_it_is_part_of_is_refused(bench):
    asked = bench.ask_load("e")
    bench.find()
    (key, *_) = [key for key in bench.alive if bench.alive[key].startswith("a:")]
    bench.hello(key)
    assert isinstance(bench.inbox[key][0], Load)
    bench.says(key, "load", "e")
    assert bench.told(key)[0].error[1] == "the load of model 'e' would wait for itself"
    bench.bring_up()
    assert asked.error is None


class EnsembleMachine(RuleBasedStateMachine):
    """Any order of loads, unloads, failures and changes."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = EnsembleBench(load_concurrency=2)
        self.asked: list[Asked] = []

    @rule(model=st.sampled_from("abcefgxy"))
    def load(self, model: str) -> None:
        self.asked.append(self.bench.ask_load(model))

    @rule(model=st.sampled_from("abcefgxy"), dependents=st.booleans())
    def unload(self, model: str, dependents: bool) -> None:
        asked = Asked()
        self.bench.tell(UnloadModel(model, dependents, asked))
        self.bench.turn()
        assert asked.error is None

    @precondition(lambda self: self.bench.polls)
    @rule(fingerprint=st.sampled_from("ab"), fits=st.integers(0, 3))
    def found(self, fingerprint: str, fits: int) -> None:
        model = self.bench.polls[0].model
        if model == "nosuch":
            self.bench.found(error=InternalError("not there"))
        elif model in PARTS:
            self.bench.found(ensemble(model, fingerprint))
        else:
            self.bench.found((source if fits else of_five)(model, fingerprint=fingerprint))

    @precondition(lambda self: self.bench.loading())
    @rule(data=st.data(), fails=st.integers(0, 3))
    def up(self, data, fails: int) -> None:
        key = data.draw(st.sampled_from(self.bench.loading()))
        if fails == 0:
            self.bench.fail(key)
        else:
            self.bench.hello(key)
            self.bench.loaded(key)

    @rule()
    def finish(self) -> None:
        self.bench.finish()

    @invariant()
    def ensembles_serve_with_their_models(self) -> None:
        serving = {one.name: one for one in self.bench.core.registry.serving()}
        waiting = self.bench.core._control._lines
        for one in serving.values():
            if one.plan is not None and one.name not in waiting:
                assert one.plan.models <= serving.keys(), one.name

    def teardown(self) -> None:
        for _ in range(100):
            self.bench.find()
            self.bench.bring_up()
            self.bench.finish()
            self.bench.turn()
        left = self.bench.core._control._lines.values()
        assert not left, [(one.model, one.orders, one.generation, one.sources != []) for one in left]
        assert not self.bench.core.loading
        assert all(len(asked.answers) == 1 for asked in self.asked)
        assert all(error is None or isinstance(error, ServingError) for asked in self.asked for error in asked.answers)


@pytest.mark.timeout(300)
def test_whatever_is_asked_everybody_is_told_and_ensembles_serve_with_their_models():
    run_random_events(EnsembleMachine, usual=100)
