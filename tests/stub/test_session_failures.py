"""What a batch comes to, where the model does not behave."""

from __future__ import annotations

import os
from typing import Any, Callable

import numpy as np
import pytest
from _tensorbus_app.stub.shared import messages

Load = Callable[..., Any]
WRAPPER = "Failed to process the request(s) for model 'probe_0_0', message: "


def model(body: str) -> str:
    return f"import numpy as np\nclass TritonPythonModel:\n    def execute(self, requests):\n        {body}\n"


def failure(loaded: Any, requests: int = 1) -> str:
    """The one error of all requests of a batch. The broker logs it; the stub logs a traceback, if there is one."""
    executed = loaded.execute(*(loaded.request({}) for _ in range(requests)))
    assert executed.failed
    (error,) = {response.error for response in executed.responses}
    assert len(executed.responses) == requests
    assert all(line[0] == "E" and "Traceback (most recent call last):" in line[3] for line in loaded.logs)
    assert error[0] == 1
    assert error[1].startswith(WRAPPER)
    return str(error[1][len(WRAPPER) :])


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ('raise ValueError("boom")', "ValueError: boom"),
        ("lorem_ipsum", "NameError: name 'lorem_ipsum' is not defined"),
        ('raise pb_utils.TritonModelException("no")', "TritonModelException: no"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: <EMPTY MESSAGE>"),
        ('pb_utils.Tensor("", np.zeros(1))', "TritonModelException: Tensor name cannot be an empty string."),
    ],
)
def test_what_execute_raises_fails_the_batch(load: Load, statement: str, text: str) -> None:
    loaded = load(model(statement))
    assert failure(loaded, 3) == f"{text}\n\nAt:\n  {loaded.model.model_file}(5): execute\n"
    ((level, file, line, traceback),) = loaded.logs
    assert (level, file, line) == ("E", "model.py", 5)
    assert f"line 5, in execute\n    {statement}\n" in traceback
    assert "session.py" not in traceback


def test_a_helpers_frame_comes_before_executes(load: Load) -> None:
    loaded = load("""
    def inner():
        raise ValueError("boom")
    class TritonPythonModel:
        def execute(self, requests):
            inner()
    """)
    file = loaded.model.model_file
    assert failure(loaded) == f"ValueError: boom\n\nAt:\n  {file}(4): inner\n  {file}(7): execute\n"


def test_a_cause_is_logged_but_not_told(load: Load) -> None:
    loaded = load(model('raise ValueError("boom") from KeyError("secret")'))
    assert "secret" not in failure(loaded)
    assert "KeyError: 'secret'" in loaded.logs[0][3]


def test_a_model_without_execute_says_so(load: Load) -> None:
    loaded = load("class TritonPythonModel:\n    pass\n")
    assert failure(loaded) == f"Python model {loaded.model.model_file} does not implement `execute` method."


@pytest.mark.parametrize(
    ("value", "type_text"),
    [
        ("()", "<class 'tuple'>"),
        ("3", "<class 'int'>"),
        ("np.zeros(1)", "<class 'numpy.ndarray'>"),
        ("(r for r in requests)", "<class 'generator'>"),
        ("{}", "<class 'dict'>"),
    ],
)
def test_a_return_that_is_no_list(load: Load, value: str, type_text: str) -> None:
    assert failure(load(model("return " + value))) == (
        f"Expected a list in the execute return, found type '{type_text}'."
    )


@pytest.mark.parametrize("size", [0, 2])
def test_a_list_of_the_wrong_length(load: Load, size: int) -> None:
    assert failure(load(model(f"return [pb_utils.InferenceResponse([])] * {size}"))) == (
        "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
        f"InferenceRequest(s) size is:1, and InferenceResponse(s) size is:{size}\n"
    )


def test_an_element_of_another_type_fails_the_good_ones_too(load: Load) -> None:
    loaded = load(model("return [pb_utils.InferenceResponse([]), 3]"))
    assert failure(loaded, 2) == (
        "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'."
    )
    assert loaded.memory.placed == []


@pytest.mark.parametrize("value", ["None", "[None]"])
def test_a_request_without_any_response_is_not_left_hanging(load: Load, value: str) -> None:
    loaded = load(model("return " + value))
    executed = loaded.execute(loaded.request({}))
    assert executed.failed is False
    assert [response.error for response in executed.responses] == [
        (
            1,
            WRAPPER + "The execute function returned no response for the request and sent none through its "
            "response sender.",
        )
    ]


def test_only_the_silent_request_fails(load: Load) -> None:
    loaded = load(model("return [pb_utils.InferenceResponse([]), None]"))
    executed = loaded.execute(loaded.request({}), loaded.request({}))
    assert executed.failed is False
    assert executed.responses[0].error is None
    assert "returned no response" in executed.responses[1].error[1]


OWN = """
class Own(pb_utils.InferenceResponse):
    def {method}: {does}
class TritonPythonModel:
    def execute(self, requests):
        return [Own([])]
"""


