"""Inference over HTTP that must fail: each text of the validation and of the JSON reader."""

from __future__ import annotations

import json

from tests.conformance.requests import (
    JSON_LENGTH,
    Case,
    case,
    http,
    infer,
    infer_binary,
    infer_path,
    infer_text,
    length_prefixed,
    output,
    tensor,
)

F, I32, S = "FP32", "INT32", "BYTES"
A, B = tensor("INPUT0", F, [4], [1, 2, 3, 4]), tensor("INPUT1", F, [4], [1, 2, 3, 4])
BOTH = [A, B]
TWO = tensor("INPUT0", F, [2, 2], [1, 2, 3, 4])
TEXTS = tensor("INPUT1", S, [2, 1], ["a", "b"])

LOOKUP = [
    case("http unknown model", infer("nobody", BOTH)),
    case("http unknown model and version", infer("nobody", BOTH, version="3")),
    case("http unknown version", infer("add_sub", BOTH, version="7")),
    case("http infer of a version that is no number", infer("add_sub", BOTH, version="one")),
    case("http version below zero", infer("add_sub", BOTH, version="-1")),
    case("http model name is not decoded", infer("add%5Fsub", BOTH)),
    case("http model name in other letters", infer("Add_Sub", BOTH)),
    case("http decoupled model", infer("decoupled", [tensor("INPUT0", I32, [1], [1])])),
    case("http infer by GET", http("GET", infer_path("add_sub"))),
    case("http infer by PUT", http("PUT", infer_path("add_sub"))),
    case("http infer of an unknown model by GET", http("GET", infer_path("nobody"))),
]

VALIDATION = [
    case("http unknown output", infer("add_sub", BOTH, [output("OUTPUT0"), output("NOPE")])),
    case("http unknown output comes before a missing input", infer("add_sub", [A], [output("NOPE")])),
    case("http missing input", infer("add_sub", [A])),
    case("http missing input, with id", infer("add_sub", [A], id="me")),
    case("http no inputs", infer("add_sub", [])),
    case("http no inputs to a model with one", infer("raw", [])),
    case("http too many inputs", infer("raw", [tensor("INPUT0", F, [1], [1]), tensor("MORE", F, [1], [1])])),
    case("http unknown input", infer("add_sub", [A, tensor("NOPE", F, [4], [1, 2, 3, 4])])),
    case("http duplicate input", infer("add_sub", [A, A])),
    case("http duplicate input in a third", infer("add_sub", [A, B, B])),
    case("http duplicate output", infer("add_sub", BOTH, [output("OUTPUT0"), output("OUTPUT0")])),
    case("http required input missing, optional given", infer("optional", [tensor("INPUT1", I32, [2], [1, 2])])),
    case("http no inputs to a model with an optional one", infer("optional", [])),
    case("http no inputs where all are optional", infer("echo", [])),
    case("http other datatype", infer("add_sub", [tensor("INPUT0", "INT64", [4], [1, 2, 3, 4]), B])),
    case("http other datatype, with id", infer("add_sub", [tensor("INPUT0", "INT64", [4], [1, 2, 3, 4]), B], id="x")),
    case("http text for numbers", infer("add_sub", [tensor("INPUT0", S, [4], list("abcd")), B])),
    case("http other dimension", infer("add_sub", [tensor("INPUT0", F, [5], [1, 2, 3, 4, 5]), B])),
    case("http other rank", infer("add_sub", [tensor("INPUT0", F, [1, 4], [1, 2, 3, 4]), B])),
    case("http no shape members", infer("add_sub", [tensor("INPUT0", F, [], [1]), B])),
    case("http other dimension of a matrix", infer("matrix", [tensor("INPUT0", I32, [3, 1], [1, 2, 3])])),
    case(
        "http other dimension of a reshaped input",
        infer("reshaped", [tensor("SQUARE", F, [1, 2, 2], [1, 2, 3, 4]), tensor("SCALAR", I32, [1, 1], [5])]),
    ),
    case("http zero for a fixed dimension", infer("add_sub", [tensor("INPUT0", F, [0], []), B])),
    case("http batch without its dimension", infer("batched", [tensor("INPUT0", F, [2], [1, 2]), TEXTS])),
    case("http batch with no dimensions", infer("batched", [tensor("INPUT0", F, [], [1]), TEXTS])),
    case(
        "http batch too large",
        infer("batched", [tensor("INPUT0", F, [5, 2], [0] * 10), tensor("INPUT1", S, [5, 1], list("abcde"))]),
    ),
    case("http batch too large, with id", infer("counted", [tensor("INPUT0", I32, [9, 2], [0] * 18)], id="big")),
    case("http batch sizes differ", infer("batched", [TWO, tensor("INPUT1", S, [1, 1], ["a"])])),
    case("http batch of other dimension", infer("batched", [tensor("INPUT0", F, [2, 3], [0] * 6), TEXTS])),
]

