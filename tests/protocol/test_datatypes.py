import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import triton_to_np_dtype

from protocol.datatypes import BY_CONFIG_NAME, BY_NAME, ITEMSIZE


def test_names_and_numbers_are_those_of_the_config_enum():
    enum = dict(model_config_pb2.DataType.items())
    assert enum.pop("TYPE_INVALID") == 0
    assert {row.config_name: row.number for row in BY_NAME.values()} == enum


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"BYTES", "BF16"}))
def test_sizes_are_those_of_numpy(name):
    assert ITEMSIZE[name] == np.dtype(triton_to_np_dtype(name)).itemsize


def test_bytes_have_no_size_and_bf16_has_two_bytes():
    assert ITEMSIZE["BYTES"] is None
    assert ITEMSIZE["BF16"] == 2


def test_a_row_is_found_by_either_name():
    assert BY_NAME["BYTES"] is BY_CONFIG_NAME["TYPE_STRING"]
    assert len(BY_NAME) == len(BY_CONFIG_NAME) == 14
