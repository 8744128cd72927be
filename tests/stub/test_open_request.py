"""What may be sent when: a request's way from its arrival to its one final response."""

from __future__ import annotations

import gc
from typing import Any, Callable, Dict

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

Load = Callable[..., Any]

DECOUPLED: Dict[str, Any] = {"model_transaction_policy": {"decoupled": True}}
WRAPPER = "Failed to process the request(s) for model 'probe_0_0', message: "
CLOSED = "Unable to send response. Response sender has been closed."
KEEPING = """
class TritonPythonModel:
    def execute(self, requests):
        self.requests = requests
"""


def answer(value: int) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(1, value, np.int32))])


def kept(load: Load, **config: Any) -> Any:
    """A model whose one request is open, and its sender."""
    loaded = load(KEEPING, **config)
    executed = loaded.execute(loaded.request({"IN": np.zeros(2, np.int32)}))
    assert (executed.failed, executed.responses) == (False, [])
    (request,) = loaded.model.instance.requests
    return loaded, request.get_response_sender()


def value(loaded: Any, response: Any) -> int:
    return int(loaded.outputs(response)[0].array[0])


# --- decoupled --------------------------------------------------------------------------------------------------


def test_in_decoupled_mode_the_flag_ends_the_request(load: Load) -> None:
    loaded, sender = kept(load, **DECOUPLED)
    sender.send(answer(1))
    sender.send(answer(2))
    sender.send(flags=1)
    first, second, last = loaded.sent()
    assert [value(loaded, first), value(loaded, second)] == [1, 2]
    assert [response.final for response in (first, second, last)] == [False, False, True]
    assert (last.outputs, last.error, last.lease) == ([], None, 0)
    for arguments in ((answer(3),), (answer(3), 1), (None, 1)):
        with pytest.raises(pb_utils.TritonModelException, match=CLOSED):
            sender.send(*arguments)
    assert loaded.sent() == []


def test_in_decoupled_mode_the_flag_may_come_with_the_last_response(load: Load) -> None:
    loaded, sender = kept(load, **DECOUPLED)
    sender.send(answer(1), 1)
    (response,) = loaded.sent()
    assert (response.final, value(loaded, response)) == (True, 1)


def test_in_decoupled_mode_an_error_ends_nothing(load: Load) -> None:
    loaded, sender = kept(load, **DECOUPLED)
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("x", pb_utils.TritonError.NOT_FOUND)))
    sender.send(answer(1), 1)
    error, last = loaded.sent()
    assert (error.error, error.final, last.final) == ((2, "x"), False, True)


