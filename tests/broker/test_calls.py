"""Calls from model to model: checked, answered to the stub that made them, and ended with it."""

from __future__ import annotations

import pytest

from broker.events import ClientGone, OutputsRead, StubSaid
from protocol.errors import ErrorKind
from protocol.messages import (
    CANCEL_CALL,
    RESULTS,
    Answered,
    Cancel,
    CancelCall,
    Execute,
    Executed,
    Handle,
    Response,
    Results,
    Returned,
    TensorRef,
)


@pytest.fixture
def pair(make_bench):
    """Models "a" and "b", one instance each; the keys of their stubs."""
    bench = make_bench()
    bench.load("a")
    bench.load("b")
    bench.bring_up()
    bench.a, bench.b = sorted(bench.alive)
    return bench


def answers(bench, key):
    return [message.response for message in bench.sent(key, Answered)]


def test_a_call_reaches_the_other_model_and_its_answer_the_caller(pair):
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, "b", number=7)
    (inside,) = pair.take_batch(pair.b).requests
    assert (inside.id < 0, inside.model, inside.version) == (True, "b", 1)
    batch = pair.core._roster.serving(pair.b)[1].outstanding[0].id
    pair.results(pair.b, executed=[Executed(batch, 0, 0, 0, False, [Response(inside.id, [], 5)])])
    (answered,) = pair.sent(pair.a, Answered)
    assert (answered.call, answered.origin, answered.response.lease, answered.response.final) == (7, pair.b, 5, True)
    assert {one.model: one.success for one in pair.recorder} == {"a": 0, "b": 1}


def test_the_outputs_of_a_call_are_on_lease_until_the_caller_has_read_them_or_dies(pair):
    pair.submit("a")
    pair.turn()
    for number in (1, 2):
        pair.call(pair.a, "b", number=number)
        pair.answer(pair.b, lease=number)
    pair.results(pair.a, read=[(pair.b, 1), (pair.b, 99)])
    pair.sleep(0.2)
    assert [message.released for message in pair.sent(pair.b, Execute) if message.released] == [[1]]
    pair.die(pair.a)
    pair.sleep(0.2)
    assert [message.released for message in pair.sent(pair.b, Execute) if message.released] == [[1], [2]]


def test_outputs_that_a_dead_model_has_passed_on_are_on_lease_until_its_responses_were_read(pair):
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, "b", number=1)
    pair.answer(pair.b, lease=5)
    passed_on = TensorRef("OUT", "FP32", (1,), Handle("b's", 128, 4), True)
    batch = pair.take_batch(pair.a)
    pair.results(pair.a, [Executed(batch.id, 0, 0, 0, False, [Response(batch.requests[0].id, [passed_on], 1)])])
    pair.die(pair.a)
    pair.sleep(0.2)
    assert not [message for message in pair.sent(pair.b, Execute) if message.released]
    pair.tell(OutputsRead(pair.a, 1))
    pair.sleep(0.2)
    assert [message.released for message in pair.sent(pair.b, Execute) if message.released] == [[5]]


def test_the_caller_is_told_when_its_retained_inputs_are_in_use_no_more(pair):
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, "b", number=3)
    inside = pair.held(pair.b)
    pair.answer(pair.b, retained=True)
    assert pair.sent(pair.a, Returned) == []
    pair.results(pair.b, released=inside)
    assert [message.calls for message in pair.sent(pair.a, Returned)] == [[3]]


def test_the_answer_to_a_caller_without_shared_memory_is_sent_inline_and_its_lease_is_over(pair):
    pair.core._roster.serving(pair.a)[1].shared = False
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, "b")
    pair.answer(pair.b, lease=5)
    (answered,) = pair.sent(pair.a, Answered)
    assert answered.response.lease == 0
    pair.sleep(0.2)
    assert [message.released for message in pair.sent(pair.b, Execute) if message.released] == [[5]]


def test_a_process_that_the_model_forked_is_answered_on_its_own_socket(pair):
    pair.submit("a")
    pair.turn()
    child = f"{pair.a}/123-abc"
    pair.alive[child], pair.inbox[child] = "", []
    pair.call(child, "b", number=1)
    pair.answer(pair.b, lease=5)
    (answered,) = pair.sent(child, Answered)
    assert pair.sent(pair.a, Answered) == []
    assert answered.response.lease == 0  # it gets them inline, and may end without a word


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("nobody", "Request for unknown model: 'nobody' is not found"),
        (
            "stream",
            "Model stream is using the decoupled. The current BLS request call doesn't support models using the "
            "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls "
            "for decoupled models.'",
        ),
        ("broken", "Failed for execute the inference request. Model 'broken' is not ready."),
        (
            "wide",
            "[request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'wide'. Got input(s) ['X'], but "
            "missing required input(s) ['Y']. Please provide all required input(s).",
        ),
    ],
)
def test_a_call_that_cannot_be_made_is_answered_at_once(pair, model, text):
    pair.load("stream", decoupled=True)
    pair.load("wide")
    wide = pair.core.registry._models["wide"][1]
    for key in list(pair.alive):
        if key not in (pair.a, pair.b):
            pair.hello(key)
            pair.loaded(key)
    spec = wide.signature.inputs[0]
    wide.signature = wide.signature._replace(inputs=(spec, spec._replace(name="Y")))
    pair.load("broken")
    pair.die(next(key for key, title in pair.alive.items() if "broken" in title))
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, model)
    (response,) = answers(pair, pair.a)
    assert response.error == (int(ErrorKind.INTERNAL), f"Model {model} - Error when running inference: {text}")


