"""JSON as Triton reads and writes it: its error texts, its number format, bare NaN, strings of any bytes.

``parse`` is the careful reader for what the typed decoders refuse: it keeps duplicate members, takes NaN and Infinity
and invalid UTF-8, and names the offset of a syntax error. RapidJSON is also Triton's parser, so the reasons agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import msgspec
import rapidjson

from protocol.errors import InternalError

INT64_MIN, INT64_MAX, UINT64_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
DEEPEST = 200  # nesting that ``parse`` looks into; what lies deeper is read as empty

MISSING: Any = object()  # no such member


class JsonError(InternalError):
    """JSON that cannot be parsed, or a value of the wrong type: Triton calls these internal errors."""


class Members(list[tuple[str, Any]]):
    """An object with its members in order, duplicates included; a look-up finds the first."""

    def get(self, name: str) -> Any:
        for key, value in self:
            if key == name:
                return value
        return MISSING


class _Decoder(rapidjson.Decoder):
    def start_object(self) -> Members:
        return Members()


_DECODER = _Decoder()
_OFFSET = re.compile(r"Parse error at offset (\d+): (.*)", re.DOTALL)
_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]+|[\]}]+', re.DOTALL)


def parse(document: bytes | memoryview) -> Any:
    """str, int, float, bool, None, list or Members. Raises JsonError. Bytes that are not UTF-8 become lone surrogates
    (the "surrogateescape" of str), which JSON cannot hold otherwise."""
    document = bytes(document).removeprefix(b"\xef\xbb\xbf")
    try:
        return _decode(document)
    except RecursionError:
        return _decode(_cut(document))


def _decode(document: bytes) -> Any:
    try:
        return _escaped(document)
    except rapidjson.JSONDecodeError as error:
        found = _OFFSET.match(str(error))
        reason = f"{found[2]} at {found[1]}" if found else str(error)
        # For a control character; Triton does not validate the encoding and has no such reason.
        reason = reason.replace("Invalid encoding in string.", "Invalid escape character in string.")
        raise JsonError(f"failed to parse the request JSON buffer: {reason}") from None
    except ValueError:  # Python reads no integer of more than 4300 digits
        raise JsonError("failed to parse the request JSON buffer: Number too big to be stored in double.") from None


# RapidJSON for Python wants valid UTF-8. Bytes that are none travel through it as characters nobody is assigned.
_PARKED = {0xDC00 + byte: 0x10FF00 + byte for byte in range(0x80, 0x100)}
_UNPARKED = {parked: escaped for escaped, parked in _PARKED.items()}


def _escaped(document: bytes) -> Any:
    try:
        return _DECODER(document.decode())
    except UnicodeDecodeError:
        return _unparked(_DECODER(document.decode("utf-8", "surrogateescape").translate(_PARKED)))


def _unparked(value: Any) -> Any:
    if isinstance(value, str):
        return value.translate(_UNPARKED)
    if isinstance(value, Members):
        return Members((_unparked(key), _unparked(item)) for key, item in value)
    if isinstance(value, list):
        return [_unparked(item) for item in value]
    return value


def _cut(document: bytes) -> bytes:
    """The document without what is nested deeper than DEEPEST: the decoder recurses and would give up."""
    kept: list[bytes] = []
    depth = start = 0
    for found in _BRACKETS.finditer(document):
        first, length = document[found.start()], found.end() - found.start()
        if first in b"[{":
            if depth < DEEPEST <= depth + length:
                kept.append(document[start : found.start() + DEEPEST - depth])
            depth += length
        elif first in b"]}":
            if depth >= DEEPEST > depth - length:
                start = found.end() - (DEEPEST - (depth - length))
            depth -= length
    if depth < DEEPEST:
        kept.append(document[start:])
    return b"".join(kept)


# --- access -----------------------------------------------------------------------------------------------------


def member(value: Any, name: str) -> Any:
    found = value.get(name) if isinstance(value, Members) else MISSING
    if found is MISSING:
        raise JsonError(f"attempt to access non-existing object member '{name}'")
    return found


def find(value: Any, name: str) -> Any:
    """The member or MISSING; anything but an object has no members."""
    return value.get(name) if isinstance(value, Members) else MISSING


def as_string(value: Any) -> str:
    """Text that can be encoded; bytes that were no UTF-8 become U+FFFD."""
    if not isinstance(value, str):
        raise JsonError("attempt to access JSON non-string as string")
    return as_bytes(value).decode("utf-8", "replace")


def as_bytes(value: Any) -> bytes:
    """A string exactly as it stood in the document."""
    if not isinstance(value, str):
        raise JsonError("attempt to access JSON non-string as string")
    return value.encode("utf-8", "surrogateescape")


def as_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise JsonError("attempt to access JSON non-boolean as boolean")
    return value


def as_int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not INT64_MIN <= value <= INT64_MAX:
        raise JsonError("attempt to access JSON non-signed-integer as signed-integer")
    return value


def as_uint(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= UINT64_MAX:
        raise JsonError("attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def as_double(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise JsonError("attempt to access JSON non-number as double")
    return float(value)


def as_array(value: Any) -> list[Any]:
    if not isinstance(value, list) or isinstance(value, Members):
        raise JsonError("attempt to access JSON non-array as array")
    return value


# --- writing ----------------------------------------------------------------------------------------------------

encode = msgspec.json.encode  # for values without floats and without strings of unknown origin

_SHORT = {0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0C: b"\\f", 0x0D: b"\\r", 0x22: b'\\"', 0x5C: b"\\\\"}
_ESCAPES = {bytes((code,)): _SHORT.get(code) or b"\\u%04X" % code for code in (*range(0x20), 0x22, 0x5C)}
_TO_ESCAPE = re.compile(rb'[\x00-\x1f"\\]')


def string(text: str | bytes | memoryview) -> bytes:
    """A JSON string; bytes go out as they are, UTF-8 or not."""
    if isinstance(text, str) and text.isidentifier():  # nothing in it is to be escaped
        return b'"%b"' % text.encode()
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)
    return b'"' + _TO_ESCAPE.sub(lambda found: _ESCAPES[found[0]], data) + b'"'


# The encoder prints 16 and more integer digits, and 1e-6, with an exponent; RapidJSON begins at 22 and at 1e-7.
_LATE_EXPONENT = re.compile(rb"(\d)(?:\.(\d+))?e(-6|1[6-9]|20)(?=[,\]])")


def doubles(values: list[float]) -> bytes:
    """A JSON array: shortest digits that read back the same; NaN, Infinity, -Infinity bare."""
    text = encode(values)
    if b"e" in text:
        text = _LATE_EXPONENT.sub(_without_exponent, text)
    if b"null" in text:  # the encoder's word for all three
        texts = text[1:-1].split(b",")
        text = b"[" + b",".join(map(_with_infinity, values, texts)) + b"]"
    return text


def _without_exponent(found: re.Match[bytes]) -> bytes:
    digits = found[1] + (found[2] or b"")
    exponent = int(found[3])
    if exponent < 0:
        return b"0." + b"0" * (-exponent - 1) + digits
    return digits.ljust(exponent + 1, b"0") + b".0"


def _with_infinity(value: float, text: bytes) -> bytes:
    if math.isfinite(value):
        return text
    return b"NaN" if math.isnan(value) else b"Infinity" if value > 0 else b"-Infinity"


def scalar(value: bool | int | float | str) -> bytes:
    """A parameter's value."""
    if isinstance(value, str):
        return string(value)
    if isinstance(value, float):
        return doubles([value])[1:-1]
    return encode(value)


def members(items: Iterable[tuple[str, bytes]]) -> bytes:
    """An object of ready-made values."""
    return b"{" + b",".join([string(name) + b":" + value for name, value in items]) + b"}"
