from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest

from gateway import http_json
from gateway.http_json import JsonError
from gateway.http_tensors import ODD, from_json, from_values, to_json
from gateway.tensors import prefixed
from protocol.errors import InvalidArgument

FORMATS = {
    "UINT8": "B",
    "INT16": "h",
    "UINT32": "I",
    "INT64": "q",
    "UINT64": "Q",
    "FP32": "f",
    "FP64": "d",
    "BOOL": "?",
}


def read(datatype: str, count: int, text: str | bytes) -> bytes:
    """As the header does: by type, and with care for what that refuses."""
    data = text.encode() if isinstance(text, str) else text
    try:
        return from_json(datatype, count, msgspec.Raw(data))
    except ODD:
        return from_values(datatype, count, http_json.parse(data))


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("UINT8", [0, 255]),
        ("INT16", [-32768, 32767]),
        ("UINT32", [4294967295]),
        ("INT64", [-(1 << 63), (1 << 63) - 1]),
        ("UINT64", [(1 << 64) - 1]),
        ("FP32", [1, 2.5, -1e-7]),
        ("FP64", [1, 2.5, 1e308]),
        ("BOOL", [True, False]),
    ],
)
def test_numbers_become_their_binary_form(datatype: str, values: list[Any]) -> None:
    packed = struct.pack(f"<{len(values)}{FORMATS[datatype]}", *values)
    assert read(datatype, len(values), json.dumps(values)) == packed
    assert read(datatype, len(values), json.dumps([[[value]] for value in values])) == packed


@pytest.mark.parametrize(
    ("datatype", "text", "values"),
    [
        ("INT8", "[300,-300]", (44, -44)),
        ("UINT8", "[300]", (44,)),
        ("UINT16", "[18446744073709551615]", (65535,)),
    ],
)
def test_integers_out_of_range_wrap(datatype: str, text: str, values: tuple[int, ...]) -> None:
    code = {"INT8": "b", "UINT8": "B", "UINT16": "H"}[datatype]
    assert struct.unpack(f"<{len(values)}{code}", read(datatype, len(values), text)) == values


def test_floats_may_be_nan_or_infinite_or_too_large() -> None:
    values = struct.unpack("<4f", read("FP32", 4, "[NaN,-Infinity,1e300,Inf]"))
    assert str(values) == "(nan, -inf, inf, inf)"


def test_ragged_nesting_is_flattened_row_by_row() -> None:
    assert read("UINT8", 4, "[[1,[2]],3,[[4]]]") == b"\1\2\3\4"


def test_strings_are_length_prefixed_and_may_hold_any_byte() -> None:
    assert read("BYTES", 2, '["a\\u0000",""]') == b"\2\0\0\0a\0\0\0\0\0"
    assert read("BYTES", 1, b'[["\xff"]]') == b"\1\0\0\0\xff"


@pytest.mark.parametrize(
    ("datatype", "count", "text", "error"),
    [
        ("FP32", 2, "[1]", "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        ("FP32", 2, "[1,2,3]", "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        ("FP32", 0, "[1]", "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        ("FP32", 1, '["1"]', "Unable to parse 'data': attempt to access JSON non-number as double"),
        ("FP32", 1, "[true]", "Unable to parse 'data': attempt to access JSON non-number as double"),
        ("FP32", 1, "3", "Unable to parse 'data': attempt to access JSON non-array as array"),
        ("BYTES", 1, '"x"', "Unable to parse 'data': attempt to access JSON non-array as array"),
        ("INT8", 1, "[1.0]", "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        ("UINT8", 1, "[-1]", "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ("BOOL", 1, "[1]", "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
        ("BYTES", 1, "[1]", "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ("FP32", 1, '[{"a":1}]', "Unable to parse 'data': attempt to access JSON non-number as double"),
    ],
)
def test_wrong_data_is_an_internal_error_in_tritons_words(datatype: str, count: int, text: str, error: str) -> None:
    with pytest.raises(JsonError) as caught:
        read(datatype, count, text)
    assert str(caught.value) == error


def test_nesting_has_a_limit() -> None:
    assert read("FP32", 0, "[" * 100 + "]" * 100) == b""
    with pytest.raises(InvalidArgument, match=r"JSON nesting depth exceeds maximum allowed limit \(100\)"):
        read("FP32", 0, "[" * 101 + "]" * 101)


def test_fp32_is_printed_as_the_double_it_widens_to() -> None:
    assert to_json("FP32", struct.pack("<3f", 0.1, 2, float("nan"))) == b"[0.10000000149011612,2.0,NaN]"


def test_other_types_are_printed() -> None:
    assert to_json("INT64", struct.pack("<2q", -1, (1 << 63) - 1)) == b"[-1,9223372036854775807]"
    assert to_json("UINT64", struct.pack("<Q", (1 << 64) - 1)) == b"[18446744073709551615]"
    assert to_json("BOOL", b"\0\1\2") == b"[false,true,true]"
    assert to_json("BYTES", prefixed([b"a", b"", b'\xff"'])) == b'["a","","\xff\\""]'
    assert to_json("FP64", b"") == b"[]"


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_has_no_json(datatype: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        to_json(datatype, b"\0\0")
    assert str(caught.value) == (
        f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
    )
