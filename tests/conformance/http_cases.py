"""Inference over HTTP that succeeds: every datatype, every form of request and of response."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

from tests.conformance.requests import (
    JSON_LENGTH,
    Case,
    case,
    http,
    infer,
    infer_binary,
    infer_path,
    infer_raw,
    infer_text,
    length_prefixed,
    output,
    tensor,
)
from tests.conformance.values import SAMPLES, Sample


def datatype_cases(sample: Sample) -> list[Case]:
    """One tensor of a datatype in each combination of JSON and binary."""
    name, kind, shape = sample.input_name, sample.datatype, [sample.length]
    wanted = [output(sample.output_name, binary_data=True)]
    binary = tensor(name, kind, shape, binary_data_size=len(sample.binary))
    zero = tensor(name, kind, [0], binary_data_size=0)
    cases = [
        case(f"http binary {kind}", infer_binary("echo", [binary], sample.binary, wanted)),
        case(f"http binary in, JSON out, {kind}", infer_binary("echo", [binary], sample.binary)),
        case(f"http binary {kind} of zero elements", infer_binary("echo", [zero], b"", wanted)),
        case(f"http JSON {kind} of zero elements", infer("echo", [tensor(name, kind, [0], [])])),
    ]
    if sample.json is None:
        return [*cases, case(f"http JSON {kind} is refused", infer("echo", [tensor(name, kind, [1], [1.0])]))]
    json_tensor = tensor(name, kind, shape, sample.json)
    return [
        *cases,
        case(f"http JSON {kind}", infer("echo", [json_tensor])),
        case(f"http JSON in, binary out, {kind}", infer("echo", [json_tensor], wanted)),
        case(f"http JSON {kind}, too few elements", infer("echo", [tensor(name, kind, shape, sample.json[:3])])),
        case(f"http JSON {kind}, too many elements", infer("echo", [tensor(name, kind, [3], sample.json)])),
    ]


A, B = tensor("INPUT0", "FP32", [4], [1, 2, 3, 4]), tensor("INPUT1", "FP32", [4], [0.5, 0, -1, 1e10])
BOTH = [A, B]
PAIR = b"\0\0\x80?" * 4 + b"\0\0\0@" * 4  # 1.0 four times, 2.0 four times
BINARY_BOTH = [tensor(f"INPUT{i}", "FP32", [4], binary_data_size=16) for i in (0, 1)]
_PLAIN = infer("add_sub", BOTH).body

ADD_SUB = [
    case("http add_sub", infer("add_sub", BOTH)),
    case("http add_sub, inputs in reverse order", infer("add_sub", [B, A])),
    case("http add_sub by version", infer("add_sub", BOTH, version="1")),
    case("http add_sub by version with leading zeros", infer("add_sub", BOTH, version="001")),
    case("http request id is echoed", infer("add_sub", BOTH, id="my id/\u2603")),
    case("http empty request id is left out", infer("add_sub", BOTH, id="")),
    case("http one output of two", infer("add_sub", BOTH, [output("OUTPUT1")])),
    case("http outputs listed in reverse order", infer("add_sub", BOTH, [output("OUTPUT1"), output("OUTPUT0")])),
    case("http empty list of outputs means all", infer("add_sub", BOTH, [])),
    case("http binary inputs", infer_binary("add_sub", BINARY_BOTH, PAIR)),
    case("http one binary input, one JSON", infer_binary("add_sub", [BINARY_BOTH[0], B], PAIR[:16])),
    case(
        "http one binary output, one JSON",
        infer("add_sub", BOTH, [output("OUTPUT0", binary_data=True), output("OUTPUT1", binary_data=False)]),
    ),
    case("http binary_data_output", infer("add_sub", BOTH, parameters={"binary_data_output": True})),
    case(
        "http binary_data_output does not touch listed outputs",
        infer("add_sub", BOTH, [output("OUTPUT0")], parameters={"binary_data_output": True}),
    ),
    case(
        "http binary_data false beats binary_data_output",
        infer("add_sub", BOTH, [output("OUTPUT0", binary_data=False)], parameters={"binary_data_output": True}),
    ),
    case("http binary_data_output false", infer("add_sub", BOTH, parameters={"binary_data_output": False})),
    case("http unknown members are ignored", infer("add_sub", [{**A, "colour": [1, {}]}, B], extra={"a": [None]})),
]

FORMS = [
    case("http query string is dropped", http("POST", infer_path("add_sub") + "?a=b&c", _PLAIN)),
    case("http content type is not looked at", http("POST", infer_path("add_sub"), _PLAIN, {"Content-Type": "text/x"})),
    case("http 1.0", http("POST", infer_path("add_sub"), _PLAIN, version="1.0")),
    case(
        "http chunked request",
        http(
            "POST",
            infer_path("add_sub"),
            b"%x\r\n%s\r\n1\r\n%s\r\n0\r\n\r\n" % (len(_PLAIN) - 1, _PLAIN[:-1], _PLAIN[-1:]),
            {"Transfer-Encoding": "chunked"},
        ),
    ),
    case(
        "http expect 100-continue",
        http("POST", infer_path("add_sub"), _PLAIN, {"Expect": "100-continue", "Connection": "close"}),
    ),
    case("http header names in lower case", http("POST", infer_path("raw"), PAIR[:16], {JSON_LENGTH.lower(): "0"})),
    case("http gzip request", http("POST", infer_path("add_sub"), gzip.compress(_PLAIN), {"Content-Encoding": "gzip"})),
    case(
        "http deflate request",
        http("POST", infer_path("add_sub"), zlib.compress(_PLAIN), {"Content-Encoding": "deflate"}),
    ),
    case("http gzip response", http("POST", infer_path("add_sub"), _PLAIN, {"Accept-Encoding": "gzip"})),
    case("http deflate response", http("POST", infer_path("add_sub"), _PLAIN, {"Accept-Encoding": "deflate"})),
    case(
        "http accept-encoding by weight",
        http("POST", infer_path("add_sub"), _PLAIN, {"Accept-Encoding": "gzip;q=0.1, deflate;q=0.5, br"}),
    ),
    case("http accept-encoding br is identity", http("POST", infer_path("add_sub"), _PLAIN, {"Accept-Encoding": "br"})),
    case(
        "http gzip response with binary output",
        http(
            "POST",
            infer_path("add_sub"),
            infer("add_sub", BOTH, parameters={"binary_data_output": True}).body,
            {"Accept-Encoding": "gzip"},
        ),
    ),
    case(
        "http unknown content encoding",
        http("POST", infer_path("add_sub"), _PLAIN, {"Content-Encoding": "br"}),
    ),
    case("http header length covers the whole body", infer_binary("add_sub", BOTH, b"")),
]

I32, S = "INT32", "BYTES"
JSON_FORMS = [
    case("http JSON nested data", infer("matrix", [tensor("INPUT0", I32, [2, 3], [[1, 2, 3], [4, 5, 6]])])),
    case("http JSON data nested otherwise", infer("matrix", [tensor("INPUT0", I32, [2, 2], [[1, 2, 3], [4]])])),
    case("http JSON data nested deeper", infer("matrix", [tensor("INPUT0", I32, [2, 2], [[[1], 2], [[[3, 4]]]])])),
    case("http JSON flat data of a matrix", infer("matrix", [tensor("INPUT0", I32, [2, 2], [1, 2, 3, 4])])),
    case("http JSON matrix with a zero", infer("matrix", [tensor("INPUT0", I32, [2, 0], [])])),
    case("http JSON integers wrap", infer("echo", [tensor("IN_INT8", "INT8", [3], [300, -129, 128])])),
    case("http JSON unsigned integers wrap", infer("echo", [tensor("IN_UINT8", "UINT8", [2], [256, 300])])),
    case(
        "http JSON numbers without quotes that JSON has not",
        infer_text(
            "echo",
            '{"inputs":[{"name":"IN_FP32","shape":[5],"datatype":"FP32","data":[NaN,Infinity,-Infinity,Inf,-Inf]}]}',
        ),
    ),
    case(
        "http JSON doubles without quotes that JSON has not",
        infer_text(
            "echo",
            '{"inputs":[{"name":"IN_FP64","shape":[3],"datatype":"FP64","data":[NaN,Infinity,-Infinity]}]}',
        ),
    ),
    case(
        "http JSON integers as floats",
        infer("echo", [tensor("IN_FP32", "FP32", [4], [1, 2**40, -7, 0.0])]),
    ),
    case(
        "http JSON escapes in text",
        infer_text(
            "echo",
            r'{"inputs":[{"name":"IN_BYTES","shape":[4],"datatype":"BYTES",'
            r'"data":["\u00e9\ud83d\ude00","a\u0000b","\/\b\f","\u001f\""]}]}',
        ),
    ),
    case(
        "http JSON text that is not UTF-8",
        infer_text("echo", b'{"inputs":[{"name":"IN_BYTES","shape":[1],"datatype":"BYTES","data":["\xff\xfe"]}]}'),
    ),
    case(
        "http JSON duplicate members, the first wins",
        infer_text("add_sub", _PLAIN.replace(b'{"inputs"', b'{"id":"first","id":"second","inputs"')),
    ),
    case(
        "http JSON with white space",
        infer_text("add_sub", "\n\t " + json.dumps(json.loads(_PLAIN), indent=3) + " \r\n"),
    ),
    case(
        "http JSON several datatypes at once",
        infer("echo", [tensor(s.input_name, s.datatype, [s.length], s.json) for s in SAMPLES if s.json is not None]),
    ),
    case("http BYTES of one empty element", infer("echo", [tensor("IN_BYTES", S, [1], [""])])),
    case(
        "http binary BYTES with embedded zeros",
        infer_binary("echo", [tensor("IN_BYTES", S, [2], binary_data_size=12)], length_prefixed(b"a\0b", b"\0")),
    ),
]

TWO = tensor("INPUT0", "FP32", [2, 2], [1, 2, 3, 4])
BATCHES = [
    case("http batch", infer("batched", [TWO, tensor("INPUT1", S, [2, 1], ["a", "b"])])),
    case(
        "http batch of one",
        infer("batched", [tensor("INPUT0", "FP32", [1, 2], [1, 2]), tensor("INPUT1", S, [1, 0], [])]),
    ),
    case(
        "http full batch",
        infer("batched", [tensor("INPUT0", "FP32", [4, 2], [0] * 8), tensor("INPUT1", S, [4, 1], list("abcd"))]),
    ),
    case(
        "http shapes are changed for the model and back",
        infer("reshaped", [tensor("SQUARE", "FP32", [1, 4], [1, 2, 3, 4]), tensor("SCALAR", I32, [1, 1], [5])]),
    ),
    case("http optional input left out", infer("optional", [tensor("INPUT0", I32, [2], [1, 2])])),
    case(
        "http optional input given",
        infer("optional", [tensor("INPUT0", I32, [2], [1, 2]), tensor("INPUT1", I32, [2], [3, 4])]),
    ),
    case(
        "http auto-completed model answers",
        infer("completed", [tensor("INPUT0", "FP32", [4], [1, 2, 3, 4])]),
    ),
    case("http initialize arguments", infer("arguments", [tensor("INPUT0", I32, [1, 1], [0])], [output("ARGS")])),
    case("http model_config argument", infer("arguments", [tensor("INPUT0", I32, [1, 1], [0])], [output("CONFIG")])),
]

YES = [tensor("INPUT0", "BOOL", [1], [True])]
VERSIONS = [
    case("http highest version by default", infer("versions", YES)),
    case("http version 1", infer("versions", YES, version="1")),
    case("http version 3", infer("versions", YES, version="3")),
    case("http version outside the policy", infer("versions", YES, version="2")),
    case("http version that never was", infer("versions", YES, version="9")),
]

RAW = [
    case("http raw request", infer_raw("raw", PAIR)),
    case("http raw request of an empty body", http("POST", infer_path("raw"), b"")),
    case("http raw request of zero bytes", infer_raw("raw", b"")),
    case("http raw request, batching model", infer_raw("raw_batched", b"\1\0\2\0\3\0\4\0")),
    case("http raw request of text", infer_raw("raw_bytes", "one \u2603 element".encode())),
    case("http raw request of empty text", infer_raw("raw_bytes", b"")),
    case("http raw request, variable text", infer_raw("raw_bytes_variable", b"text")),
    case("http raw request, not a multiple of the element", infer_raw("raw", b"12345")),
    case("http raw request, not a multiple of the row", infer_raw("raw_batched", b"\1\0\2\0\3\0")),
    case("http raw request, two variable dimensions", infer_raw("raw_two_variable", PAIR)),
    case("http raw request, two inputs", infer_raw("add_sub", PAIR)),
    case("http raw request, fixed shape of other size", infer_raw("request_facts", b"\1\0\0\0")),
]

ONE = [tensor("INPUT0", I32, [1], [7])]


def told(name: str, **members: Any) -> Case:
    """What the model learns of a request with these members."""
    return case(f"http model is told {name}", infer("request_facts", ONE, [output("FACTS")], **members))


FACTS = [
    told("nothing"),
    told("the request id", id="abc"),
    told("free parameters", parameters={"text": "x\u2603", "whole": -3, "flag": True, "real": 1.5, "large": 2**40}),
    told("a sequence", parameters={"sequence_id": 42, "sequence_start": True, "sequence_end": False}),
    told("the end of a sequence", parameters={"sequence_id": 42, "sequence_start": True, "sequence_end": True}),
    told("a sequence by text", parameters={"sequence_id": "seq-1", "sequence_start": True}),
    told("a timeout", parameters={"timeout": 5000000}),
    told("a priority", parameters={"priority": 1}),
    told("a large sequence id", parameters={"sequence_id": 2**64 - 1}),
    case("http model is told all outputs", infer("request_facts", ONE)),
    case("http model is told one output", infer("request_facts", ONE, [output("SECOND")])),
]

CLASSIFIED = [tensor("INPUT0", "FP32", [1, 3], [0.25, 2.5, -1])]
CLASSES = [
    case("http classification", infer("classified", CLASSIFIED, [output("OUTPUT0", classification=2)])),
    case(
        "http classification of more than there is",
        infer("classified", CLASSIFIED, [output("OUTPUT0", classification=9)]),
    ),
    case("http classification of none", infer("classified", CLASSIFIED, [output("OUTPUT0", classification=0)])),
    case(
        "http classification in binary",
        infer("classified", CLASSIFIED, [output("OUTPUT0", classification=1, binary_data=True)]),
    ),
]

CASES = [
    *(each for sample in SAMPLES for each in datatype_cases(sample)),
    *ADD_SUB,
    *FORMS,
    *JSON_FORMS,
    *BATCHES,
    *VERSIONS,
    *RAW,
    *FACTS,
    *CLASSES,
]