@pytest.mark.parametrize("method", ["__bool__(self)", "__len__(self)", "__eq__(self, other)"])
@pytest.mark.parametrize("does", ["return 0", "raise ValueError"])
def test_a_response_is_one_whatever_it_says_of_itself(load: Load, method: str, does: str) -> None:
    executed = (loaded := load(OWN.format(method=method, does=does))).execute(loaded.request({}))
    assert [response.error for response in executed.responses] == [None]


def test_a_list_of_its_own_kind_is_read_once(load: Load) -> None:
    loaded = load("""
    class Own(list):
        def __bool__(self): raise ValueError("boom")
    class Broken(list):
        def __iter__(self): raise ValueError("boom")
    class TritonPythonModel:
        def execute(self, requests):
            kind = Own if requests[0].request_id() == "own" else Broken
            return kind([pb_utils.InferenceResponse([])])
    """)
    (response,) = loaded.execute(loaded.request({}, request_id="own")).responses
    assert response.error is None
    assert failure(loaded).startswith("ValueError: boom")


def test_what_only_claims_to_be_a_response_is_none(load: Load) -> None:
    loaded = load("""
    class Claims:
        __class__ = pb_utils.InferenceResponse
    class Raises:
        @property
        def __class__(self): raise ValueError
    class TritonPythonModel:
        def execute(self, requests):
            return [(Claims if requests[0].request_id() == "claims" else Raises)()]
    """)
    (response,) = loaded.execute(loaded.request({}, request_id="claims")).responses
    assert "found type '<class '1.model.Claims'>'" in response.error[1]
    assert "found type '<class '1.model.Raises'>'" in failure(loaded)


@pytest.mark.parametrize("made", ["Response()", 'pb_utils.InferenceResponse([Tensor("OUT")])'])
def test_a_response_whose_parts_were_never_initialized_fails_alone(load: Load, made: str) -> None:
    loaded = load(f"""
    class Response(pb_utils.InferenceResponse):
        def __init__(self): pass
    class Tensor(pb_utils.Tensor):
        def __init__(self, name): pass
    class TritonPythonModel:
        def execute(self, requests):
            return [{made}, pb_utils.InferenceResponse([])]
    """)
    bad, good = loaded.execute(loaded.request({}), loaded.request({})).responses
    assert "the response cannot be read" in bad.error[1]
    assert good.error is None


@pytest.mark.parametrize("size", [10, 2_000_000])
def test_an_array_that_was_resized_under_its_tensor_fails_its_response(load: Load, size: int) -> None:
    loaded = load(f"""
    import numpy as np
    class TritonPythonModel:
        def execute(self, requests):
            array = np.zeros(1_000_000, np.float32)
            tensor = pb_utils.Tensor("OUT", array)
            array.resize({size}, refcheck=False)
            return [pb_utils.InferenceResponse([tensor]), pb_utils.InferenceResponse([])]
    """)
    bad, good = loaded.execute(loaded.request({}), loaded.request({})).responses
    assert bad.error[1] == WRAPPER + "the array of tensor 'OUT' was resized after the tensor had been made"
    assert good.error is None


def test_calls_to_other_models_without_a_server_are_refused_clearly(load: Load) -> None:
    call = 'pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="m").exec()'
    assert failure(load(model(call))).startswith("TritonModelException: BLS is only supported during the 'execute'")


def test_inputs_that_cannot_be_read_fail_the_batch_before_the_model(load: Load) -> None:
    loaded = load(model("self.called = True"))

    def view(_: object) -> memoryview:
        raise ValueError("gone")

    batch = messages.Batch(1, [loaded.request({"IN": np.zeros(1, np.float32)})])
    executed = loaded.session.execute(batch, view, [])
    assert executed.failed
    assert executed.responses[0].error == (
        1,
        "Failed to process the request(s) for model instance 'probe_0_0', message: the inputs cannot be read",
    )
    assert "ValueError: gone" in loaded.logs[0][3]
    assert not hasattr(loaded.model.instance, "called")


def test_a_response_that_finds_no_place_fails_alone(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(model('return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1))]) for _ in requests]'))
    place, calls = loaded.memory.place, []

    def full_at_first(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("/dev/shm/x is full")
        return place(*arguments)

    monkeypatch.setattr(loaded.session.delivery, "_place", full_at_first)
    executed = loaded.execute(loaded.request({}), loaded.request({}))
    assert executed.responses[0].error == (1, WRAPPER + "the outputs found no place")
    assert "/dev/shm/x" in loaded.logs[0][3]
    assert executed.responses[1].error is None


def test_an_exception_in_a_forked_child_leaves_execute(load: Load) -> None:
    """A child that the model forked must end, not become a second stub."""
    loaded = load("""
    import os, sys
    class TritonPythonModel:
        def execute(self, requests):
            self.child = os.fork()
            if self.child == 0:
                sys.exit(5)
            return [pb_utils.InferenceResponse([])]
    """)
    try:
        loaded.execute(loaded.request({}))
    except SystemExit:
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(loaded.model.instance.child, 0)[1]) == 9


def test_tracebacks_are_logged_once_a_second_at_most(load: Load) -> None:
    loaded = load("""
    class TritonPythonModel:
        def execute(self, requests):
            raise ValueError("boom") from KeyError("secret")
    """)
    for _ in range(5):
        failure(loaded)
    assert len(loaded.logs) == 1
