import numpy as np
import pytest

from protocol.errors import InvalidArgument, ServingError
from protocol.signature import Signature, TensorSpec
from tensorbus.request_files import read, zeros

INPUTS = (
    TensorSpec("A", "FP32", (-1, 3)),
    TensorSpec("S", "BYTES", (2,)),
    TensorSpec("X", "INT8", (1,), optional=True),
)
SIGNATURE = Signature("m", 1, "python", 8, False, INPUTS, (), "{}", b"")
REQUEST = '{"id": "%s", "inputs": [{"name": "A", "datatype": "FP32", "shape": [1, 1, 3], "data": [1, 2, 3]}]}'


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "requests.json"
        path.write_text(text)
        return str(path)

    return write


def test_a_file_holds_one_request_or_a_list(file):
    assert [call.request_id for call in read(file(REQUEST % "one"), SIGNATURE)] == ["one"]
    two = f" [ {REQUEST % 'one'} , {REQUEST % 'two'} ] "
    assert [call.request_id for call in read(file(two), SIGNATURE)] == ["one", "two"]


def test_a_request_is_read_as_the_server_reads_it(file):
    (call,) = read(file(REQUEST % "x"), SIGNATURE)
    (tensor,) = call.inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("A", "FP32", [1, 1, 3])
    assert np.frombuffer(tensor.data, np.float32).tolist() == [1, 2, 3]


@pytest.mark.parametrize("text", ["", "[", "{", "[1]", '{"inputs": 3}', "[{}, nothing]"])
def test_what_is_no_request_is_refused(file, text):
    with pytest.raises(ServingError):
        read(file(text), SIGNATURE)


def test_a_file_of_arrays_is_one_request(tmp_path):
    np.savez(tmp_path / "a.npz", A=np.zeros((1, 2, 3), np.float32))
    (call,) = read(str(tmp_path / "a.npz"), SIGNATURE)
    assert [(tensor.name, tensor.shape) for tensor in call.inputs] == [("A", [1, 2, 3])]
    (tmp_path / "b.npz").write_bytes(b"none")
    with pytest.raises(InvalidArgument):
        read(str(tmp_path / "b.npz"), SIGNATURE)


def test_what_must_be_there_can_be_made_up():
    numbers, strings = zeros(SIGNATURE).inputs
    assert (numbers.name, numbers.shape, bytes(numbers.data)) == ("A", [1, 1, 3], bytes(12))
    assert (strings.name, strings.shape, bytes(strings.data)) == ("S", [1, 2], bytes(8))
