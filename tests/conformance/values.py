"""Sample tensors of every datatype, in JSON and in binary form."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from tests.conformance.requests import length_prefixed


class Sample(NamedTuple):
    """``json`` is None where a datatype has no JSON form; ``field`` is its gRPC contents field ("" = raw only)."""

    datatype: str
    json: list[Any] | None
    binary: bytes
    field: str

    @property
    def length(self) -> int:
        return 4

    @property
    def input_name(self) -> str:
        return f"IN_{self.datatype}"

    @property
    def output_name(self) -> str:
        return f"OUT_{self.datatype}"


def _packed(code: str, values: list[Any]) -> bytes:
    return struct.pack(f"<{len(values)}{code}", *values)


def _sample(datatype: str, code: str, field: str, values: list[Any]) -> Sample:
    return Sample(datatype, values, _packed(code, values), field)


_TEXTS = ["plain", "", "grüße \u2603", 'quote " backslash \\ tab \t']
_HALVES = [0.5, -2.0, 65504.0, 0.0]

SAMPLES = (
    _sample("BOOL", "?", "bool_contents", [True, False, False, True]),
    _sample("UINT8", "B", "uint_contents", [0, 1, 128, 255]),
    _sample("UINT16", "H", "uint_contents", [0, 1, 32768, 65535]),
    _sample("UINT32", "I", "uint_contents", [0, 1, 2**31, 2**32 - 1]),
    _sample("UINT64", "Q", "uint64_contents", [0, 1, 2**63, 2**64 - 1]),
    _sample("INT8", "b", "int_contents", [0, -1, -128, 127]),
    _sample("INT16", "h", "int_contents", [0, -1, -(2**15), 2**15 - 1]),
    _sample("INT32", "i", "int_contents", [0, -1, -(2**31), 2**31 - 1]),
    _sample("INT64", "q", "int64_contents", [0, -1, -(2**63), 2**63 - 1]),
    Sample("FP16", None, _packed("e", _HALVES), ""),
    _sample("FP32", "f", "fp32_contents", [0.5, -2.0, 1e-7, 30000001024.0]),
    _sample("FP64", "d", "fp64_contents", [0.1, -2.0, 1e308, 5e-324]),
    Sample("BYTES", _TEXTS, length_prefixed(*(text.encode() for text in _TEXTS)), "bytes_contents"),
    Sample("BF16", None, b"".join(_packed("f", [value])[2:] for value in (0.5, -2.0, 3.0, 0.0)), ""),
)


def as_contents(sample: Sample) -> list[Any]:
    """The values of a gRPC contents field."""
    values = sample.json or []
    return [value.encode() for value in values] if sample.datatype == "BYTES" else values