def test_in_decoupled_mode_what_is_raised_ends_the_requests_that_are_open(load: Load) -> None:
    loaded = load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                first, second, _ = [request.get_response_sender() for request in requests]
                first.send(flags=1)
                second.send(pb_utils.InferenceResponse([]))
                raise ValueError("boom")
        """,
        **DECOUPLED,
    )
    requests = [loaded.request({}) for _ in range(3)]
    flag, response, *errors = loaded.execute(*requests).responses
    assert (flag.request, flag.final, flag.error) == (requests[0].id, True, None)
    assert (response.request, response.final) == (requests[1].id, False)
    assert [(error.request, error.final) for error in errors] == [(requests[1].id, True), (requests[2].id, True)]
    assert all(error.error[1].startswith(WRAPPER + "ValueError: boom\n\nAt:\n") for error in errors)


@pytest.mark.parametrize("returned", ["[]", "[None]", "3", "requests"])
def test_in_decoupled_mode_execute_returns_none(load: Load, returned: str) -> None:
    loaded = load(f"class TritonPythonModel:\n    def execute(self, requests): return {returned}\n", **DECOUPLED)
    assert loaded.infer({}).error == (
        1,
        WRAPPER + "Python model 'probe_0_0' is using the decoupled mode and the execute function must return None.",
    )


def test_outputs_are_pruned_and_parameters_kept_in_each_response(load: Load) -> None:
    loaded, sender = kept(load, **DECOUPLED)
    tensors = [pb_utils.Tensor(name, np.zeros(1)) for name in ("OUT", "OTHER")]
    for number in range(2):
        sender.send(pb_utils.InferenceResponse(tensors, parameters={"n": number}))
    assert [[output.name for output in loaded.outputs(response)] for response in loaded.port.sent] == [["OUT"]] * 2
    assert [response.parameters for response in loaded.sent()] == [{"n": 0}, {"n": 1}]
    sender.send(flags=1)


# --- default ----------------------------------------------------------------------------------------------------


def test_in_default_mode_the_response_is_final_and_the_flag_may_follow(load: Load) -> None:
    loaded, sender = kept(load)
    sender.send(answer(1))
    (response,) = loaded.sent()
    assert (response.final, value(loaded, response)) == (True, 1)
    with pytest.raises(pb_utils.TritonModelException, match="cannot send more than one response"):
        sender.send(answer(2))
    sender.send(flags=1)
    with pytest.raises(pb_utils.TritonModelException, match=CLOSED):
        sender.send(flags=1)
    assert loaded.sent() == []


def test_in_default_mode_the_flag_needs_a_response(load: Load) -> None:
    loaded, sender = kept(load)
    with pytest.raises(pb_utils.TritonModelException, match="cannot send complete final before sending a response"):
        sender.send(flags=1)
    sender.send(answer(1), 1)
    assert len(loaded.sent()) == 1


def test_a_request_of_the_model_s_own_has_nobody_to_answer() -> None:
    request = pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="m")
    with pytest.raises(pb_utils.TritonModelException, match="has no reference to the decoupled state of the model"):
        request.get_response_sender().send(answer(1))
    assert request.get_response_sender().is_cancelled() is False


# --- nobody left to answer --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "The execute function returned no response for the request and sent none through its response sender."),
        (DECOUPLED, "The model has let go of the request and of its response sender without sending the final flag."),
    ],
)
def test_who_lets_go_of_request_and_sender_leaves_an_error(load: Load, config: Any, text: str) -> None:
    loaded, sender = kept(load, **config)
    loaded.model.instance.requests.clear()
    gc.collect()
    assert loaded.abandoned() == []  # the sender is left
    del sender
    gc.collect()
    (response,) = loaded.abandoned()
    assert (response.error, response.final) == ((1, WRAPPER + text), True)
    assert loaded.abandoned() == []
    assert loaded.session.delivery.open == set()


def test_the_request_alone_can_still_answer(load: Load) -> None:
    loaded, sender = kept(load, **DECOUPLED)
    del sender
    gc.collect()
    assert not loaded.session.delivery.abandoned
    loaded.model.instance.requests[0].get_response_sender().send(flags=1)
    loaded.model.instance.requests.clear()
    gc.collect()
    assert not loaded.session.delivery.abandoned


def test_one_that_was_cancelled_is_answered_as_cancelled(load: Load) -> None:
    loaded, sender = kept(load, **DECOUPLED)
    loaded.port.cancel = [sender._open.message.id]
    assert sender.is_cancelled()
    loaded.model.instance.requests.clear()
    del sender
    gc.collect()
    assert [response.error for response in loaded.abandoned()] == [(7, "")]


# --- inputs -----------------------------------------------------------------------------------------------------


def test_inputs_are_on_lease_until_the_model_lets_go_of_them(load: Load) -> None:
    loaded, sender = kept(load, **DECOUPLED)
    sender.send(flags=1)
    (response,) = loaded.sent()
    assert response.retained
    assert loaded.session.delivery.retained.collect() == []
    loaded.model.instance.requests.clear()
    gc.collect()
    assert loaded.session.delivery.retained.collect() == [response.request]


def test_inputs_that_went_before_the_flag_are_not_on_lease(load: Load) -> None:
    loaded, sender = kept(load, **DECOUPLED)
    loaded.model.instance.requests.clear()
    gc.collect()
    sender.send(flags=1)
    assert loaded.sent()[0].retained is False


# --- cancellation and rescheduling ------------------------------------------------------------------------------


def test_a_cancelled_request_stays_cancelled(load: Load) -> None:
    loaded, sender = kept(load, **DECOUPLED)
    (request,) = loaded.model.instance.requests
    assert not request.is_cancelled()
    loaded.port.cancel = [sender._open.message.id]
    assert request.is_cancelled()
    assert sender.is_cancelled()
    sender.send(answer(1), 1)
    assert request.is_cancelled()
    assert loaded.session.delivery.cancelled == set()


def test_what_is_cancelled_before_execute_is_not_executed(load: Load) -> None:
    loaded = load(KEEPING.replace("self.requests = requests", "self.ids = [r.request_id() for r in requests]"))
    requests = [loaded.request({}, request_id=name) for name in "abc"]
    loaded.session.cancel(_cancel([requests[0].id, requests[2].id]))
    responses = {response.request: response for response in loaded.execute(*requests).responses}
    assert loaded.model.instance.ids == ["b"]
    assert [responses[requests[index].id].error for index in (0, 2)] == [(7, "")] * 2
    assert loaded.session.delivery.cancelled == set()


def test_late_cancellations_are_forgotten(load: Load) -> None:
    loaded, sender = kept(load, **DECOUPLED)
    loaded.session.cancel(_cancel([999, sender._open.message.id]))
    loaded.session.forget_cancelled()
    assert loaded.session.delivery.cancelled == {sender._open.message.id}
    sender.send(flags=1)


def _cancel(requests: Any) -> Any:
    from _tensorbus_app.stub.shared import messages

    return messages.Cancel(messages.CANCEL, requests)


AGAIN = """
class TritonPythonModel:
    def execute(self, requests):
        self.kept = requests[0].inputs()
        requests[0].set_release_flags({flags})
        {then}
