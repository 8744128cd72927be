from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

TENSOR = pb_utils.Tensor("OUT", np.zeros(1, np.float32))


def test_a_response_holds_its_tensors() -> None:
    response = pb_utils.InferenceResponse(output_tensors=[TENSOR])
    assert response.output_tensors() == [TENSOR]
    assert pb_utils.get_output_tensor_by_name(response, "OUT") is TENSOR
    assert pb_utils.get_output_tensor_by_name(response, "X") is None
    assert (response.has_error(), response.error(), response.parameters()) == (False, None, "{}")


def test_tensors_may_be_left_out_where_there_is_an_error() -> None:
    error = pb_utils.TritonError("bad")
    response = pb_utils.InferenceResponse(error=error)
    assert (response.has_error(), response.error(), response.output_tensors()) == (True, error, [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"output_tensors": None},
        {"output_tensors": TENSOR},
        {"output_tensors": [1]},
        {"error": "bad"},
        {"error": ValueError("bad")},
        {"tensors": []},
    ],
)
def test_arguments_of_wrong_type_are_type_errors(wrong: Any) -> None:
    with pytest.raises(TypeError):
        pb_utils.InferenceResponse(**wrong)


def test_a_tensor_that_is_none_is_a_model_exception() -> None:
    with pytest.raises(pb_utils.TritonModelException) as caught:
        pb_utils.InferenceResponse([None])
    assert str(caught.value) == "Output tensor for inference response should not be empty."


def test_parameters_are_json_text() -> None:
    response = pb_utils.InferenceResponse([], parameters={"bool": True, "str": "Hello World!", "int": 1024})
    assert response.parameters() == '{"bool": true, "str": "Hello World!", "int": 1024}'


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ([], ", got <class 'list'>"),
        ({1: "int key"}, "Expect parameters keys to have type str, found type <class 'int'>"),
        ({"f": 0.5}, "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
        ({"n": None}, "Expect parameters values to have type bool/int/str, found type <class 'NoneType'>"),
        ({"l": ["x"]}, "Expect parameters values to have type bool/int/str, found type <class 'list'>"),
        ({"d": {}}, "Expect parameters values to have type bool/int/str, found type <class 'dict'>"),
        ({"i": 1 << 63}, "fit 64 bits"),
    ],
)
def test_other_parameters_are_model_exceptions(parameters: Any, text: str) -> None:
    with pytest.raises(pb_utils.TritonModelException) as caught:
        pb_utils.InferenceResponse([], parameters=parameters)
    assert text in str(caught.value)
