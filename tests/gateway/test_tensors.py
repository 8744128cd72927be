from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tensors import elements, numbers, prefixed
from protocol.errors import InvalidArgument


@given(st.lists(st.binary()))
def test_elements_of_a_bytes_tensor_come_back(items: list[bytes]) -> None:
    assert [bytes(item) for item in elements(memoryview(prefixed(items)))] == items


@pytest.mark.parametrize("data", [b"\1", b"\2\0\0\0x"])
def test_elements_that_do_not_add_up_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        list(elements(data))


def test_numbers_are_pythons() -> None:
    assert numbers("INT16", struct.pack("<2h", -1, 300)) == [-1, 300]
    assert numbers("BOOL", b"\1\0") == [True, False]
    assert numbers("FP32", b"") == []


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "BYTES"])
def test_some_types_have_no_numbers(datatype: str) -> None:
    assert numbers(datatype, b"") is None
