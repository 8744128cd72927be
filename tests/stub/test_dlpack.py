from __future__ import annotations

import sys
import weakref
from typing import Any, Callable, Tuple

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from _tensorbus_app.stub import gpu
from _tensorbus_app.stub import tensor as module
from _tensorbus_app.stub.numpy_types import DTYPE


class Producer:
    """A foreign tensor: another library's object with the two methods."""

    def __init__(self, array: Any, device: Tuple[int, int] = (1, 0)) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, stream: object = None) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self._device


def bf16(*bits: int) -> Any:
    data = memoryview(bytearray(np.array(bits, np.uint16).tobytes()))
    return module.receive("A", "BF16", (len(bits),), data)[0]


@pytest.mark.parametrize("datatype", sorted(DTYPE))
def test_each_numeric_datatype_goes_out_and_in_without_a_copy(datatype: str) -> None:
    array = np.arange(6).astype(DTYPE[datatype]).reshape(2, 3)
    tensor = pb_utils.Tensor.from_dlpack("B", pb_utils.Tensor("A", array).to_dlpack())
    assert (tensor.name(), tensor._datatype, tensor.shape()) == ("B", datatype, [2, 3])
    assert np.shares_memory(tensor.as_numpy(), array)
    if datatype != "BOOL":  # NumPy before 1.25 takes none from others
        assert np.from_dlpack(tensor).dtype == array.dtype


def test_bf16_goes_out_and_in_by_its_bits() -> None:
    tensor = pb_utils.Tensor.from_dlpack("B", bf16(0x3F80, 0xBF80).to_dlpack())
    assert (tensor._datatype, tensor.shape(), tensor.triton_dtype()) == ("BF16", [2], 14)
    assert bytes(module.binary_form(tensor)) == np.array([0x3F80, 0xBF80], np.uint16).tobytes()
    assert pb_utils.Tensor.from_dlpack("C", tensor)._datatype == "BF16"


def test_a_capsule_keeps_the_tensor_alive_by_one_reference() -> None:
    tensor = pb_utils.Tensor("A", np.zeros(3, np.float32))
    before = sys.getrefcount(tensor)
    capsule = tensor.to_dlpack()
    assert sys.getrefcount(tensor) == before + 1
    consumer = pb_utils.Tensor.from_dlpack("B", capsule)
    del capsule
    assert sys.getrefcount(tensor) == before + 1
    del consumer
    assert sys.getrefcount(tensor) == before


def test_a_capsule_can_be_consumed_once() -> None:
    capsule = pb_utils.Tensor("A", np.zeros(3, np.float32)).to_dlpack()
    pb_utils.Tensor.from_dlpack("B", capsule)
    with pytest.raises(pb_utils.TritonModelException, match="Provided tensor is not supported"):
        pb_utils.Tensor.from_dlpack("C", capsule)


@pytest.mark.parametrize("writable", [True, False])
def test_a_consumer_of_dlpack_1_is_told_whether_it_may_write(writable: bool) -> None:
    array = np.arange(3, dtype=np.float32)
    array.flags.writeable = writable
    tensor = pb_utils.Tensor("A", array)
    assert np.from_dlpack(tensor).tolist() == [0, 1, 2]
    capsule = tensor.__dlpack__(max_version=(1, 1))
    if "dltensor_versioned" in repr(capsule):  # NumPy before 2.1 makes none
        assert pb_utils.Tensor.from_dlpack("B", capsule).as_numpy().flags.writeable is writable


def test_older_consumers_get_a_capsule_of_before_dlpack_1() -> None:
    array = np.arange(3, dtype=np.float32)
    array.flags.writeable = False
    tensor = pb_utils.Tensor("A", array)
    for capsule in (tensor.to_dlpack(), tensor.__dlpack__(), tensor.__dlpack__(max_version=(0, 8))):
        assert '"dltensor"' in repr(capsule)
        assert pb_utils.Tensor.from_dlpack("B", capsule).as_numpy().flags.writeable


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_a_copy_is_made_for_whoever_asks_for_one(max_version: Any) -> None:
    tensor = pb_utils.Tensor("A", np.arange(3, dtype=np.float32))
    before = sys.getrefcount(tensor)
    copied = pb_utils.Tensor.from_dlpack("B", tensor.__dlpack__(max_version=max_version, copy=True))
    assert not np.shares_memory(copied.as_numpy(), tensor.as_numpy())
    assert (copied.as_numpy().tolist(), sys.getrefcount(tensor)) == ([0, 1, 2], before)


