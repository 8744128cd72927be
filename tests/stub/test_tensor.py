from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from _tensorbus_app.stub import tensor as module
from _tensorbus_app.stub.numpy_types import DTYPE
from _tensorbus_app.stub.shared import messages

BF16_ONE = b"\x80\x3f"


@pytest.mark.parametrize("datatype", sorted(DTYPE))
def test_each_numeric_datatype_keeps_its_name_shape_and_bytes(datatype: str) -> None:
    array = np.arange(6).astype(DTYPE[datatype]).reshape(2, 3)
    tensor = pb_utils.Tensor("A", array)
    assert (tensor.name(), tensor.shape(), tensor._datatype) == ("A", [2, 3], datatype)
    assert module.binary_form(tensor) == array.tobytes()
    assert tensor.as_numpy() is array


@pytest.mark.parametrize("datatype", sorted(DTYPE))
def test_a_received_array_is_a_writable_view_and_the_same_at_each_call(datatype: str) -> None:
    memory = bytearray(np.arange(6).astype(DTYPE[datatype]).tobytes())
    tensor, root = module.receive("A", datatype, (2, 3), memoryview(memory))
    array = tensor.as_numpy()
    array[...] = 1
    assert array is tensor.as_numpy()
    assert (array.dtype, array.shape) == (DTYPE[datatype], (2, 3))
    assert bytes(memory) == np.ones(6, DTYPE[datatype]).tobytes()
    assert root is not None


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("datatype", sorted(DTYPE))
def test_what_came_with_the_message_is_a_writable_copy(datatype: str, shape: Any) -> None:
    data = np.arange(6).astype(DTYPE[datatype]).tobytes()
    before = bytes(bytearray(data))
    array = module.receive_bytes("A", datatype, shape, data).as_numpy()
    assert (array.dtype, array.shape, array.tobytes()) == (DTYPE[datatype], shape, data)
    array[...] = 1
    assert data == before


@pytest.mark.parametrize(
    "datatype, shape", [("FP32", (2, 3)), ("FP32", (5,)), ("FP32", ()), ("BYTES", (0,)), ("BF16", (2,))]
)
def test_what_came_with_the_message_may_be_of_any_kind(datatype: str, shape: Any) -> None:
    nbytes = math.prod(shape) * (2 if datatype == "BF16" else 4)
    tensor = module.receive_bytes("A", datatype, shape, bytes(nbytes))
    received, _ = module.receive("A", datatype, shape, bytes(nbytes))
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype()) == ("A", list(shape), received.triton_dtype())
    assert module.binary_form(tensor) == module.binary_form(received)


@pytest.mark.parametrize("shape", [(4,), (2,), (0,), (3, 2)])
def test_bytes_that_do_not_fit_their_shape_are_refused(shape: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        module.receive_bytes("A", "FP32", shape, bytes(12))


def test_elements_of_bytes_may_hold_anything() -> None:
    elements = [b"a\x00", b"", b"\x00", b"abc\x00def", "é漢".encode(), bytes(range(256))]
    sent = pb_utils.Tensor("A", np.array(elements, dtype=object).reshape(2, 3))
    received, _ = module.receive("A", "BYTES", (2, 3), memoryview(bytearray(module.binary_form(sent))))
    array = received.as_numpy()
    assert (array.dtype, array.shape) == (np.dtype(object), (2, 3))
    assert array.ravel().tolist() == elements
    assert array is received.as_numpy()


def test_text_goes_as_utf8_and_other_objects_as_their_text() -> None:
    tensor = pb_utils.Tensor("A", np.array(["é", 3, None, b"\xff"], dtype=object))
    encoded = module.binary_form(tensor)
    assert pb_utils.deserialize_bytes_tensor(encoded).tolist() == ["é".encode(), b"3", b"None", b"\xff"]


def test_a_lone_surrogate_is_an_error_that_names_the_tensor() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="Tensor 'NAMES'"):
        pb_utils.Tensor("NAMES", np.array(["\ud800"], dtype=object))


def test_an_s_array_is_bytes_and_is_given_back_as_it_was() -> None:
    array = np.array([b"ab", b"c\x00"])
    tensor = pb_utils.Tensor("A", array)
    assert tensor.as_numpy() is array
    assert pb_utils.deserialize_bytes_tensor(module.binary_form(tensor)).tolist() == [b"ab", b"c"]


