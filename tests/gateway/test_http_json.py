from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import http_json
from gateway.http_json import JsonError, Members, parse


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b" ", "The document is empty. at 1"),
        (b'{"a":1,}', "Missing a name for object member. at 7"),
        (b"{} x", "The document root must not be followed by other values. at 3"),
        (b'{"a":1', "Missing a comma or '}' after an object member. at 6"),
        (b"[1,2", "Missing a comma or ']' after an array element. at 4"),
        (b'{"a":1e400}', "Number too big to be stored in double. at 5"),
        (b"nope", "Invalid value. at 1"),
        (b'{"a":"\\ud800"}', "The surrogate pair in string is invalid. at 6"),
    ],
)
def test_a_syntax_error_names_reason_and_offset(document: bytes, reason: str) -> None:
    with pytest.raises(JsonError) as caught:
        parse(document)
    assert str(caught.value) == "failed to parse the request JSON buffer: " + reason


def test_duplicate_members_are_kept_and_the_first_is_found() -> None:
    document = parse(b'{"a":1,"b":2,"a":3}')
    assert document == [("a", 1), ("b", 2), ("a", 3)]
    assert document.get("a") == 1


def test_nan_and_infinity_are_numbers() -> None:
    assert parse(b"[Inf,-Infinity,Infinity]") == [math.inf, -math.inf, math.inf]
    assert math.isnan(parse(b"[NaN]")[0])


def test_bytes_that_are_not_utf8_come_through_unchanged() -> None:
    document = parse(b'{"\xfe":["\xff\xc3\xa9\\u00e9"],"n":[1]}')
    assert http_json.as_bytes(document[0][0]) == b"\xfe"
    assert http_json.as_bytes(document[0][1][0]) == b"\xff\xc3\xa9\xc3\xa9"
    assert http_json.as_string(document[0][1][0]) == "\ufffd\u00e9\u00e9"


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse(b"\xef\xbb\xbf{}") == Members()


@pytest.mark.parametrize("deep", [b"[" * 250_000 + b"]" * 250_000, b'{"a":' * 250_000 + b"1" + b"}" * 250_000])
def test_any_depth_is_read_but_cut(deep: bytes) -> None:
    value, depth = parse(b'{"x":' + deep + b',"y":"[[[\\"[["}'), 0
    assert value.get("y") == '[[["[['
    value = value.get("x")
    while value:
        value, depth = (value[0][1] if isinstance(value, Members) else value[0]), depth + 1
    assert 150 < depth < 250


def test_unclosed_depth_is_a_syntax_error() -> None:
    with pytest.raises(JsonError):
        parse(b"[" * 250_000)


@pytest.mark.parametrize(
    ("read", "bad", "text"),
    [
        (http_json.as_string, 1, "attempt to access JSON non-string as string"),
        (http_json.as_bool, 1, "attempt to access JSON non-boolean as boolean"),
        (http_json.as_int, 1.0, "attempt to access JSON non-signed-integer as signed-integer"),
        (http_json.as_int, 1 << 63, "attempt to access JSON non-signed-integer as signed-integer"),
        (http_json.as_uint, -1, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (http_json.as_uint, True, "attempt to access JSON non-unsigned-integer as unsigned-integer"),
        (http_json.as_double, "1", "attempt to access JSON non-number as double"),
        (http_json.as_array, Members(), "attempt to access JSON non-array as array"),
    ],
)
def test_a_wrong_type_is_named(read: Any, bad: Any, text: str) -> None:
    with pytest.raises(JsonError) as caught:
        read(bad)
    assert str(caught.value) == text


def test_a_missing_member_is_named() -> None:
    with pytest.raises(JsonError, match="attempt to access non-existing object member 'inputs'"):
        http_json.member([1], "inputs")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0, b"2.0"),
        (0.1, b"0.1"),
        (struct.unpack("f", struct.pack("f", 0.1))[0], b"0.10000000149011612"),
        (1e-5, b"0.00001"),
        (1e-6, b"0.000001"),
        (1.5e-6, b"0.0000015"),
        (1e-7, b"1e-7"),
        (1.0000000116860974e-7, b"1.0000000116860974e-7"),
        (1e16, b"10000000000000000.0"),
        (1.2345678901234568e17, b"123456789012345680.0"),
        (1e20, b"100000000000000000000.0"),
        (1e21, b"1e21"),
        (1.7976931348623157e308, b"1.7976931348623157e308"),
        (5e-324, b"5e-324"),
        (-0.0, b"-0.0"),
        (math.inf, b"Infinity"),
        (-math.inf, b"-Infinity"),
        (math.nan, b"NaN"),
    ],
)
def test_doubles_look_like_tritons(value: float, text: bytes) -> None:
    assert http_json.doubles([1.5, value, 2.5]) == b"[1.5," + text + b",2.5]"


@given(st.lists(st.floats(allow_nan=False)))
def test_doubles_read_back_the_same(values: list[float]) -> None:
    assert json.loads(http_json.doubles(values)) == values


@given(st.text())
def test_strings_read_back_the_same(text: str) -> None:
    assert json.loads(http_json.string(text)) == text


def test_strings_are_escaped_as_tritons_and_keep_their_bytes() -> None:
    assert http_json.string('"\\/\b\f\n\r\t\x01\x1f\x7f') == b'"\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001F\x7f"'
    assert http_json.string(b"\xff\0") == b'"\xff\\u0000"'
