"""Loading and unloading while others are served."""

from __future__ import annotations

import pytest

from broker.events import (
    DeadlinePassed,
    Discard,
    LoadModel,
    Override,
    Poll,
    Polled,
    Reload,
    StartServing,
    StopServing,
    StubDied,
    StubSaid,
    TellDone,
    UnloadModel,
)
from broker.model import VersionSource
from protocol.errors import InternalError
from protocol.messages import CONTROL, FAILED, Control, Failed, Finish, Told
from tests.broker.conftest import Bench
from tests.broker.model_sources import config


class Asked:
    """A load or unload that somebody waits for."""

    def __init__(self) -> None:
        self.answers: list = []

    def __call__(self, error) -> None:
        assert not self.answers, "answered twice"
        self.answers.append(error)

    @property
    def error(self) -> str | None:
        """None if it went well."""
        (error,) = self.answers
        return None if error is None else str(error)


def source(model: str = "m", version: int = 1, fingerprint: str = "a", **fields) -> VersionSource:
    name = model.rpartition("::")[2]
    found = config(name, instances=fields.pop("instances", 1))
    return VersionSource(model, version, f"/repo/{model}", found, fingerprint=fingerprint, **fields)


class ControlBench(Bench):
    """With the repository in it, too: polls wait until the test answers them."""

    def __init__(self, **settings: object) -> None:
        super().__init__(explicit_control=True, **settings)
        self.polls: list[Poll] = []
        self.discarded: list[str] = []
        self.tell(StartServing())

    def _carry_out(self, actions: list) -> None:
        for action in actions:
            if isinstance(action, Poll):
                self.polls.append(action)
            elif isinstance(action, Discard):
                self.discarded.append(action.directory)
            elif isinstance(action, TellDone):
                action.asker(action.error)
            else:
                super()._carry_out([action])

    def ask_load(self, model: str = "m", override: Override | None = None) -> Asked:
        asked = Asked()
        self.tell(LoadModel(model, override, asked))
        return asked

    def unload(self, model: str = "m") -> Asked:
        asked = Asked()
        self.tell(UnloadModel(model, False, asked))
        self.turn()
        return asked

    def found(self, *sources: VersionSource, error: Exception | None = None) -> None:
        """The oldest poll is answered; one version 1 if nothing else is said."""
        poll = self.polls.pop(0)
        self.tell(
            Polled(
                poll.number, poll.model, list(sources) or [] if error else list(sources or [source(poll.model)]), error
            )
        )
        self.turn()

    def serve(self, *sources: VersionSource, model: str = "m") -> None:
        """From the request to READY."""
        asked = self.ask_load(model)
        self.found(*sources)
        self.bring_up()
        assert asked.error is None

    def bring_up(self) -> None:
        for key in self.loading():
            self.hello(key)
            self.loaded(key)

    def loading(self) -> list[str]:
        """The stubs that have not loaded yet."""
        return [key for key in self.alive if key not in self.killed and self.state(key) in ("starting", "loading")]

    def state(self, key: str) -> str:
        found = self.core._roster.serving(key)
        return found[1].state.value if found else ""

    def fail(self, key: str, text: str = "ValueError: no weights") -> None:
        self.hello(key)
        self.tell(StubSaid(key, Failed(FAILED, 1, text), ()))
        self.turn()

    def says(self, key: str, operation: str, model: str, **fields) -> None:
        """A stub's own request; its number is 7."""
        self.tell(StubSaid(key, Control(CONTROL, 7, operation, model, **fields), ()))
        self.turn()

    def told(self, key: str) -> list[Told]:
        """Errors without what they all begin with."""
        found = self.core._roster.serving(key)
        prefix = f"Failed to process the request for model '{found[1].spec.name}', message: " if found else ""
        answers = []
        for message in self.inbox[key]:
            if isinstance(message, Told):
                if message.error is not None:
                    assert message.error[1].startswith(prefix)
                    message = message._replace(error=(message.error[0], message.error[1].removeprefix(prefix)))
                answers.append(message)
        return answers

    def index(self) -> list[tuple]:
        return [(row.name, row.version, row.state, row.reason) for row in self.core.registry.index(ready=False)]

    def finishing(self) -> list[str]:
        return [key for key in self.alive if any(isinstance(message, Finish) for message in self.inbox[key])]


@pytest.fixture
def bench():
    return ControlBench()


@pytest.fixture
def serving(bench):
    """ "m" version 1 serves."""
    bench.serve()
    return bench


# --- load -----------------------------------------------------------------------------------------------------------


def test_a_load_is_done_when_the_model_is_ready(bench):
    asked = bench.ask_load()
    assert bench.polls[0].model == "m" and bench.index() == []
    bench.found()
    assert bench.index() == [("m", 1, "LOADING", "")] and not asked.answers
    bench.bring_up()
    assert asked.error is None and bench.index() == [("m", 1, "READY", "")]
    assert [one.model for one in bench.recorder] == ["m"]


