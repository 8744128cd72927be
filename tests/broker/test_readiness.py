"""Who is ready: what the broker knows of instances, and what models with ``is_ready`` say of themselves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.events import AskedReady, Say, StopServing, StubSaid, TellReady
from protocol.messages import CANCEL_CALL, IS_READY, READY, Answered, AskReady, CancelCall, IsReady, Ready
from tests.broker.conftest import NONCE, Bench

TIMEOUT_S = 5.0


class Asking(Bench):
    """Of models with ``is_ready``, whose stubs have a second socket each. Answers are True, False or not there yet."""

    def __init__(self, instances: int = 1, listening: bool = True, **settings) -> None:
        super().__init__(**settings)
        self.answers: list[bool] = []
        self.load(instances=instances)
        self.bring_up_asking(listening)

    def bring_up_asking(self, listening: bool = True) -> None:
        self.keys = list(self.alive)
        for key in self.keys:
            self.hello(key)
            self.inbox[key].clear()
            self.alive[f"{key}/ready"], self.inbox[f"{key}/ready"] = "", []
            self.tell(StubSaid(key, Ready(READY, NONCE, "segment", asks_ready=True), ()))
            if listening:
                self.says(key, 0, False)

    def ask(self, server: bool = False) -> None:
        version = None if server else self.core.registry.find("m", -1)
        self.tell(AskedReady(version, self.answers.append))

    def _carry_out(self, actions) -> None:
        for action in [one for one in actions if isinstance(one, TellReady)]:
            action.done(action.ready)
        super()._carry_out(actions)

    def calls(self, key: str) -> list[int]:
        return [message.call for message in self.sent(f"{key}/ready", AskReady)]

    def says(self, key: str, call: int, ready: bool, error: str = "") -> None:
        self.tell(StubSaid(f"{key}/ready", IsReady(IS_READY, call, ready, error), ()))

    def only_instance(self) -> str:
        (key,) = [key for key in self.alive if not key.endswith("/ready")]
        return key

    def why(self) -> list[str]:
        return [one.event for one in self.said if isinstance(one, Say) and "is not ready" in one.event]


@pytest.fixture
def asking() -> Asking:
    return Asking()


# --- what the broker knows ----------------------------------------------------------------------------------------


def told(bench, version=None):
    answers: list[bool] = []
    actions = bench.core.handle(AskedReady(version, answers.append), bench.now)
    for action in actions:
        if isinstance(action, TellReady):
            action.done(action.ready)
    return answers, [action.event for action in actions if isinstance(action, Say)]


def test_a_model_is_not_ready_while_an_instance_is_dead(bench):
    version = bench.core.registry.find("m", -1)
    assert told(bench, version) == told(bench) == ([True], [])
    bench.die(bench.only())
    why = ["Model 'm' version 1 is not ready: Stub process 'm_0' is not healthy."]
    assert told(bench, version) == told(bench) == ([False], why)
    bench.bring_up()
    assert told(bench, version) == ([True], [])


def test_without_models_the_server_is_ready(make_bench):
    assert told(make_bench()) == ([True], [])


def test_strict_readiness_wants_every_model_loaded(bench):
    bench.core.registry.add_failure("other")
    assert told(bench) == ([False], [])
    assert told(bench, bench.core.registry.find("m", -1)) == ([True], [])


def test_without_strict_readiness_only_the_servers_own_state_counts(make_bench):
    bench = make_bench(strict_readiness=False)
    bench.load()
    assert told(bench) == ([True], [])
    bench.tell(StopServing())
    assert told(bench) == ([False], [])


# --- what the model says ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ready", "error", "why"),
    [
        (True, "", []),
        (False, "", ["Model 'm' version 1 is not ready: Model 'm_0' is not ready (user-defined check failed)."]),
        (False, "ValueError: no", ["Model 'm' version 1 is not ready: ValueError: no"]),
    ],
)
def test_the_model_is_asked(asking, ready, error, why):
    asking.ask()
    [key] = asking.keys
    assert asking.calls(key) == [1] and asking.answers == []
    asking.says(key, 1, ready, error)
    assert asking.answers == [ready] and asking.why() == why


def test_the_server_asks_every_model_that_wants_to_be_asked(asking):
    asking.load("other")
    other = next(reversed(asking.alive))
    asking.hello(other)
    asking.loaded(other)
    asking.ask(server=True)
    assert asking.answers == []
    asking.says(asking.keys[0], 1, True)
    assert asking.answers == [True]


def test_a_call_in_flight_is_shared(asking):
    [key] = asking.keys
    asking.ask()
    asking.ask()
    asking.ask(server=True)
    assert asking.calls(key) == [1]
    asking.says(key, 1, True)
    assert asking.answers == [True, True, True]
    asking.ask()
    assert asking.calls(key) == [1, 2]


def test_all_instances_must_say_yes():
    asking = Asking(instances=2)
    first, second = asking.keys
    asking.ask()
    asking.says(first, 1, True)
    assert asking.answers == []
    asking.says(second, 2, True)
    assert asking.answers == [True]


def test_the_first_no_is_the_answer():
    asking = Asking(instances=2)
    first, second = asking.keys
    asking.ask()
    asking.says(second, 2, False)
    assert asking.answers == [False]
    asking.says(first, 1, False)
    assert asking.answers == [False] and len(asking.why()) == 1


def test_nobody_waits_longer_than_the_timeout_and_later_callers_still_hear_the_late_answer(asking):
    [key] = asking.keys
    asking.ask()
    asking.sleep(3)
    asking.ask()
    asking.sleep(2)
    assert asking.answers == [False]
    asking.sleep(1)
    asking.ask()
    assert asking.calls(key) == [1]
    asking.says(key, 1, True)
    assert asking.answers == [False, True, True]
    assert asking.why() == ["Model 'm' version 1 is not ready: Timed out waiting for user-defined is_ready() response"]
    asking.ask()
    assert asking.calls(key) == [1, 2]


def test_who_joins_a_call_that_never_ends_is_told_so(asking):
    asking.ask()
    asking.sleep(TIMEOUT_S)
    asking.ask()
    asking.sleep(TIMEOUT_S)
    assert asking.answers == [False, False]
    assert asking.why()[1].endswith("Timed out waiting for in-flight is_ready() response")


def test_the_timeout_wakes_the_shell(asking):
    assert asking.core.next_deadline() is None
    asking.ask()
    assert asking.core.next_deadline() == asking.now + int(TIMEOUT_S * 1e9)


def test_a_stub_that_does_not_listen_yet_is_asked_when_it_does():
    asking = Asking(listening=False)
    [key] = asking.keys
    asking.ask()
    assert asking.calls(key) == []
    asking.says(key, 0, False)
    assert asking.calls(key) == [1]
    asking.says(key, 1, True)
    assert asking.answers == [True]


def test_a_stub_that_dies_is_not_ready_and_its_successor_is_asked_anew(asking):
    [key] = asking.keys
    asking.ask()
    del asking.alive[f"{key}/ready"]
    asking.die(key)
    assert asking.answers == [False]
    assert asking.why() == ["Model 'm' version 1 is not ready: Stub process 'm_0' is not healthy."]
    asking.says(key, 1, True)  # a last word
    asking.bring_up_asking()
    asking.ask()
    assert asking.calls(asking.only_instance()) == [2]


def test_answers_to_what_nobody_asked_are_dropped(asking):
    [key] = asking.keys
    asking.says(key, 7, True)
    asking.says("99.1", 1, True)
    asking.ask()
    asking.says(key, 7, True)
    assert asking.answers == []


def test_inference_does_not_ask(asking):
    asking.ask()
    asking.says(asking.keys[0], 1, False)
    request = asking.submit()
    asking.turn()
    asking.answer(asking.keys[0])
    assert asking.response(request).error is None


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["ask", "server", "yes", "no", "sleep", "long", "die"]), max_size=30))
def test_everybody_is_told_exactly_once(events):
    asking = Asking(instances=2)
    asked = 0
    for event in events:
        if event in ("ask", "server"):
            asked += 1
            asking.ask(server=event == "server")
        elif event in ("yes", "no"):
            for key in asking.keys:
                for call in asking.calls(key)[-1:]:
                    asking.says(key, call, event == "yes")
        elif event == "die":
            key = asking.keys[0]
            asking.alive.pop(f"{key}/ready", None)
            if key in asking.alive:
                asking.die(key)
        else:
            asking.sleep(1 if event == "sleep" else 4)
    asking.sleep(TIMEOUT_S)
    assert len(asking.answers) == asked


# --- calls between models -----------------------------------------------------------------------------------------


@pytest.fixture
def called(asking) -> Asking:
    """The model "m", which has ``is_ready``, and a "caller" of it."""
    asking.load("caller")
    asking.caller = next(reversed(asking.alive))
    asking.hello(asking.caller)
    asking.loaded(asking.caller)
    return asking


def errors(bench: Asking) -> list[str]:
    responses = [message.response for message in bench.sent(bench.caller, Answered)]
    return [response.error[1] for response in responses if response.error]


def test_a_call_goes_to_a_model_that_says_it_is_ready(called):
    [key] = called.keys
    called.call(called.caller, "m", number=3)
    assert called.held(key) == []
    called.says(key, 1, True)
    called.turn()
    assert len(called.held(key)) == 1
    called.answer(key)
    assert [message.call for message in called.sent(called.caller, Answered)] == [3] and errors(called) == []


def test_a_call_of_a_model_that_is_not_ready_fails(called):
    called.call(called.caller, "m")
    called.says(called.keys[0], 1, False)
    assert errors(called) == [
        "Model m - Error when running inference: Failed for execute the inference request. Model 'm' is not ready."
    ]
    assert called.held(called.keys[0]) == []


def test_a_call_may_be_given_up_before_its_model_has_said_whether_it_is_ready(called):
    called.call(called.caller, "m", number=3)
    called.tell(StubSaid(called.caller, CancelCall(CANCEL_CALL, 3), ()))
    called.says(called.keys[0], 1, True)
    called.turn()
    assert errors(called) == [""] and called.held(called.keys[0]) == []


def test_a_caller_that_dies_meanwhile_is_not_waited_for(called):
    called.call(called.caller, "m")
    called.die(called.caller)
    called.says(called.keys[0], 1, True)
    called.turn()
    assert called.held(called.keys[0]) == []
