from __future__ import annotations

import numpy as np
import pytest

from stub.backends.joined import Joined, join


def concatenate(name, members, arrays):
    assert len(members) == len(arrays)
    return np.concatenate(arrays)


def rows(*shapes, dtype=np.float32):
    """A request for each shape, with an input X full of its position."""
    return [{"X": np.full(shape, position, dtype)} for position, shape in enumerate(shapes)]


def members(inputs, batching=True):
    return [joined.members for joined in join(inputs, batching, concatenate)]


def test_requests_alike_but_for_their_rows_run_as_one():
    (joined,) = join(rows((2, 3), (1, 3)), True, concatenate)
    assert joined.rows == [2, 1]
    assert joined.inputs["X"].tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 1]]


def test_those_of_another_shape_or_type_run_by_themselves():
    assert members(rows((2, 3), (1, 4), (5, 3))) == [[0, 2], [1]]
    assert members([*rows((1, 3)), *rows((1, 3), dtype=np.float64)]) == [[0], [1]]


def test_an_absent_optional_input_makes_a_difference():
    one, other = rows((1, 3), (1, 3))
    assert members([one, {**other, "Y": np.zeros((1, 3))}]) == [[0], [1]]


def test_the_order_in_which_inputs_come_makes_none():
    one, other = ({"X": np.zeros((1, 2)), "Y": np.zeros((1, 3))} for _ in range(2))
    assert members([one, dict(reversed(other.items()))]) == [[0, 1]]


def test_a_lone_request_is_not_copied():
    inputs = rows((2, 3))
    (joined,) = join(inputs, True, concatenate)
    assert joined.inputs["X"] is inputs[0]["X"]


def test_without_batching_nothing_is_joined():
    assert members(rows((2, 3), (2, 3)), batching=False) == [[0], [1]]


def test_the_elements_of_ragged_inputs_follow_each_other():
    inputs = rows((1, 3), (2, 2))
    (joined,) = join(inputs, True, concatenate, {"X"})
    assert joined.inputs["X"].tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert joined.rows == [1, 2]
    (alone,) = join(inputs[1:], True, concatenate, {"X"})
    assert alone.inputs["X"].shape == (4,) and np.shares_memory(alone.inputs["X"], inputs[1]["X"])


def test_outputs_are_taken_apart_by_rows_without_a_copy():
    whole = np.arange(6).reshape(3, 2)
    first, second = Joined([4, 7], [2, 1], {}).split("Y", whole)
    assert first.tolist() == [[0, 1], [2, 3]] and second.tolist() == [[4, 5]]
    assert first.base is not None and np.shares_memory(first, whole)


def test_an_output_with_too_few_rows_cannot_be_taken_apart():
    for wrong in (np.zeros((2, 2)), np.zeros(())):
        with pytest.raises(ValueError, match=r"^output 'Y' has shape .* for a batch of 3$"):
            Joined([0, 1], [2, 1], {}).split("Y", wrong)


def test_the_output_of_a_lone_request_is_its_own_whatever_its_shape():
    whole = np.zeros((7, 2))
    assert Joined([0], [1], {}).split("Y", whole)[0] is whole
