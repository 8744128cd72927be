from __future__ import annotations

import struct

import pytest

from gateway.classification import top_classes
from gateway.tensors import elements
from protocol.errors import InvalidArgument

# What Triton 2.51 makes of the same tensors.


def test_the_largest_come_first_and_equal_ones_in_their_order() -> None:
    data = struct.pack("<6f", 1.5, 2.5, 2.5, -3e20, 1e-9, 123456.789)
    top, packed = top_classes("FP32", data, 1, 9, ("cat", "", "dog: big", ' caf\u00e9 "q"\r'))
    assert top == 6
    assert list(elements(packed)) == [
        b"123456.789062:5",
        b"2.500000:1",
        b"2.500000:2:dog: big",
        b"1.500000:0:cat",
        b"0.000000:4",
        b'-300000006012263202816.000000:3: caf\xc3\xa9 "q"\r',
    ]


def test_the_largest_are_sought_in_each_row() -> None:
    top, packed = top_classes("INT32", struct.pack("<6i", 1, 2, 3, -6, 5, 4), 2, 2, ())
    assert top == 2
    assert list(elements(packed)) == [b"3:2", b"2:1", b"5:1", b"4:2"]


def test_numbers_beyond_64_signed_bits_keep_their_digits() -> None:
    assert list(elements(top_classes("UINT64", struct.pack("<2Q", 3, 2**64 - 1), 1, 1, ())[1])) == [
        b"18446744073709551615:1"
    ]


def test_of_nothing_nothing_is_largest() -> None:
    for rows in (0, 1, 2):
        assert top_classes("FP32", b"", rows, 3, ("cat",)) == (0, b"")


@pytest.mark.parametrize("datatype", ["BOOL", "FP16", "BF16", "BYTES"])
def test_some_types_have_no_classes(datatype: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        top_classes(datatype, b"", 1, 1, ())
    assert str(caught.value) == f"class result not available for output due to unsupported type '{datatype}'"


@pytest.mark.parametrize(("rows", "width"), [(1, 1_000_001), (8, 600_000)])
def test_an_output_of_very_many_elements_is_not_looked_through(rows: int, width: int) -> None:
    with pytest.raises(InvalidArgument, match="classification output tensor too large"):
        top_classes("UINT8", bytes(rows * width), rows, 1, ())


def test_a_million_elements_are_looked_through() -> None:
    assert top_classes("UINT8", bytes(1_000_000), 1, 1, ())[0] == 1