SIZES = [
    case(
        "http binary size is not the shape's",
        infer_binary("add_sub", [tensor("INPUT0", F, [4], binary_data_size=12), B], b"\0" * 12),
    ),
    case(
        "http binary size is more than the shape's",
        infer_binary("add_sub", [tensor("INPUT0", F, [4], binary_data_size=20), B], b"\0" * 20),
    ),
    case(
        "http binary data ends early",
        infer_binary("add_sub", [tensor("INPUT0", F, [4], binary_data_size=16), B], b"\0" * 10),
    ),
    case(
        "http binary data goes on",
        infer_binary("add_sub", [tensor("INPUT0", F, [4], binary_data_size=16), B], b"\0" * 20),
    ),
    case(
        "http binary data without a header length", infer("add_sub", [tensor("INPUT0", F, [4], binary_data_size=16), B])
    ),
    case("http binary size zero", infer_binary("add_sub", [tensor("INPUT0", F, [4], binary_data_size=0), B], b"")),
    case(
        "http binary size below zero", infer_binary("add_sub", [tensor("INPUT0", F, [4], binary_data_size=-4), B], b"")
    ),
    case(
        "http binary size as text",
        infer_binary("add_sub", [tensor("INPUT0", F, [4], binary_data_size="16"), B], b"\0" * 16),
    ),
    case(
        "http text element without its length",
        infer_binary("echo", [tensor("IN_BYTES", S, [1], binary_data_size=2)], b"ab"),
    ),
    case(
        "http text element shorter than its length",
        infer_binary("echo", [tensor("IN_BYTES", S, [1], binary_data_size=6)], b"\x09\0\0\0ab"),
    ),
    case(
        "http more text elements than the shape",
        infer_binary("echo", [tensor("IN_BYTES", S, [1], binary_data_size=10)], length_prefixed(b"a", b"b")),
    ),
    case(
        "http fewer text elements than the shape",
        infer_binary("echo", [tensor("IN_BYTES", S, [3], binary_data_size=10)], length_prefixed(b"a", b"b")),
    ),
    case(
        "http text elements where the shape has none",
        infer_binary("echo", [tensor("IN_BYTES", S, [0], binary_data_size=5)], length_prefixed(b"a")),
    ),
    case(
        "http no text elements where the shape has some",
        infer_binary("echo", [tensor("IN_BYTES", S, [2], binary_data_size=0)], b""),
    ),
    case(
        "http shape of more elements than 64 bits",
        infer_binary("matrix", [tensor("INPUT0", I32, [2, 2**62], binary_data_size=16)], b"\0" * 16),
    ),
    case(
        "http shape overflows in bytes",
        infer_binary("matrix", [tensor("INPUT0", I32, [2, 2**61], binary_data_size=16)], b"\0" * 16),
    ),
]

GOOD = json.dumps({"inputs": BOTH}).encode()


HEADER = [
    case("http header length is no number", http("POST", infer_path("add_sub"), GOOD, {JSON_LENGTH: "abc"})),
    case("http header length below zero", http("POST", infer_path("add_sub"), GOOD, {JSON_LENGTH: "-1"})),
    case("http header length beyond the body", http("POST", infer_path("add_sub"), GOOD, {JSON_LENGTH: "99999"})),
    case("http header length beyond 32 bits", http("POST", infer_path("add_sub"), GOOD, {JSON_LENGTH: "99999999999"})),
    case("http header length within the JSON", http("POST", infer_path("add_sub"), GOOD, {JSON_LENGTH: "20"})),
    case("http POST without a body", http("POST", infer_path("add_sub"), b"")),
]


