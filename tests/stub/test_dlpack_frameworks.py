"""Tensors and torch, jax and NumPy on one memory. What is not installed is skipped."""

from __future__ import annotations

import gc
import sys
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from _tensorbus_app.shm import store
from _tensorbus_app.stub import tensor as module


class Framework(NamedTuple):
    """``make`` takes a NumPy array and the name of a dtype."""

    make: Callable[[Any, str], Any]
    take: Callable[[Any], Any]
    place: Callable[[Any], int]


def _numpy() -> Framework:
    return Framework(lambda array, dtype: array.astype(dtype), np.from_dlpack, lambda array: array.ctypes.data)


def _torch() -> Framework:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return Framework(
        lambda array, dtype: torch.from_numpy(array).to(getattr(torch, dtype)), torch.from_dlpack, torch.Tensor.data_ptr
    )


def _jax() -> Framework:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    return Framework(
        lambda array, dtype: jax.numpy.asarray(array).astype(dtype),
        jax.dlpack.from_dlpack,
        lambda array: array.unsafe_buffer_pointer(),
    )


@pytest.fixture(params=[_numpy, _torch, _jax])
def framework(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture(params=[_torch, _jax])
def with_bf16(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture
def received(tmp_path: Any) -> Any:
    """A tensor of a request: FP32 [2,3] in shared memory."""
    own = store.Store(str(tmp_path))
    block = own.allocate(24)
    block.view[:] = np.arange(6, dtype=np.float32).tobytes()
    reader = store.Reader(str(tmp_path))
    yield module.receive("A", "FP32", (2, 3), reader.view(block.segment, block.offset, 24))[0]
    own.close()


def aligned(array: Any) -> Any:
    """jax shares only what begins on a multiple of 64, as all shared memory of ours does."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    view = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def place_of(tensor: Any) -> int:
    return int(tensor.as_numpy().ctypes.data)


def test_a_received_tensor_is_handed_over_without_a_copy(framework: Framework, received: Any) -> None:
    taken = framework.take(received)
    assert framework.place(taken) == place_of(received)
    assert np.asarray(taken).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_tensor_of_the_model_is_handed_over_without_a_copy(framework: Framework) -> None:
    array = aligned(np.arange(6, dtype=np.int32).reshape(2, 3))
    taken = framework.take(pb_utils.Tensor("A", array))
    assert framework.place(taken) == array.ctypes.data
    assert np.asarray(taken).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "int32", "bool"])
def test_a_tensor_is_made_of_another_s_without_a_copy(framework: Framework, dtype: str) -> None:
    theirs = framework.make(np.array([[0, 1], [1, 0], [1, 1]], np.float32), dtype)
    ours = pb_utils.Tensor.from_dlpack("A", theirs)
    assert (ours.as_numpy().dtype, ours.shape()) == (np.dtype(dtype), [3, 2])
    assert place_of(ours) == framework.place(theirs)
    assert ours.as_numpy().tolist() == np.asarray(theirs).tolist()


def test_bf16_goes_in_and_out_by_its_bits_and_has_no_numpy_form(with_bf16: Framework) -> None:
    theirs = with_bf16.make(np.array([1.5, -2.0], np.float32), "bfloat16")
    tensor = pb_utils.Tensor.from_dlpack("A", theirs)
    assert (tensor._datatype, bytes(module.binary_form(tensor))) == ("BF16", b"\xc0\x3f\x00\xc0")
    with pytest.raises(pb_utils.TritonModelException, match=r"^Tensor dtype is BF16 and cannot be converted"):
        tensor.as_numpy()
    back = with_bf16.take(tensor)
    assert (back.dtype, back.tolist()) == (theirs.dtype, [1.5, -2.0])


def test_the_memory_lives_as_long_as_either_side_uses_it(framework: Framework) -> None:
    theirs = framework.make(np.arange(1000, dtype=np.float32), "float32")
    array = pb_utils.Tensor.from_dlpack("A", theirs).as_numpy()
    del theirs
    gc.collect()
    assert array.sum() == 499500
    taken = framework.take(pb_utils.Tensor("A", array))
    del array
    gc.collect()
    assert float(taken.sum()) == 499500


def test_a_consumer_holds_one_reference_to_the_tensor(framework: Framework, received: Any) -> None:
    before = sys.getrefcount(received)
    taken = framework.take(received)
    assert sys.getrefcount(received) == before + 1
    del taken
    gc.collect()
    assert sys.getrefcount(received) == before


def test_empty_tensors_and_scalars_keep_their_shapes(framework: Framework) -> None:
    for shape in ((), (0, 3)):
        theirs = framework.make(np.zeros(shape, np.float32), "float32")
        tensor = pb_utils.Tensor.from_dlpack("A", theirs)
        assert tensor.shape() == list(shape)
        assert framework.take(tensor).shape == shape


def test_a_copy_that_is_asked_for_is_made(received: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for take in (torch.from_dlpack, np.from_dlpack):
        try:
            taken = take(received, copy=True)
        except TypeError:
            pytest.skip("this version of the framework cannot ask for a copy")
        taken[0, 0] = 7
        assert received.as_numpy()[0, 0] == 0
        take(received, copy=False)[0, 1] = 8
        assert received.as_numpy()[0, 1] == 8
        received.as_numpy()[0, 1] = 1


def test_torch_takes_the_capsule_itself_and_what_has_been_written_is_seen(received: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    taken = torch.utils.dlpack.from_dlpack(received.to_dlpack())
    taken += 10
    assert received.as_numpy().tolist() == [[10, 11, 12], [13, 14, 15]]
    back = pb_utils.Tensor.from_dlpack("B", torch.utils.dlpack.to_dlpack(taken))
    back.as_numpy()[0, 0] = -1
    assert received.as_numpy()[0, 0] == -1


@pytest.mark.parametrize("change", ["t()", "[:, ::2]", "[:, 0]", "[0, ::2]"])
def test_torch_tensors_with_gaps_are_refused(change: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    whole = torch.arange(6.0).reshape(2, 3)
    strided = {"t()": whole.t(), "[:, ::2]": whole[:, ::2], "[:, 0]": whole[:, 0], "[0, ::2]": whole[0, ::2]}[change]
    with pytest.raises(pb_utils.TritonModelException, match=r"^DLPack tensor is not contiguous\."):
        pb_utils.Tensor.from_dlpack("A", strided)


def test_a_view_into_a_torch_tensor_begins_where_it_begins() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    whole = torch.arange(6.0).reshape(2, 3)
    assert pb_utils.Tensor.from_dlpack("A", whole[1:]).as_numpy().tolist() == [[3, 4, 5]]