def test_the_memory_is_on_the_host_and_nowhere_else() -> None:
    tensor = pb_utils.Tensor("A", np.arange(3, dtype=np.float32))
    assert tensor.__dlpack_device__() == (1, 0)
    tensor.__dlpack__(dl_device=(1, 0), stream=7)
    with pytest.raises(BufferError, match=r"^tensor 'A' is not on DLPack device \(2, 0\)$"):
        tensor.__dlpack__(dl_device=(2, 0))


def test_the_memory_goes_back_to_its_producer_with_the_last_user() -> None:
    array = np.arange(3, dtype=np.float32)
    reference = weakref.ref(array)
    tensor = pb_utils.Tensor.from_dlpack("A", Producer(array))
    view = tensor.as_numpy()[1:]
    del array, tensor
    assert reference() is not None and view.tolist() == [1, 2]
    del view
    assert reference() is None


def test_a_refused_capsule_is_not_used_up() -> None:
    capsule = np.zeros(3, np.complex64).__dlpack__()
    for _ in range(2):
        with pytest.raises(pb_utils.TritonModelException, match="Dtype is invalid"):
            pb_utils.Tensor.from_dlpack("A", capsule)


def test_numpy_arrays_and_foreign_objects_are_accepted() -> None:
    array = np.arange(3, dtype=np.int16)
    assert np.shares_memory(pb_utils.Tensor.from_dlpack("A", array).as_numpy(), array)
    assert np.shares_memory(pb_utils.Tensor.from_dlpack("A", Producer(array)).as_numpy(), array)


def test_scalars_and_empty_arrays_keep_their_shapes() -> None:
    for shape in ((), (0, 3)):
        tensor = pb_utils.Tensor.from_dlpack("A", Producer(np.zeros(shape, np.float32)))
        assert tensor.shape() == list(shape)


@pytest.mark.parametrize("wrap", [lambda array: array, Producer])
@pytest.mark.parametrize("array", [np.zeros(8, np.float32)[::2], np.zeros((2, 3), np.float32).T])
def test_strided_memory_is_refused(array: Any, wrap: Any) -> None:
    text = "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
    with pytest.raises(pb_utils.TritonModelException) as caught:
        pb_utils.Tensor.from_dlpack("A", wrap(array))
    assert str(caught.value) == text


@pytest.mark.parametrize("thing", [None, 3, [1.0], object()])
def test_other_objects_are_refused(thing: object) -> None:
    with pytest.raises(pb_utils.TritonModelException) as caught:
        pb_utils.Tensor.from_dlpack("A", thing)
    assert str(caught.value) == (
        "Provided tensor is not supported. Tensor must be a DLPack capsule "
        "        or have `__dlpack__` and `__dlpack_device__` attributes"
    )


def test_the_name_is_looked_at_first() -> None:
    with pytest.raises(pb_utils.TritonModelException, match=r"^Tensor name cannot be an empty string\.$"):
        pb_utils.Tensor.from_dlpack("", None)


def test_complex_numbers_and_devices_without_host_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "missing", lambda: "there is none")
    array = np.zeros(1, np.float32)
    with pytest.raises(pb_utils.TritonModelException, match="Dtype is invalid"):
        pb_utils.Tensor.from_dlpack("A", Producer(np.zeros(1, np.complex64)))
    with pytest.raises(
        pb_utils.TritonModelException, match=r"^DLPack capsule passed pointer to memory allocated on GPU"
    ):
        pb_utils.Tensor.from_dlpack("A", Producer(array, (2, 0)))
    with pytest.raises(pb_utils.TritonModelException, match=r"^DLDevice type 8 is not support by Python backend"):
        pb_utils.Tensor.from_dlpack("A", Producer(array, (8, 0)))


def test_strings_have_no_dlpack_form() -> None:
    tensor = pb_utils.Tensor("A", np.array([b"x"], dtype=object))
    with pytest.raises(pb_utils.TritonModelException, match="DLPack does not have support for string tensors"):
        tensor.to_dlpack()


def test_a_response_of_foreign_memory_can_be_sent_again_and_again(load: Callable[..., Any]) -> None:
    loaded = load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                tensor = pb_utils.get_input_tensor_by_name(requests[0], "IN")
                response = pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", tensor.to_dlpack())])
                for _ in range(3):
                    sender.send(response)
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        """,
        model_transaction_policy={"decoupled": True},
    )
    *responses, last = loaded.execute(loaded.request({"IN": np.arange(3, dtype=np.float32)})).responses
    assert [loaded.outputs(response)[0].array.tolist() for response in responses] == [[0, 1, 2]] * 3
    assert last.final