def test_what_cannot_be_polled_is_not_loaded(serving):
    asked = serving.ask_load()
    serving.found(error=InternalError("failed to load 'm', failed to poll from model repository"))
    assert asked.error == "failed to load 'm', failed to poll from model repository"
    assert serving.index() == [("m", 1, "READY", "")]


def test_a_failed_load_is_reported_with_the_reason_of_each_version(bench):
    asked = bench.ask_load()
    bench.found(source(version=1), source(version=2), source(version=3))
    one, two, three = bench.alive
    bench.fail(one, "ValueError: a")
    bench.hello(two)
    bench.loaded(two)
    bench.fail(three, "ValueError: c")
    assert asked.error == (
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: ValueError: a;\n"
        "version 3 is at UNAVAILABLE state: Internal: ValueError: c;\n"
    )
    assert [row[2:] for row in bench.index()] == [
        ("UNAVAILABLE", "Internal: ValueError: a"),
        ("UNAVAILABLE", "unloaded"),
        ("UNAVAILABLE", "Internal: ValueError: c"),
    ]
    assert not bench.core.registry.all_loaded()


def test_files_that_have_not_changed_are_not_loaded_again(serving):
    asked = serving.ask_load()
    serving.found(source(fingerprint="a"))
    assert asked.error is None and len(serving.alive) == 1


def test_a_load_that_failed_is_tried_again_though_nothing_has_changed(bench):
    bench.ask_load()
    bench.found()
    bench.fail(bench.only())
    bench.die(bench.only(), 1)
    asked = bench.ask_load()
    bench.found()
    bench.bring_up()
    assert asked.error is None and bench.index() == [("m", 1, "READY", "")]


def test_a_configuration_that_came_with_a_request_stays_until_the_files_change(serving):
    serving.ask_load(override=Override("{}"))
    serving.found(source(fingerprint="a"))
    serving.bring_up()
    assert len(serving.alive) == 2
    serving.ask_load()
    serving.found(source(fingerprint="a"))
    assert len(serving.alive) == 2


def test_files_that_came_with_a_request_stay_until_the_next_load(serving):
    serving.ask_load(override=Override("{}", {"file:1/model.py": b""}))
    serving.found(source(fingerprint="a", private_directory="/private"))
    serving.bring_up()
    serving.ask_load()
    serving.found(source(fingerprint="a"))
    assert len(serving.loading()) == 1


# --- reload ---------------------------------------------------------------------------------------------------------


def reload(bench, *sources: VersionSource) -> Asked:
    asked = bench.ask_load()
    bench.found(*sources or [source(fingerprint="b")])
    return asked


def test_the_old_serves_until_the_new_is_ready_and_drains_then(serving):
    old = serving.only()
    asked = reload(serving)
    (new,) = serving.loading()
    serving.submit()
    serving.turn()
    assert serving.held(old) == [1]
    serving.bring_up()
    serving.submit()
    serving.turn()
    assert asked.error is None
    assert serving.held(new) == [2] and serving.finishing() == []
    serving.answer(old)
    serving.sleep(0.1)
    assert serving.finishing() == [old]
    serving.finish()
    assert serving.index() == [("m", 1, "READY", "")] and list(serving.alive) == [new]
    assert len(list(serving.core.registry)) == 1


def test_a_reload_begins_to_count_at_0(serving):
    serving.submit()
    serving.turn()
    serving.answer(serving.only())
    serving.turn()
    (before,) = serving.recorder
    reload(serving)
    serving.bring_up()
    (after,) = serving.recorder
    assert (before.success, after.success) == (1, 0)


def test_a_failed_reload_leaves_the_old_serving(serving):
    old = serving.only()
    asked = reload(serving)
    (new,) = serving.loading()
    serving.fail(new)
    assert "version 1 is at UNAVAILABLE state: Internal: ValueError: no weights;" in asked.error
    assert serving.index() == [("m", 1, "READY", "")]
    serving.finish()
    assert list(serving.alive) == [old] and len(list(serving.core.registry)) == 1
    assert serving.core.registry.all_loaded()


def test_a_version_that_is_not_loaded_any_more_is_unloaded(serving):
    (old,) = serving.alive
    reload(serving, source(version=2, fingerprint="b"))
    serving.bring_up()
    assert serving.index() == [("m", 1, "UNLOADING", ""), ("m", 2, "READY", "")]
    serving.sleep(0.1)
    serving.die(old, 0)
    assert serving.index() == [("m", 1, "UNAVAILABLE", "unloaded"), ("m", 2, "READY", "")]
    assert [one.version for one in serving.recorder] == [2]


