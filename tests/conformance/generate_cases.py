"""generate and generate_stream: the mapping of flat JSON, its errors, and how responses are framed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.conformance.requests import Case, Contents, Http, Stream, case, grpc_input, http, infer_request

LONG_ROW = [1, 1, 1, 1.5]
ADD_SUB = {"INPUT0": [1, 2, 3, 4], "INPUT1": LONG_ROW}


def generate(
    model: str, document: Any, stream: bool = False, version: str = "", headers: Mapping[str, str] = {}
) -> Http:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/generate" + "_stream" * stream
    return http("POST", path, body, headers)


def both(name: str, model: str, document: Any, **more: Any) -> list[Case]:
    return [
        case(f"generate: {name}", generate(model, document, **more)),
        case(f"generate_stream: {name}", generate(model, document, stream=True, **more)),
    ]


FORMS = [
    *both("add_sub", "add_sub", ADD_SUB),
    *both("request id", "add_sub", {**ADD_SUB, "id": "my/\u2603"}),
    *both("version", "add_sub", ADD_SUB, version="1"),
    *both("unknown version", "add_sub", ADD_SUB, version="7"),
    *both("unknown model", "nobody", ADD_SUB),
    *both("missing input", "add_sub", {"INPUT0": LONG_ROW}),
    *both("gzip request", "add_sub", ADD_SUB, headers={"Content-Encoding": "gzip"}),
    *both("identity request", "add_sub", ADD_SUB, headers={"Content-Encoding": "identity"}),
    *both("gzip response", "add_sub", ADD_SUB, headers={"Accept-Encoding": "gzip"}),
    *both("header of infer", "add_sub", ADD_SUB, headers={"Inference-Header-Content-Length": "3"}),
    *both("text and numbers", "echo", {"IN_INT64": [2**63 - 1, -1], "IN_UINT8": 7, "IN_FP32": [0.1, 2]}),
    *both("text", "echo", {"IN_BYTES": ["a", "\u00e9", '"']}),
    *both("no outputs", "echo", {}),
    case("generate by GET", http("GET", "/v2/models/add_sub/generate")),
    case("generate_stream by GET", http("GET", "/v2/models/add_sub/generate_stream")),
    case("generate: no body", generate("add_sub", b"")),
    case("generate: syntax", generate("add_sub", b"{")),
    case("generate: array", generate("add_sub", b"[]")),
    case("generate: null", generate("add_sub", b"null")),
    case("generate: byte order mark", generate("add_sub", b"\xef\xbb\xbf" + json.dumps(ADD_SUB).encode())),
    case("generate: not UTF-8", generate("echo", b'{"IN_BYTES":"\xff\xfe","a\xff":1}')),
]

_VALUES = {
    "V": [[1], [1, 2, 3], 5, [], [[1]], [[1, 2]], {}, None, 1.5, [1, "a"]],
    "F": [[1, 2, 3, 4], [1, 2], [1, 2, 3, 4, 5], list("abcd")],
    "VF": [[1, 2], [1, 2, 3, 4], [1, 2, 3]],
    "FV": [[1, 2], [1, 2, 3, 4], [1, 2, 3]],
    "VV": [[1, 2, 3], [1]],
    "R": [[1, 2, 3, 4], [1, 2]],
    "T": ["a", ["a", "b"], [], "", 3, ["a", 3], [["a"]], [["a", "b"]], [[]]],
    "B": [True, [False], 1, "true"],
    "U8": [255, 300, -1, 1.0, True],
    "D": [1, 1.5, [1e308], "x", None],
    "H": [1.0, [1.0], []],
}
SHAPES = [
    *(
        case(f"generate: {name} of {json.dumps(value)}, {model}", generate(model, {name: value}))
        for model in ("shapes", "shapes_batched")
        for name, values in _VALUES.items()
        for value in values
    ),
    case("generate: a batch by its number of elements", generate("shapes_batched", {"F": [1] * 8})),
    case("generate: a batch too large", generate("shapes_batched", {"F": [1] * 40})),
    case("generate: batches differ", generate("shapes_batched", {"F": [1] * 8, "T": "x"})),
]

_MEMBERS: dict[str, dict[str, Any]] = {
    "parameters": {"a": 1, "b": "x", "c": True, "d": 1.5, "": 2},
    "nested parameters": {"parameters": {"a": 1, "b": "x", "c": False, "d": 2.5}},
    "reserved parameters": {"sequence_id": 7, "sequence_start": True, "priority": 1, "timeout": 5, "triton_x": 1},
    "reserved parameters of odd types": {"sequence_id": 1.5, "sequence_start": 1, "priority": "x", "timeout": -1},
    "reserved parameters, nested": {"parameters": {"sequence_id": 9, "triton_x": 1, "id": "x"}},
    "other names of infer": {"binary_data_output": 1, "headers": "x", "model_name": "x", "inputs": "x"},
    "list as parameter": {"a": [1]},
    "object as parameter": {"a": {}},
    "null as parameter": {"a": None},
    "list as nested parameter": {"parameters": {"a": [1]}},
    "parameters in parameters": {"parameters": {"parameters": {"a": 1}}},
    "number as parameters": {"parameters": 3},
    "array as parameters": {"parameters": []},
    "null as parameters": {"parameters": None},
    "number as id": {"id": 5},
    "empty id": {"id": ""},
    "null as id": {"id": None},
    "large number as parameter": {"a": 2**64 - 1},
}
PARAMETERS = [
    *(case(f"generate: {name}", generate("request_facts", {"INPUT0": [1], **more})) for name, more in _MEMBERS.items()),
    case("generate: nested input", generate("request_facts", {"parameters": {"INPUT0": [1, 2]}})),
    case("generate: bad nested input", generate("request_facts", {"parameters": {"INPUT0": ["x"]}})),
    case("generate: input twice", generate("request_facts", b'{"INPUT0":[1],"INPUT0":[2],"id":"x"}')),
    case("generate: nested input twice", generate("request_facts", b'{"INPUT0":[1],"parameters":{"INPUT0":[2]}}')),
    case("generate: parameter twice", generate("request_facts", b'{"INPUT0":[1],"a":1,"a":2}')),
    case("generate: parameter nested again", generate("request_facts", b'{"INPUT0":[1],"a":1,"parameters":{"a":2}}')),
    case("generate: id twice", generate("request_facts", b'{"INPUT0":[1],"id":"1","id":"2"}')),
    case("generate: the first fault counts", generate("request_facts", {"a": [], "id": 3})),
    case("generate: faults in the order of members", generate("request_facts", {"parameters": 3, "INPUT0": "x"})),
]

ACTIONS = [
    *(
        one
        for action in (
            "fine",
            "scalar",
            "zero_size",
            "objects",
            "not_utf8",
            "half",
            "error_invalid_arg",
            "error_cancelled",
            "one_of_two",
            "no_outputs",
            "twice",
            "reverse_order",
            "other_shape",
            "double_forms",
            "unsigned_limits",
            "text_matrix",
            "control",
            "no_text",
            "value_error",
            "too_many",
            "error_not_found",
            "error_unavailable",
            "error_empty",
        )
        for one in both(f"model: {action}", "misbehaving", {"ACTION": action, "id": "mine"})
    ),
]

_STEPS = [
    ["1", "final"],
    ["1"],
    ["2", "3", "final"],
    ["0", "1", "2"],
    ["final"],
    ["error"],
    ["error", "final"],
    ["1", "error", "2", "final"],
    ["error", "1", "final"],
    ["1", "raise"],
    ["raise"],
]


def stream(*steps: str, metadata: tuple[tuple[str, str], ...] = (), **values: Any) -> Stream:
    contents = Contents({"bytes_contents": [step.encode() for step in steps]})
    tensor = grpc_input("STEPS", "BYTES", [len(steps)], contents)
    return Stream((infer_request("responses", [tensor], id="mine", values=values),), metadata)


RESPONSES = [
    *(
        one
        for steps in _STEPS
        for one in both(f"responses: {' '.join(steps)}", "responses", {"STEPS": steps, "id": "mine"})
    ),
    *(case(f"stream responses: {' '.join(steps)}", stream(*steps)) for steps in _STEPS),
    *(
        case(
            f"stream responses, empty final wanted: {' '.join(steps)}",
            stream(*steps, triton_enable_empty_final_response=True),
        )
        for steps in _STEPS
    ),
]

CASES = [*FORMS, *SHAPES, *PARAMETERS, *ACTIONS, *RESPONSES]
