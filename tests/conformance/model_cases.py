"""What a model does wrong or unusually (the ``misbehaving`` model), as HTTP and gRPC clients see it."""

from __future__ import annotations

from typing import Any

from tests.conformance.requests import (
    Contents,
    Http,
    Rpc,
    case,
    grpc_input,
    infer,
    output,
    rpc_infer,
    tensor,
)

BOTH_FRONTS = [
    "tuple",
    "value_error",
    "model_exception",
    "too_many",
    "list_of_int",
    "error_not_found",
    "error_unknown",
    "error_internal",
    "error_invalid_arg",
    "error_unavailable",
    "error_unsupported",
    "error_already_exists",
    "error_cancelled",
    "scalar",
    "zero_size",
    "other_datatype",
    "other_shape",
    "no_outputs",
    "unknown_output",
    "twice",
    "objects",
    "not_utf8",
    "half",
]
HTTP_ONLY = [
    "fine",
    "int",
    "array",
    "generator",
    "dict",
    "one_response",
    "too_few",
    "list_of_str",
    "list_of_tensor",
    "list_subclass",
    "without_text",
    "unicode",
    "keyboard_interrupt",
    "deeper",
    "bad_dtype",
    "empty_name",
    "error",
    "error_empty",
    "error_with_outputs",
    "one_of_two",
    "reverse_order",
    "transposed",
    "strided",
    "negative_stride",
    "fixed_width",
    "text_scalar",
    "text_matrix",
    "control",
    "no_text",
    "float_forms",
    "double_forms",
    "unsigned_limits",
    "signed_limits",
    "booleans",
    "exit",
]
BINARY_TOO = [
    "scalar",
    "zero_size",
    "transposed",
    "objects",
    "not_utf8",
    "half",
    "booleans",
    "no_text",
    "text_scalar",
    "twice",
]


def act(action: str, outputs: list[dict[str, Any]] | None = None, **members: Any) -> Http:
    return infer("misbehaving", [tensor("ACTION", "BYTES", [1], [action])], outputs, **members)


def grpc_act(action: str) -> Rpc:
    contents = Contents({"bytes_contents": [action.encode()]})
    return rpc_infer("misbehaving", [grpc_input("ACTION", "BYTES", [1], contents)], id="mine")


CASES = [
    *(case(f"http model: {action}", act(action)) for action in [*BOTH_FRONTS, *HTTP_ONLY]),
    *(case(f"grpc model: {action}", grpc_act(action)) for action in BOTH_FRONTS),
    *(
        case(f"http model, binary: {action}", act(action, parameters={"binary_data_output": True}))
        for action in BINARY_TOO
    ),
    case("http model fails, with id", act("value_error", id="mine")),
    case("http model: requested output is not produced", act("one_of_two", [output("OUT")])),
    case("http model: outputs are in its order", act("reverse_order", [output("OUT"), output("OTHER")])),
    case("http model: works after it failed", act("value_error"), act("fine")),
    case("http model without execute", infer("no_execute", [tensor("INPUT0", "INT32", [1], [1])])),
    case(
        "grpc model without execute",
        rpc_infer("no_execute", [grpc_input("INPUT0", "INT32", [1], Contents({"int_contents": [1]}))]),
    ),
]
