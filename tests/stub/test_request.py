from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

TENSOR = pb_utils.Tensor("IN", np.zeros(1, np.float32))


def make(**changes: Any) -> Any:
    given = {"inputs": [TENSOR], "requested_output_names": ["OUT"], "model_name": "x"}
    return pb_utils.InferenceRequest(**{**given, **changes})


def test_a_plain_request_has_the_defaults() -> None:
    request = make()
    assert request.inputs() == [TENSOR]
    assert request.inputs() is not request.inputs()
    assert (request.request_id(), request.correlation_id(), request.flags(), request.timeout()) == ("", 0, 0, 0)
    assert request.requested_output_names() == {"OUT"}
    assert request.parameters() == "{}"
    assert request.trace().get_context() is None
    assert request.is_cancelled() is False


def test_given_values_are_given_back() -> None:
    request = make(
        request_id="r", correlation_id="c", flags=3, timeout=11000000000, parameters={"a": 1, "b": True, "c": "x"}
    )
    assert (request.request_id(), request.correlation_id(), request.flags()) == ("r", "c", 3)
    assert request.timeout() == 11000000000
    assert request.parameters() == '{"a": 1, "b": true, "c": "x"}'
    request.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
    assert request.flags() == 2


@pytest.mark.parametrize("missing", ["inputs", "requested_output_names", "model_name"])
def test_inputs_outputs_and_model_are_mandatory(missing: str) -> None:
    given = {"inputs": [], "requested_output_names": [], "model_name": "x"}
    del given[missing]
    with pytest.raises(TypeError):
        pb_utils.InferenceRequest(**given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": None},
        {"inputs": [1]},
        {"inputs": (tensor for tensor in [TENSOR])},
        {"requested_output_names": None},
        {"requested_output_names": "OUT"},
        {"requested_output_names": {"OUT"}},
        {"requested_output_names": [None]},
        {"model_name": None},
        {"model_name": 3},
        {"model_version": "1"},
        {"request_id": None},
        {"correlation_id": None},
        {"flags": None},
        {"flags": -1},
        {"flags": 1 << 32},
        {"timeout": 1.5},
        {"timeout": -1},
        {"preferred_memory": 1},
        {"trace": 1},
        {"unknown": 1},
    ],
)
def test_arguments_of_wrong_type_are_type_errors(wrong: Any) -> None:
    with pytest.raises(TypeError):
        make(**wrong)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"inputs": [None]}, "Input tensor for request with id '' and model name 'x' should not be empty."),
        (
            {"requested_output_names": [""]},
            "Requested output name for request with id '' and model name 'x' should not be empty.",
        ),
        ({"correlation_id": np.int64(1)}, "Correlation ID must be integer or string"),
        ({"correlation_id": 1.0}, "Correlation ID must be integer or string"),
        ({"correlation_id": b"1"}, "Correlation ID must be integer or string"),
        ({"parameters": []}, "Expect dict, got <class 'list'>"),
        ({"parameters": {1: 1}}, "Expect parameters keys to have type str, found type <class 'int'>"),
        ({"parameters": {"a": 1.5}}, "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
    ],
)
def test_values_out_of_the_domain_are_model_exceptions(wrong: Any, text: str) -> None:
    with pytest.raises(pb_utils.TritonModelException) as caught:
        make(**wrong)
    assert str(caught.value) == text


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_a_correlation_id_beyond_64_bits_is_a_runtime_error(number: int) -> None:
    with pytest.raises(RuntimeError):
        make(correlation_id=number)


def test_bytes_are_text_and_index_objects_are_numbers() -> None:
    request = make(model_name=b"x", request_id=np.str_("r"), flags=np.int32(1), timeout=True, correlation_id=True)
    assert (request.request_id(), request.flags(), request.timeout(), request.correlation_id()) == ("r", 1, 1, 1)


def test_any_sequence_is_a_list() -> None:
    request = make(inputs=(TENSOR,), requested_output_names=np.array(["A", "B"]))
    assert request.requested_output_names() == {"A", "B"}


def test_the_sender_of_a_self_made_request_cannot_send() -> None:
    sender = make().get_response_sender()
    with pytest.raises(pb_utils.TritonModelException, match="has no reference to the decoupled state of the model"):
        sender.send(pb_utils.InferenceResponse([]))


def test_release_flags_are_positional_and_for_received_requests() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="received requests only"):
        make().set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
    with pytest.raises(TypeError):
        make().set_release_flags(flags=1)


def test_calls_to_models_outside_execute_say_so() -> None:
    async def call() -> None:
        await make().async_exec()

    for attempt in (make().exec, lambda: asyncio.run(call())):
        with pytest.raises(pb_utils.TritonModelException) as caught:
            attempt()
        assert str(caught.value) == "BLS is only supported during the 'execute' function."


def test_a_call_to_be_awaited_needs_a_running_loop() -> None:
    with pytest.raises(RuntimeError, match=r"^no running event loop$"):
        make().async_exec()


@pytest.mark.parametrize("decoupled", ["yes", None])
def test_whether_a_call_is_decoupled_is_a_bool(decoupled: Any) -> None:
    with pytest.raises(TypeError):
        make().exec(decoupled=decoupled)


def test_preferred_memory_takes_a_memory_type() -> None:
    make(preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0))
    with pytest.raises(TypeError):
        pb_utils.PreferredMemory(0)