def test_bytes_are_taken_when_the_tensor_is_made() -> None:
    array = np.array([b"old"], dtype=object)
    tensor = pb_utils.Tensor("A", array)
    array[0] = b"new"
    assert pb_utils.deserialize_bytes_tensor(module.binary_form(tensor)).tolist() == [b"old"]


@pytest.mark.parametrize("elements", [1, 5000])
def test_a_contiguous_array_is_aliased_until_it_is_sent(elements: int) -> None:
    array = np.zeros(elements, np.float32)
    tensor = pb_utils.Tensor("A", array)
    array[:] = 5
    assert bytes(module.binary_form(tensor)) == array.tobytes()


def test_an_array_that_was_resized_is_neither_sent_nor_exported() -> None:
    array = np.zeros(1000, np.float32)
    tensor = pb_utils.Tensor("A", array)
    array.resize(10, refcheck=False)
    for use in (module.binary_form, pb_utils.Tensor.to_dlpack):
        with pytest.raises(pb_utils.TritonModelException, match="the array of tensor 'A' was resized"):
            use(tensor)


@pytest.mark.parametrize("elements", [4, 4000])
def test_an_array_may_be_given_another_shape_in_place(elements: int) -> None:
    array = np.zeros(elements, np.float32)
    tensor = pb_utils.Tensor("A", array)
    array.shape = (2, elements // 2)
    assert tensor.shape() == [elements]
    assert len(module.binary_form(tensor)) == elements * 4


def test_an_array_that_is_not_contiguous_is_copied_in_logical_order() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor = pb_utils.Tensor("A", array.T)
    array[:] = 0
    assert tensor.shape() == [3, 2]
    assert tensor.as_numpy().tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("dtype", ["f4", "?", "f2", object, "S3"])
def test_scalars_and_empty_arrays_keep_their_shapes(dtype: str) -> None:
    assert pb_utils.Tensor("A", np.zeros((), dtype)).shape() == []
    empty = pb_utils.Tensor("A", np.zeros((0, 3), dtype))
    assert (empty.shape(), bytes(module.binary_form(empty))) == ([0, 3], b"")


@pytest.mark.parametrize("datatype", [*sorted(DTYPE), "BYTES"])
def test_received_scalars_and_empty_tensors_have_their_shapes(datatype: str) -> None:
    one = b"\0\0\0\0" if datatype == "BYTES" else bytes(DTYPE[datatype].itemsize)
    scalar, _ = module.receive("A", datatype, (), memoryview(bytearray(one)))
    empty, root = module.receive("A", datatype, (0, 3), memoryview(b""))
    assert (scalar.as_numpy().shape, empty.as_numpy().shape, root) == ((), (0, 3), None)


def test_memory_that_is_not_ours_to_write_is_copied() -> None:
    data = np.zeros(2, np.float32).tobytes()
    tensor, _ = module.receive("A", "FP32", (2,), memoryview(data))
    tensor.as_numpy()[:] = 1
    assert data == bytes(8)


def test_bf16_has_no_array() -> None:
    tensor, root = module.receive("A", "BF16", (1,), memoryview(bytearray(BF16_ONE)))
    text = r"Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack\(\) and from_dlpack\(\) instead."
    with pytest.raises(pb_utils.TritonModelException, match=text):
        tensor.as_numpy()
    assert (bytes(module.binary_form(tensor)), tensor.shape(), root is None) == (BF16_ONE, [1], False)


@pytest.mark.parametrize("array", [[1.0], 1.0, np.float32(1), None, "x"])
def test_what_is_no_array_is_a_type_error(array: object) -> None:
    with pytest.raises(TypeError, match=r"^__init__\(\): incompatible constructor arguments"):
        pb_utils.Tensor("", array)


@pytest.mark.parametrize("dtype", ["U3", "c8", "M8[s]", "g", ">f4", [("a", "f4")]])
def test_what_is_no_datatype_is_refused(dtype: object) -> None:
    with pytest.raises(pb_utils.TritonModelException, match=r"^NumPy dtype is not supported\.$"):
        pb_utils.Tensor("A", np.zeros(1, dtype))


def test_the_name_must_be_text_and_not_empty() -> None:
    array = np.zeros(1, np.float32)
    with pytest.raises(pb_utils.TritonModelException, match=r"^Tensor name cannot be an empty string\.$"):
        pb_utils.Tensor("", array)
    with pytest.raises(TypeError):
        pb_utils.Tensor(None, array)
    with pytest.raises(TypeError):
        pb_utils.Tensor(name="A", numpy_array=array)
    assert pb_utils.Tensor(b"A", array).name() == pb_utils.Tensor(np.str_("A"), array).name() == "A"


def test_a_tensor_has_no_other_attributes() -> None:
    tensor = pb_utils.Tensor("A", np.zeros(1, np.float32))
    with pytest.raises(AttributeError):
        tensor.x = 1
    assert repr(tensor).startswith("<c_python_backend_utils.Tensor object at 0x")
    assert (tensor.is_cpu(), tensor.triton_dtype(), tensor.__dlpack_device__()) == (True, 11, (1, 0))


def test_matrix_and_memmap_are_arrays(tmp_path: object) -> None:
    mapped = np.memmap(f"{tmp_path}/m", np.float32, "w+", shape=(2, 2))
    mapped[:] = 3
    assert bytes(module.binary_form(pb_utils.Tensor("A", mapped))) == np.full(4, 3, np.float32).tobytes()
    assert pb_utils.Tensor("A", np.matrix([[1, 2]])).shape() == [1, 2]


def test_elements_that_end_too_early_are_an_error_that_names_the_tensor() -> None:
    tensor, _ = module.receive("NAMES", "BYTES", (1,), memoryview(bytearray(b"\x05\0\0\0ab")))
    with pytest.raises(pb_utils.TritonModelException, match="Tensor 'NAMES'"):
        tensor.as_numpy()


HANDLE = messages.Handle("a segment", 128, 12)


def received(array: Any, handle: Any = HANDLE, shared: bool = False, borrowed: bool = False) -> Any:
    datatype = "BF16" if array.dtype == np.uint16 else "FP32"
    memory = memoryview(array).cast("B")
    return module.receive("A", datatype, array.shape, memory, handle._replace(nbytes=len(memory)), shared, borrowed)[0]


def test_a_received_tensor_can_be_lent_until_the_model_looks() -> None:
    for look in (lambda tensor: tensor.as_numpy(), lambda tensor: tensor.to_dlpack()):
        tensor = received(np.ones(3, np.float32))
        assert module.lend(tensor).handle == HANDLE
        look(tensor)
        assert module.lend(tensor) is None


def test_what_nobody_else_looks_at_is_not_copied() -> None:
    memory = np.ones(3, np.float32)
    assert np.shares_memory(received(memory).as_numpy(), memory)


@pytest.mark.parametrize("lent", [False, True])
def test_what_others_look_at_is_copied_when_the_model_looks(lent: bool) -> None:
    memory = np.ones(3, np.float32)
    tensor = received(memory, shared=not lent)
    if lent:
        module.lend(tensor)
    array = tensor.as_numpy()
    assert not np.shares_memory(array, memory)
    assert tensor.as_numpy() is array


def test_bf16_that_others_look_at_is_copied_when_the_model_looks() -> None:
    memory = np.ones(3, np.uint16)
    tensor = received(memory, shared=True)
    tensor.to_dlpack()
    assert not np.shares_memory(tensor._data, memory)


LARGE = np.ones(1 << 16, np.float32)


def test_another_model_s_large_output_goes_on_in_a_response_as_it_lies_there() -> None:
    tensor = received(LARGE, borrowed=True)
    assert module.outgoing(tensor).handle.segment == HANDLE.segment
    assert not np.shares_memory(tensor.as_numpy(), LARGE)
    assert isinstance(module.outgoing(tensor), memoryview)


@pytest.mark.parametrize(("array", "borrowed"), [(LARGE, False), (LARGE[:3], True)])
def test_inputs_and_small_outputs_are_copied_into_a_response(array: Any, borrowed: bool) -> None:
    assert bytes(module.outgoing(received(array, borrowed=borrowed))) == array.tobytes()
