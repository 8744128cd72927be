import gc
import weakref
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from _tensorbus_app.stub.input_batch import join

ROW = 4096  # of FP32: 16 KiB


def pieces(count: int, rows: int = 1, dtype: Any = np.float32) -> tuple[Any, list[Any]]:
    memory = np.arange(count * rows * ROW).astype(dtype)
    return memory, [memory[n * rows * ROW : (n + 1) * rows * ROW].reshape(rows, ROW // 4, 4) for n in range(count)]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float64])
def test_arrays_that_lie_side_by_side_become_one_without_a_copy(rows: int, dtype: Any) -> None:
    memory, arrays = pieces(4, rows, dtype)
    joined = join(arrays)
    assert joined.shape == (4 * rows, ROW // 4, 4)
    assert joined.dtype == dtype
    assert np.array_equal(joined, np.concatenate(arrays))
    joined[0] = -1
    assert (memory[:ROW] == -1).all()


def test_all_that_it_shows_lives_as_long_as_it_does() -> None:
    memory, arrays = pieces(2)
    roots = [weakref.ref(array) for array in arrays]
    part = join(arrays)[1:, :1]
    del memory, arrays
    gc.collect()
    assert all(root() is not None for root in roots)
    assert part.tolist() == [[[4096, 4097, 4098, 4099]]]
    del part
    assert all(root() is None for root in roots)


def test_others_are_copied() -> None:
    memory, (a, b, c) = pieces(3)
    for arrays in ([a, c], [b, a], [a, a], [a, b[:, ::2].repeat(2, axis=1)], [a.copy(), b], [a, b.astype("f8")]):
        joined = join(arrays)
        assert np.array_equal(joined, np.concatenate(arrays))
        assert not np.shares_memory(joined, memory)
    assert join([a]) is a
    small = [memory[:1].reshape(1, 1), memory[1:2].reshape(1, 1)]
    assert not np.shares_memory(join(small), memory)
    with pytest.raises(ValueError, match="dimensions"):
        join([a, b.reshape(1, -1)])
    with pytest.raises(ValueError):
        join([])


def test_what_may_not_be_written_to_stays_so() -> None:
    memory, arrays = pieces(2)
    arrays[1].flags.writeable = False
    joined = join(arrays)
    assert np.shares_memory(joined, memory)
    assert not joined.flags.writeable


def test_objects_are_copied() -> None:
    arrays = list(np.array([b"x"] * 8192, object).reshape(2, 1, 4096))
    assert join(arrays).tolist() == [[b"x"] * 4096] * 2


def request(**inputs: Any) -> pb_utils.InferenceRequest:
    tensors = [pb_utils.Tensor(name, array) for name, array in inputs.items()]
    return pb_utils.InferenceRequest(inputs=tensors, requested_output_names=["OUT"], model_name="m")


def test_an_input_of_all_requests_is_one_array() -> None:
    memory, arrays = pieces(3)
    requests = [request(A=array, B=np.array([[n]], np.int32)) for n, array in enumerate(arrays)]
    assert np.shares_memory(pb_utils.input_batch_as_numpy(requests, "A"), memory)
    assert pb_utils.input_batch_as_numpy(requests, "B").tolist() == [[0], [1], [2]]
    with pytest.raises(pb_utils.TritonModelException, match="a request of the batch has no input 'C'"):
        pb_utils.input_batch_as_numpy([*requests, request(C=arrays[0])], "C")
    with pytest.raises(pb_utils.TritonModelException, match="the inputs 'A' of a batch do not fit"):
        pb_utils.input_batch_as_numpy([*requests, request(A=arrays[0][0])], "A")
