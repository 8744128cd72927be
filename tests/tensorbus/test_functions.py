"""Bound functions as the stub's session calls them, without a server."""

from typing import Any

import numpy as np
import pytest

from protocol.errors import InvalidArgument
from stub.request import InferenceRequest
from stub.tensor import Tensor as RequestTensor
from tensorbus.functions import BoundFunction, Tensor

X, Y = Tensor("x", np.float32), Tensor("y", np.float32)


def request(**arrays: Any) -> InferenceRequest:
    tensors = [RequestTensor(name, array) for name, array in arrays.items()]
    return InferenceRequest(inputs=tensors, requested_output_names=[], model_name="f")


def answers(bound: BoundFunction, *requests: InferenceRequest) -> list[list[Any]]:
    """The values of each response's outputs."""
    responses = bound.execute(list(requests))
    return [[tensor.as_numpy().tolist() for tensor in response.output_tensors()] for response in responses]


def test_without_batching_each_request_is_a_call():
    bound = BoundFunction("f", lambda x: x * 2, [X], [Y], 0)
    requests = [request(x=np.float32([value])) for value in (1, 2)]
    assert answers(bound, *requests) == [[[2]], [[4]]]


def test_with_batching_requests_of_one_shape_are_a_call_and_each_gets_its_share():
    calls = []

    def double(x):
        calls.append(x.shape)
        return x * 2

    bound = BoundFunction("f", double, [X], [Y], 8)
    shapes = [(1, 2), (3, 2), (1, 4), (2, 2)]
    arrays = [np.full(shape, number, np.float32) for number, shape in enumerate(shapes)]
    assert answers(bound, *(request(x=array) for array in arrays)) == [[(array * 2).tolist()] for array in arrays]
    assert calls == [(4, 2), (1, 4), (2, 2)]


def test_arrays_come_by_keyword_whatever_the_order_of_the_request():
    bound = BoundFunction(
        "f",
        lambda **given: given["b"] - given["a"],
        [Tensor("a", "INT8"), Tensor("b", "INT8")],
        [Tensor("c", "INT8")],
        0,
    )
    assert answers(bound, request(b=np.int8([5]), a=np.int8([2]))) == [[[3]]]


def test_a_batch_of_another_size_than_the_inputs_is_no_answer():
    bound = BoundFunction("f", lambda x: x[:1], [X], [Y], 8)
    with pytest.raises(ValueError, match="output 'y' of function 'f' has batch size 1, not 3"):
        bound.execute([request(x=np.zeros((1, 1), np.float32)), request(x=np.zeros((2, 1), np.float32))])


@pytest.mark.parametrize("dtype", [str, bytes, object, "BYTES", "TYPE_STRING", "U5"])
def test_text_is_bytes(dtype):
    bound = BoundFunction("f", lambda x: np.char.upper(x.astype("U")), [Tensor("x", dtype)], [Tensor("y", dtype)], 0)
    assert answers(bound, request(x=np.array([b"a"], object))) == [[["A"]]]


def test_its_configuration_is_a_models():
    config = BoundFunction("f", len, [Tensor("x", np.int64, [2, -1])], [Tensor("y", "UINT8", [1])], 4).source.config
    assert (config.name, config.backend, config.max_batch_size) == ("f", "python", 4)
    assert [(spec.name, spec.datatype, spec.dims) for spec in config.inputs + config.outputs] == [
        ("x", "INT64", (2, -1)),
        ("y", "UINT8", (1,)),
    ]


@pytest.mark.parametrize("dtype", [np.complex64, "BF16", "float33", 7])
def test_what_no_array_can_be_of_is_refused(dtype):
    with pytest.raises(InvalidArgument, match="'x'"):
        BoundFunction("f", len, [Tensor("x", dtype)], [Y], 0)


@pytest.mark.parametrize("name", ["", "a/b"])
def test_names_that_are_none_are_refused(name):
    with pytest.raises(InvalidArgument):
        BoundFunction(name, len, [X], [Y], 0)
