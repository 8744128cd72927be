from __future__ import annotations

import numpy as np
import pytest

from stub.backends.onnxruntime.ragged_batch import batch_inputs, ragged_inputs, scatter, scattered_outputs

REQUESTS = [{"A": np.zeros((2, 3, 1))}, {"A": np.zeros((1, 2, 2))}]  # 6 and 4 elements
VALUES = {
    "BATCH_ELEMENT_COUNT": [6, 4],
    "BATCH_ACCUMULATED_ELEMENT_COUNT": [6, 10],
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": [0, 6, 10],
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": [0] * 6,
    "BATCH_ITEM_SHAPE": [[3, 1], [3, 1], [2, 2]],
    "BATCH_ITEM_SHAPE_FLATTEN": [3, 1, 3, 1, 2, 2],
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("data_type, dtype", [("TYPE_INT32", np.int32), ("TYPE_FP32", np.float32)])
def test_each_kind_tells_the_shapes_of_the_requests_in_its_way(kind, data_type, dtype):
    entry = {"kind": kind, "data_type": data_type, "source_input": ["A"], "target_name": ["B", "C"]}
    found = batch_inputs({"batch_input": [entry]}, REQUESTS)
    assert found["B"].tolist() == found["C"].tolist() == VALUES[kind]
    assert found["B"].dtype == dtype


def test_inputs_are_ragged_that_say_so():
    config = {"input": [{"name": "A", "allow_ragged_batch": True}, {"name": "B", "allow_ragged_batch": False}]}
    assert ragged_inputs(config) == {"A"}
    assert batch_inputs(config, REQUESTS) == {}


def test_an_output_is_scattered_as_its_input_came():
    entry = {"kind": "BATCH_SCATTER_WITH_INPUT_SHAPE", "source_input": ["A"], "target_name": ["Y"]}
    assert scattered_outputs({"batch_output": [entry]}) == {"Y": "A"}
    first, second = scatter("Y", np.arange(5), [-1], [(1, 3), (2, 1)])
    assert (first.tolist(), second.tolist()) == ([[0, 1, 2]], [[3], [4]])
    (only,) = scatter("Y", np.arange(4), [2, -1], [(1, 7, 2)])
    assert only.tolist() == [[[0, 1], [2, 3]]]


def test_elements_that_are_missing_are_an_error():
    with pytest.raises(ValueError, match=r"^output 'Y' has 4 elements for requests that need 5$"):
        scatter("Y", np.arange(4), [-1], [(1, 3), (2, 1)])