def member(title: str, **changes: object) -> Case:
    """An add_sub request whose first input is changed."""
    return case(f"http {title}", infer("add_sub", [{**A, **changes}, B]))


def without(name: str, missing: str) -> Case:
    return case(f"http {name}", infer("add_sub", [{key: A[key] for key in A if key != missing}, B]))


def text(name: str, document: str | bytes, model: str = "add_sub") -> Case:
    return case(f"http {name}", infer_text(model, document))


MEMBERS = [
    without("input without a name", "name"),
    without("input without a datatype", "datatype"),
    without("input without a shape", "shape"),
    without("input without data", "data"),
    member("input name as a number", name=3),
    member("datatype as a number", datatype=3),
    member("datatype unknown", datatype="FP8"),
    member("datatype in lower case", datatype="fp32"),
    member("datatype as in a configuration", datatype="TYPE_FP32"),
    member("shape as a number", shape=4),
    member("shape as text", shape="4"),
    member("shape with text", shape=["4"]),
    member("shape below zero", shape=[-1]),
    member("shape with a fraction", shape=[4.0]),
    member("shape null", shape=None),
    member("data as a number", data=1),
    member("data as an object", data={"a": 1}),
    member("data null", data=None),
    member("data with text", data=["1", "2", "3", "4"]),
    member("data with null", data=[1, None, 3, 4]),
    member("data with booleans", data=[True, False, True, False]),
    member("data with an object", data=[1, {}, 3, 4]),
    member("input parameters as a list", parameters=[]),
    member("data and binary_data_size", parameters={"binary_data_size": 16}),
    member("data and shared memory", parameters={"shared_memory_region": "r", "shared_memory_byte_size": 16}),
    case(
        "http data, binary and shared memory",
        infer(
            "add_sub",
            [
                {
                    **A,
                    "parameters": {"binary_data_size": 16, "shared_memory_region": "r", "shared_memory_byte_size": 16},
                },
                B,
            ],
        ),
    ),
    case(
        "http shared memory of no region",
        infer("add_sub", [tensor("INPUT0", F, [4], shared_memory_region="nowhere", shared_memory_byte_size=16), B]),
    ),
    case(
        "http shared memory without a size",
        infer("add_sub", [tensor("INPUT0", F, [4], shared_memory_region="nowhere"), B]),
    ),
    case("http input as text", infer("add_sub", ["INPUT0", B])),
    case("http input as a number", infer("add_sub", [7])),
    case("http inputs as an object", infer("add_sub", {"INPUT0": A})),
    case("http inputs null", infer("add_sub", None)),
    case("http outputs as an object", infer("add_sub", BOTH, {})),
    case("http outputs as text", infer("add_sub", BOTH, "OUTPUT0")),
    case("http output as text", infer("add_sub", BOTH, ["OUTPUT0"])),
    case("http output without a name", infer("add_sub", BOTH, [{"parameters": {}}])),
    case("http output name as a number", infer("add_sub", BOTH, [{"name": 3}])),
    case("http binary_data as text", infer("add_sub", BOTH, [output("OUTPUT0", binary_data="yes")])),
    case("http binary_data as a number", infer("add_sub", BOTH, [output("OUTPUT0", binary_data=1)])),
    case("http classification as text", infer("add_sub", BOTH, [output("OUTPUT0", classification="2")])),
    case("http classification below zero", infer("add_sub", BOTH, [output("OUTPUT0", classification=-2)])),
    case(
        "http classification and shared memory",
        infer(
            "add_sub", BOTH, [output("OUTPUT0", classification=2, shared_memory_region="r", shared_memory_byte_size=16)]
        ),
    ),
    case(
        "http binary_data and shared memory",
        infer(
            "add_sub", BOTH, [output("OUTPUT0", binary_data=True, shared_memory_region="r", shared_memory_byte_size=16)]
        ),
    ),
    case(
        "http output in shared memory of no region",
        infer("add_sub", BOTH, [output("OUTPUT0", shared_memory_region="nowhere", shared_memory_byte_size=16)]),
    ),
    case(
        "http classification of text",
        infer("echo", [tensor("IN_BYTES", S, [1], ["a"])], [output("OUT_BYTES", classification=1)]),
    ),
    case(
        "http classification of booleans",
        infer("echo", [tensor("IN_BOOL", "BOOL", [1], [True])], [output("OUT_BOOL", classification=1)]),
    ),
    case("http BOOL as numbers", infer("echo", [tensor("IN_BOOL", "BOOL", [2], [1, 0])])),
    case("http BYTES as numbers", infer("echo", [tensor("IN_BYTES", S, [1], [5])])),
    case("http INT32 with a fraction", infer("echo", [tensor("IN_INT32", I32, [1], [1.5])])),
    case(
        "http INT32 with an exponent",
        infer_text("echo", '{"inputs":[{"name":"IN_INT32","shape":[1],"datatype":"INT32","data":[1e2]}]}'),
    ),
    case("http UINT8 below zero", infer("echo", [tensor("IN_UINT8", "UINT8", [1], [-1])])),
    case("http INT64 beyond its range", infer("echo", [tensor("IN_INT64", "INT64", [1], [2**63])])),
    case(
        "http UINT64 beyond its range",
        infer_text(
            "echo", '{"inputs":[{"name":"IN_UINT64","shape":[1],"datatype":"UINT64","data":[18446744073709551616]}]}'
        ),
    ),
    case("http data nested too few", infer("matrix", [tensor("INPUT0", I32, [2, 2], [[1, 2], [3]])])),
    case("http data for a shape with a zero", infer("raw", [tensor("INPUT0", F, [0], [1])])),
]