def test_a_request_that_the_gateway_checked_against_the_old_version_is_still_served(serving):
    (old,) = serving.alive
    reload(serving, source(version=2, fingerprint="b"))
    serving.bring_up()
    late = serving.submit(version=1)
    serving.turn()
    assert serving.held(old) == [late]
    serving.sleep(0.1)
    assert "is not at ready state" in serving.error(serving.submit(version=1))


def test_a_version_that_failed_is_no_complaint_once_the_model_loads_without_it(serving):
    reload(serving, source(version=2, fingerprint="b"))
    serving.fail(serving.loading()[0])
    assert not serving.core.registry.all_loaded()
    serving.ask_load()
    serving.found(source(fingerprint="a"))
    assert serving.core.registry.all_loaded()


# --- unload ---------------------------------------------------------------------------------------------------------


def test_an_unload_refuses_new_requests_and_lets_the_others_finish(serving):
    key = serving.only()
    running = [serving.submit(), serving.submit()]
    serving.turn()
    assert serving.unload().error is None
    assert serving.index() == [("m", 1, "UNLOADING", "")]
    assert serving.error(serving.submit()) == "Request for unknown model: 'm' has no available versions"
    assert serving.error(serving.submit(version=1)) == "Request for unknown model: 'm' version 1 is not at ready state"
    assert list(serving.recorder) == [] and serving.finishing() == []
    for _ in running:
        serving.answer(key)
    assert [serving.response(one).error for one in running] == [None, None]
    assert serving.finishing() == [key]
    serving.finish()
    assert serving.index() == [("m", 1, "UNAVAILABLE", "unloaded")]
    assert serving.core.registry.all_loaded() and serving.core.processes == 0


def test_to_unload_what_is_not_there_is_no_error(bench):
    assert bench.unload("nobody").error is None


def test_an_unload_forgives_a_load_that_failed(bench):
    bench.ask_load()
    bench.found()
    bench.fail(bench.only())
    assert not bench.core.registry.all_loaded()
    bench.unload()
    assert bench.core.registry.all_loaded()
    assert bench.index() == [("m", 1, "UNAVAILABLE", "unloaded")]


def test_a_model_whose_process_is_being_restarted_can_be_unloaded(serving):
    serving.die(serving.only())
    serving.die(serving.only())
    assert serving.alive == {}
    serving.unload()
    assert serving.index() == [("m", 1, "UNAVAILABLE", "unloaded")]


def test_a_death_while_draining_does_not_lose_what_waits(serving):
    key = serving.only()
    running = [serving.submit() for _ in range(3)]
    serving.turn()
    serving.unload()
    serving.die(key, inside=serving.inside(key))
    assert "is not healthy" in serving.error(running[0])
    serving.bring_up()
    for _ in running[1:]:
        serving.answer(serving.only())
    assert [serving.response(one).error for one in running[1:]] == [None, None]
    serving.finish()
    assert serving.index() == [("m", 1, "UNAVAILABLE", "unloaded")] and serving.alive == {}


# --- one after the other --------------------------------------------------------------------------------------------


def test_a_second_load_waits_for_the_first_and_looks_then(bench):
    first, second = bench.ask_load(), bench.ask_load()
    bench.found()
    assert bench.polls == []
    bench.bring_up()
    assert first.error is None and not second.answers
    bench.found()
    assert second.error is None and len(bench.alive) == 1


def test_loads_of_two_models_go_on_at_once(bench):
    one, two = bench.ask_load("one"), bench.ask_load("two")
    bench.found()
    bench.found()
    assert len(bench.alive) == 2
    bench.bring_up()
    assert one.error is None and two.error is None


def test_an_unload_ends_the_loads_before_it(serving):
    polled, waiting = serving.ask_load(), serving.ask_load()
    poll = serving.polls.pop()
    serving.unload()
    assert "it was unloaded meanwhile" in polled.error and "it was unloaded meanwhile" in waiting.error
    serving.tell(Polled(poll.number, "m", [source(fingerprint="b", private_directory="/private")]))
    assert serving.loading() == [] and serving.discarded == ["/private"]


def test_an_unload_ends_a_load_whose_model_never_comes_up(bench):
    asked = bench.ask_load()
    bench.found()
    bench.hello(bench.only())
    bench.unload()
    assert asked.error == "load failed for model 'm': version 1 is at UNAVAILABLE state: unloaded;\n"
    assert bench.killed == [bench.only()]
    bench.finish()
    assert bench.index() == [("m", 1, "UNAVAILABLE", "unloaded")] and not bench.core.loading


def test_a_model_can_be_loaded_while_the_former_one_drains(serving):
    old = serving.only()
    running = serving.submit()
    serving.turn()
    serving.unload()
    asked = serving.ask_load()
    serving.found()
    assert serving.index() == [("m", 1, "LOADING", "")]
    serving.bring_up()
    assert asked.error is None and serving.index() == [("m", 1, "READY", "")]
    serving.answer(old)
    assert serving.response(running).error is None
    serving.finish()
    assert serving.index() == [("m", 1, "READY", "")] and len(serving.alive) == 1