"""


@pytest.mark.parametrize("config", [{}, DECOUPLED])
def test_a_rescheduled_request_is_not_answered_and_its_sender_closed(load: Load, config: Any) -> None:
    then = "self.sender = requests[0].get_response_sender()"
    loaded = load(AGAIN.format(flags="pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE", then=then), **config)
    request = loaded.request({"IN": np.zeros(2, np.int32)})
    executed = loaded.execute(request)
    assert (executed.responses, executed.rescheduled, executed.failed) == ([], [request.id], False)
    assert loaded.session.delivery.open == set()
    with pytest.raises(pb_utils.TritonModelException, match=CLOSED if config else "before sending a response"):
        loaded.model.instance.sender.send(flags=1)


def test_inputs_of_an_earlier_execution_are_still_on_lease_after_the_last(load: Load) -> None:
    loaded = load("""
    class TritonPythonModel:
        first = None
        def execute(self, requests):
            if self.first is None:
                self.first = requests[0].inputs()[0].as_numpy()
                requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None]
            return [pb_utils.InferenceResponse([])]
    """)
    request = loaded.request({"IN": np.zeros(2, np.int32)})
    assert loaded.execute(request).rescheduled == [request.id]
    (response,) = loaded.execute(request).responses
    assert response.retained
    loaded.model.instance.first = None
    gc.collect()
    assert loaded.session.delivery.retained.collect() == [request.id]


def test_release_all_answers_as_ever(load: Load) -> None:
    then = "return [pb_utils.InferenceResponse([])]"
    loaded = load(AGAIN.format(flags="pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL", then=then))
    assert loaded.infer({}).error is None


@pytest.mark.parametrize("element", ["pb_utils.InferenceResponse([])", "3"])
def test_a_rescheduled_request_has_none_in_its_place(load: Load, element: str) -> None:
    then = f"return [{element}]"
    loaded = load(AGAIN.format(flags="pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE", then=then))
    executed = loaded.execute(loaded.request({}))
    (response,) = executed.responses
    assert executed.rescheduled == []
    assert response.error[1].startswith(
        WRAPPER
        + "Expected a None object in the execute function return list for reschduled request, found type '<class "
    )