def parameter(name: str, **values: object) -> Case:
    return case(f"http parameter {name}", infer("add_sub", BOTH, parameters=values))


PARAMETERS = [
    parameter("sequence_id below zero", sequence_id=-3),
    parameter("sequence_id as a boolean", sequence_id=True),
    parameter("sequence_start as a number", sequence_id=1, sequence_start=1),
    parameter("sequence_end as text", sequence_id=1, sequence_end="yes"),
    parameter("priority as text", priority="high"),
    parameter("priority below zero", priority=-1),
    parameter("timeout as text", timeout="soon"),
    parameter("timeout below zero", timeout=-1),
    parameter("binary_data_output as a number", binary_data_output=1),
    parameter("of a list", mine=[1]),
    parameter("of an object", mine={}),
    parameter("of null", mine=None),
    parameter("reserved for Triton", triton_mine=1),
    parameter("reserved for Triton, known to gRPC", triton_enable_empty_final_response=True),
    case("http parameters as a list", infer("add_sub", BOTH, parameters=[1])),
    case("http parameters as text", infer("add_sub", BOTH, parameters="x")),
    case("http id as a number", infer("add_sub", BOTH, id=7)),
    case("http id null", infer("add_sub", BOTH, id=None)),
]

SYNTAX = [
    text("JSON of white space", "  "),
    text("JSON cut off", GOOD[:-1]),
    text("JSON followed by more", GOOD + b" x"),
    text("JSON that is text", "hello"),
    text("JSON with a trailing comma", '{"inputs":[],}'),
    text("JSON without a colon", '{"inputs" []}'),
    text("JSON with a name that is no text", "{3: 4}"),
    text("JSON with an array not closed", '{"inputs":[1 2]}'),
    text("JSON with a number too large", '{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"FP32","data":[1e400]}]}'),
    text("JSON with single quotes", "{'inputs': []}"),
    text("JSON with a comment", '{"inputs": [] /* none */}'),
    text("JSON with a bad escape", r'{"id": "\x", "inputs": []}'),
    text("JSON with half a surrogate", r'{"id": "\ud800", "inputs": []}'),
    text("JSON with a bare control character", '{"id": "a\nb", "inputs": []}'),
    text("JSON that is a list", "[]"),
    text("JSON that is null", "null"),
    text("JSON that is a number", "7"),
    text("JSON without inputs", "{}"),
]

CASES = [*LOOKUP, *VALIDATION, *SIZES, *HEADER, *MEMBERS, *PARAMETERS, *SYNTAX]
