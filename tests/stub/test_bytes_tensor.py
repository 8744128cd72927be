from __future__ import annotations

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils


def test_elements_are_length_prefixed_in_c_order() -> None:
    array = np.array([[b"a", "é"], [3, b""]], dtype=object).T
    flat = pb_utils.serialize_byte_tensor(array)
    assert flat == b"\1\0\0\0a" + b"\1\0\0\0003" + b"\2\0\0\0" + "é".encode() + b"\0\0\0\0"
    assert pb_utils.deserialize_bytes_tensor(flat).tolist() == [b"a", b"3", "é".encode(), b""]


def test_an_s_array_is_serialized_too() -> None:
    assert pb_utils.serialize_byte_tensor(np.array([b"ab"])) == b"\2\0\0\0ab"


def test_no_elements_give_a_tuple_and_numbers_give_nothing() -> None:
    assert pb_utils.serialize_byte_tensor(np.zeros(0, object)) == ()
    assert pb_utils.serialize_byte_tensor(np.zeros(2)) is None
    assert pb_utils.deserialize_bytes_tensor(b"").shape == (0,)


@pytest.mark.parametrize("encoded", [b"\1", b"\2\0\0\0a", b"\1\0\0\0ab"])
def test_a_cut_form_is_an_error(encoded: bytes) -> None:
    with pytest.raises(ValueError):
        pb_utils.deserialize_bytes_tensor(encoded)