def test_a_hung_execute_holds_up_neither_the_unload_nor_the_next_load(serving):
    serving.submit()
    serving.turn()
    assert serving.unload().error is None
    serving.serve()
    assert serving.index() == [("m", 1, "READY", "")]


def test_a_stop_ends_what_is_being_loaded(serving):
    asked, waiting = reload(serving), serving.ask_load()
    serving.tell(StopServing())
    serving.turn()
    assert asked.error == waiting.error == serving.ask_load().error == serving.unload().error == "Server not ready"
    serving.finish()
    assert serving.core.processes == 0


def test_a_directory_made_for_a_load_goes_when_its_last_process_has(bench):
    bench.ask_load(override=Override("{}", {"file:1/model.py": b""}))
    bench.found(source(private_directory="/private"), source(version=2, private_directory="/private"))
    bench.bring_up()
    bench.unload()
    one, two = bench.alive
    bench.die(one, 0)
    assert bench.discarded == []
    bench.die(two, 0)
    assert bench.discarded == ["/private"]


# --- who may --------------------------------------------------------------------------------------------------------


def test_without_explicit_control_nothing_is_loaded(make_bench):
    bench = make_bench()
    bench.tell(StartServing())
    for event in (LoadModel, UnloadModel):
        asked = Asked()
        bench.tell(event("m", None, asked))
        (done,) = [action for action in bench.said if isinstance(action, TellDone)]
        bench.said.remove(done)
        assert str(done.error) == "explicit model load / unload is not allowed if polling is enabled"
        assert done.error.kind.name == "UNAVAILABLE"


def test_the_operator_may_always_have_changed_files_loaded(make_bench):
    bench = make_bench()
    bench.tell(StartServing())
    bench.tell(Reload("m", Asked()))
    assert [action.model for action in bench.said if isinstance(action, Poll)] == ["m"]


def test_nothing_is_loaded_again_while_the_server_stops(bench):
    bench.tell(StopServing())
    asked = Asked()
    bench.tell(Reload("m", asked))
    assert asked.error == "Server not ready"


@pytest.mark.parametrize(
    "name, text",
    [
        ("", "Model name cannot be empty. Please enter a valid name to deploy."),
        ("..", "invalid model name '..', model name must not contain path traversal characters"),
        (" .. ", "invalid model name ' .. ', model name must not contain path traversal characters"),
        ("a/b", "invalid model name 'a/b', model name must not contain path traversal characters"),
    ],
)
def test_names_that_are_none_are_refused(bench, name, text):
    assert bench.ask_load(name).error == text == bench.unload(name).error


# --- what is left of it ---------------------------------------------------------------------------------------------


def test_an_answer_that_its_caller_has_not_read_keeps_the_process_for_a_while(serving):
    key = serving.only()
    serving.core._answering.calls._borrowed[99] = {(key, 1)}
    serving.unload()
    assert serving.finishing() == []
    serving.sleep(1.0)
    assert serving.finishing() == [key]


def test_the_clock_is_only_waited_for_by_what_it_keeps(serving):
    serving.submit()
    serving.turn()
    reload(serving)
    serving.bring_up()
    at = serving.core.next_deadline()
    assert at is not None and at > serving.now
    serving.sleep(0.1)
    assert serving.core.next_deadline() is None


def test_events_of_processes_given_up_are_no_breach(bench):
    bench.ask_load()
    bench.found()
    key = bench.only()
    bench.unload()
    bench.hello(key)
    bench.fail(key)
    assert [action for action in bench.said if getattr(action, "level", "") == "error"] == []
    bench.tell(StubDied(key, -9, 0))
    bench.tell(DeadlinePassed())
    assert bench.core.processes == 0


# --- tried again ----------------------------------------------------------------------------------------------------


def test_a_load_that_fails_is_tried_again_as_often_as_is_wanted():
    bench = ControlBench(load_retries=1)
    asked = bench.ask_load()
    bench.found()
    first = bench.only()
    bench.fail(first)
    assert bench.index() == [("m", 1, "LOADING", "")] and not asked.answers
    (second,) = [key for key in bench.loading() if key != first]
    bench.die(first, 1)
    bench.hello(second)
    bench.loaded(second)
    assert asked.error is None and bench.core.registry.rows("m")[0].leaving == []


def test_it_fails_in_the_end():
    bench = ControlBench(load_retries=2)
    asked = bench.ask_load()
    bench.found()
    for _ in range(3):
        assert not asked.answers
        (key,) = bench.loading()
        bench.fail(key)
        bench.die(key, 1)
    assert "no weights" in asked.error and bench.alive == {}
