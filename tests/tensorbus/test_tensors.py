import numpy as np
import pytest

from gateway.calls import OutputTensor
from protocol.errors import InvalidArgument
from tensorbus.tensors import input_tensor, output_array, read_npz


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(12, dtype=np.int64).reshape(3, 4).T[::2],
        np.array([True, False]),
        np.array(3, np.uint8),
        np.zeros((0, 5), np.float16),
    ],
)
def test_an_array_goes_there_and_back(array):
    tensor = input_tensor("IN", array)
    assert tensor.shape == list(array.shape)
    back = output_array(OutputTensor("OUT", tensor.datatype, tuple(tensor.shape), bytes(tensor.data)))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    assert back.flags.writeable


@pytest.mark.parametrize("array", [np.array(["é", b"x"], object), np.array(["é", "x"]), np.array(["é".encode(), b"x"])])
def test_arrays_of_text_and_of_bytes_are_bytes(array):
    tensor = input_tensor("IN", array)
    assert tensor.datatype == "BYTES"
    back = output_array(OutputTensor("OUT", "BYTES", (2,), bytes(tensor.data)))
    assert back.tolist() == ["é".encode(), b"x"]


def test_what_no_datatype_stands_for_is_refused():
    with pytest.raises(InvalidArgument, match="input 'IN' has dtype complex64"):
        input_tensor("IN", np.zeros(1, np.complex64))


def test_a_file_of_arrays_is_read_by_their_names_and_never_as_code(tmp_path):
    np.savez(tmp_path / "arrays.npz", A=np.zeros(2, np.int8), B=np.array(["b"]))
    assert [(tensor.name, tensor.datatype) for tensor in read_npz(str(tmp_path / "arrays.npz"))] == [
        ("A", "INT8"),
        ("B", "BYTES"),
    ]
    np.savez(tmp_path / "objects.npz", A=np.array([object()]))
    with pytest.raises(ValueError, match="allow_pickle"):
        read_npz(str(tmp_path / "objects.npz"))