def test_an_error_of_the_model_called_keeps_its_kind_and_text(pair):
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, "b")
    pair.answer(pair.b, error=(int(ErrorKind.NOT_FOUND), "no such row"))
    assert answers(pair, pair.a)[0].error == (int(ErrorKind.NOT_FOUND), "no such row")


def test_a_caller_hears_of_the_death_of_the_instance_it_called(pair):
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, "b")
    pair.die(pair.b, inside=pair.inside(pair.b))
    assert answers(pair, pair.a)[0].error[1] == "Stub process 'b_0' is not healthy."


def test_all_responses_of_a_decoupled_model_come_to_the_caller(pair):
    pair.load("stream", decoupled=True)
    stream = next(key for key, title in pair.alive.items() if "stream" in title)
    pair.hello(stream)
    pair.loaded(stream)
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, "stream", decoupled=True)
    (inside,) = pair.take_batch(stream).requests
    pair.results(stream, responses=[Response(inside.id, [], final=False), Response(inside.id, [])])
    assert [response.final for response in answers(pair, pair.a)] == [False, True]


# --- nobody wants it any more -----------------------------------------------------------------------------------


def test_when_the_client_goes_the_calls_of_its_model_are_cancelled_too(pair):
    request = pair.submit("a")
    pair.turn()
    pair.call(pair.a, "b")
    called = pair.held(pair.b)
    pair.tell(ClientGone(request))
    assert [message.requests for message in pair.sent(pair.a, Cancel)] == [[request]]
    assert [message.requests for message in pair.sent(pair.b, Cancel)] == [called]


def test_a_call_made_for_several_requests_goes_on_while_one_of_them_is_wanted(pair):
    pair.load("both", decoupled=True)
    both = next(key for key, title in pair.alive.items() if "both" in title)
    pair.hello(both)
    pair.loaded(both)
    first, second = pair.submit("both"), pair.submit("both")
    pair.turn()
    pair.executed(both)
    pair.executed(both)
    pair.call(both, "b", waits=False)
    pair.tell(ClientGone(first))
    assert pair.sent(pair.b, Cancel) == []
    pair.tell(ClientGone(second))
    assert len(pair.sent(pair.b, Cancel)) == 1


def test_a_call_that_waits_in_the_queue_ends_when_its_caller_cancels_it(pair):
    pair.submit("b")
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, "b", number=4)
    pair.tell(StubSaid(pair.a, CancelCall(CANCEL_CALL, 4), ()))
    assert answers(pair, pair.a)[0].error == (int(ErrorKind.CANCELLED), "")
    pair.tell(StubSaid(pair.a, CancelCall(CANCEL_CALL, 4), ()))
    assert len(answers(pair, pair.a)) == 1


def test_the_calls_of_a_dead_process_are_dropped_from_the_queue_and_their_late_answers_released(pair):
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, "b", number=1)
    pair.call(pair.a, "b", number=2, waits=False)
    pair.die(pair.a)
    assert len(pair.sent(pair.b, Cancel)) == 1
    pair.answer(pair.b, lease=6)
    pair.sleep(0.2)
    assert [message.released for message in pair.sent(pair.b, Execute) if message.released] == [[6]]
    assert pair.held(pair.b) == []


def test_results_that_name_a_lease_it_never_had_do_no_harm(pair):
    pair.tell(StubSaid(pair.a, Results(RESULTS, [], [], [], [("7.7", 3)]), ()))
    assert pair.killed == []


# --- circles ----------------------------------------------------------------------------------------------------


def stuck(bench, key):
    (response,) = answers(bench, key)
    return response.error is not None and "would wait for itself" in response.error[1]


def test_a_model_with_one_instance_that_calls_itself_is_told_so(pair):
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, "a")
    assert stuck(pair, pair.a)


def test_a_call_that_its_batch_does_not_wait_for_may_wait_for_the_batch(pair):
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, "a", waits=False)
    assert answers(pair, pair.a) == []
    pair.answer(pair.a)
    assert len(pair.held(pair.a)) == 1


def test_a_circle_through_another_model_is_found_where_it_closes(pair):
    pair.submit("a")
    pair.turn()
    pair.call(pair.a, "b")
    assert answers(pair, pair.a) == []
    pair.call(pair.b, "a")
    assert stuck(pair, pair.b)
    pair.answer(pair.b)
    assert answers(pair, pair.a)[0].error is None


def test_two_requests_that_hold_each_others_instances_are_a_circle_too(make_bench):
    """Both instances of "a" wait for "b", whose one instance waits for "a"."""
    bench = make_bench()
    bench.load("a", instances=2)
    bench.load("b")
    bench.bring_up()
    one, other, b = sorted(bench.alive)
    bench.submit("a")
    bench.submit("a")
    bench.turn()
    bench.call(one, "b")
    bench.call(other, "b")
    assert answers(bench, one) == answers(bench, other) == []
    bench.call(b, "a")
    assert stuck(bench, b)


def test_a_free_or_busy_second_instance_is_no_circle(make_bench):
    bench = make_bench()
    bench.load("a", instances=2)
    bench.bring_up()
    one, other = sorted(bench.alive)
    bench.submit("a")
    bench.turn()
    bench.call(one, "a")
    assert len(bench.held(other)) == 1
    bench.call(one, "a", number=2)
    assert answers(bench, one) == []


def test_an_instance_that_is_being_restarted_will_take_the_call(make_bench):
    bench = make_bench()
    bench.load("a", instances=2)
    bench.bring_up()
    one, other = sorted(bench.alive)
    bench.submit("a")
    bench.turn()
    bench.die(other)
    bench.call(one, "a")
    assert answers(bench, one) == []
