"""Answers through the response sender in default mode."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest

Load = Callable[..., Any]

FINAL = "pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"


def model(*statements: str) -> str:
    lines = "\n".join("        " + statement for statement in statements)
    return f"""
import threading
import numpy as np
def answer(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.full(1, value, np.int32))])
class TritonPythonModel:
    def execute(self, requests):
        self.sender = sender = requests[0].get_response_sender()
{lines}
"""


def value(loaded: Any, response: Any) -> int:
    return int(loaded.outputs(response)[0].array[0])


@pytest.mark.parametrize(
    "statements",
    [
        (f"sender.send(answer(1), {FINAL})", "return None"),
        (f"sender.send(answer(1), {FINAL})", "return [None]"),
        ("sender.send(answer(1))", f"sender.send(flags={FINAL})"),
        ("sender.send(answer(1))", "return [None]"),
        ("worker = threading.Thread(target=sender.send, args=(answer(1),))", "worker.start(); worker.join()"),
    ],
)
def test_a_sent_response_is_the_answer(load: Load, statements: Any) -> None:
    loaded = load(model(*statements))
    executed = loaded.execute(loaded.request({}))
    (response,) = executed.responses
    assert (executed.failed, response.final, value(loaded, response), loaded.logs) == (False, True, 1, [])


def test_the_returned_response_is_dropped_where_one_was_sent(load: Load) -> None:
    loaded = load(model(f"sender.send(answer(1), {FINAL})", "return [answer(2)]"))
    assert value(loaded, loaded.infer({})) == 1
    assert "cannot send more than one response" in loaded.logs[0][3]


def test_a_response_is_sent_as_it_is_at_that_time(load: Load) -> None:
    loaded = load(
        model(
            "array = np.zeros(1, np.int32)",
            'sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))',
            "array[0] = 9",
        )
    )
    assert value(loaded, loaded.infer({})) == 0


def test_what_is_raised_after_sending_fails_the_other_requests_only(load: Load) -> None:
    loaded = load(model(f"sender.send(answer(1), {FINAL})", "raise ValueError"))
    first, second = loaded.execute(loaded.request({}), loaded.request({})).responses
    assert value(loaded, first) == 1
    assert "ValueError" in second.error[1]


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("sender.send(answer(1), flags=2)", "Unable to send response. Unsupported flag provided."),
        ("sender.send()", "Inference Response object must be provided when the response flags is set to zero."),
        (
            f"sender.send(flags={FINAL})",
            "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
        ),
        (
            "[sender.send(answer(i)) for i in range(2)]",
            "Unable to send response. Non-decoupled model cannot send more than one response.",
        ),
        (
            f"sender.send(answer(1), {FINAL}); sender.send(flags={FINAL})",
            "Unable to send response. Response sender has been closed.",
        ),
    ],
)
def test_misuse_is_a_model_exception(load: Load, statement: str, text: str) -> None:
    loaded = load(
        model(
            "try:",
            "    " + statement,
            "except pb_utils.TritonModelException as error:",
            "    self.text = str(error)",
            "return [answer(0)]",
        )
    )
    loaded.infer({})
    assert loaded.model.instance.text == text


def test_a_sender_closes_when_execute_has_returned(load: Load) -> None:
    loaded = load(model("self.answer = answer", "raise ValueError"))
    loaded.infer({})
    instance = loaded.model.instance
    with pytest.raises(Exception, match="Response sender has been closed"):
        instance.sender.send(instance.answer(1))
    answered = load(model("self.answer = answer", "return [answer(1)]"))
    answered.infer({})
    instance = answered.model.instance
    with pytest.raises(Exception, match="cannot send more than one response"):
        instance.sender.send(instance.answer(2))
    with pytest.raises(Exception, match="Response sender has been closed"):
        instance.sender.send(flags=1)


def test_only_responses_and_flags_are_taken(load: Load) -> None:
    loaded = load(model("return [answer(1)]"))
    loaded.infer({})
    for arguments in ((3,), (None, "x"), (None, 1.0)):
        with pytest.raises(TypeError):
            loaded.model.instance.sender.send(*arguments)
    assert loaded.model.instance.sender.is_cancelled() is False


def test_outputs_that_were_not_asked_for_are_dropped_here_too(load: Load) -> None:
    loaded = load(model("sender.send(answer(1))"), outputs=("OUT", "B"))
    assert loaded.outputs(loaded.infer({"IN": np.zeros(1, np.int8)}, outputs=["B"])) == []
