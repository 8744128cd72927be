import gc
import weakref
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from _tensorbus_app.stub.tensor import lend, own

from tests.stub.batch import side_by_side


def request(*tensors: Any) -> pb_utils.InferenceRequest:
    return pb_utils.InferenceRequest(inputs=list(tensors), requested_output_names=["OUT"], model_name="m")


def joined(*tensors: Any) -> Any:
    return pb_utils.input_batch_as_numpy([request(tensor) for tensor in tensors], "A")


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("datatype", ["FP32", "INT64", "INT16", "BOOL"])
def test_inputs_that_lie_side_by_side_are_one_array_without_a_copy(rows: int, datatype: str) -> None:
    memory, tensors = side_by_side("A", 4, rows, datatype, length=16384)
    found = joined(*tensors)
    assert (found.shape, found.dtype) == (memory.shape, memory.dtype)
    assert np.shares_memory(found, memory)
    assert np.array_equal(found, np.concatenate([tensor.as_numpy() for tensor in tensors]))
    found[rows:] = 1
    assert (tensors[1].as_numpy() == 1).all() and (memory[rows:] == 1).all()


def test_all_that_it_shows_lives_as_long_as_it_does() -> None:
    memory, tensors = side_by_side("A", 2)
    roots = [weakref.ref(tensor.as_numpy()) for tensor in tensors]
    part = joined(*tensors)[1:, :3]
    del memory, tensors
    gc.collect()
    assert all(root() is not None for root in roots)
    assert part.tolist() == [[8192.0, 8193.0, 8194.0]]
    del part
    assert all(root() is None for root in roots)


def test_others_are_copied() -> None:
    memory, (a, b, c) = side_by_side("A", 3)
    _, (elsewhere, _) = side_by_side("A", 2)
    made = pb_utils.Tensor("A", a.as_numpy().copy())
    for tensors in ([a, c], [b, a], [a, a], [a, elsewhere], [a, made], [made, a]):
        found = joined(*tensors)
        assert np.array_equal(found, np.concatenate([tensor.as_numpy() for tensor in tensors]))
        assert not np.shares_memory(found, memory)
    assert joined(a) is a.as_numpy()


def test_control_inputs_are_joined_too() -> None:
    tensors = [own("A", "INT32", np.full((1, 1), value, np.int32)) for value in (1, 0)]
    assert joined(*tensors).tolist() == [[1], [0]]


def test_what_others_look_at_too_is_copied() -> None:
    memory, tensors = side_by_side("A", 2)
    lend(tensors[0])
    found = joined(*tensors)
    assert not np.shares_memory(found, memory)
    assert np.array_equal(found, memory)


def test_small_ones_are_copied() -> None:
    memory, tensors = side_by_side("A", 3, length=4)
    found = joined(*tensors)
    assert np.array_equal(found, memory)
    assert not np.shares_memory(found, memory)


def test_what_does_not_fit_is_told() -> None:
    _, (a, b) = side_by_side("A", 2)
    flat = pb_utils.Tensor("A", b.as_numpy().reshape(-1))
    with pytest.raises(pb_utils.TritonModelException, match="a request of the batch has no input 'A'"):
        joined(a, pb_utils.Tensor("B", b.as_numpy()))
    with pytest.raises(pb_utils.TritonModelException, match="the inputs 'A' of a batch do not fit"):
        joined(a, flat)
    with pytest.raises(pb_utils.TritonModelException, match="do not fit"):
        joined()
    assert joined(*[pb_utils.Tensor("A", np.array([[text]], object)) for text in "xy"]).tolist() == [["x"], ["y"]]
