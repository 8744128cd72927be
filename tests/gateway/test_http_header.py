from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from gateway.http_header import HeaderInput, InferHeader, decode
from protocol.errors import ErrorKind, ServingError

BINARY = {"name": "A", "shape": [16], "datatype": "FP32", "parameters": {"binary_data_size": 64}}
DATA = {"name": "A", "shape": [2], "datatype": "FP32", "data": [1, 2]}


def read(header: Any, max_input_size: int = 1 << 20) -> InferHeader:
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return decode(text, max_input_size, recurring=False)


def refusal(header: Any, max_input_size: int = 1 << 20) -> tuple[ErrorKind, str]:
    with pytest.raises(ServingError) as caught:
        read(header, max_input_size)
    return caught.value.kind, str(caught.value)


def with_input(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{**DATA, **changes}]}


def without(name: str) -> dict[str, Any]:
    return {"inputs": [{key: value for key, value in DATA.items() if key != name}]}


def test_a_binary_input_says_how_many_bytes_follow() -> None:
    assert read({"inputs": [BINARY]}).inputs == [HeaderInput("A", "FP32", [16], 64, b"")]


def test_json_data_is_converted() -> None:
    assert read({"inputs": [DATA]}).inputs == [HeaderInput("A", "FP32", [2], -1, struct.pack("<2f", 1, 2))]


@pytest.mark.parametrize("data", [[], [[]], [1, 2]])
def test_data_without_dimensions_is_not_looked_at(data: list[Any]) -> None:
    """The shape is refused later, with Triton's text for the model."""
    assert read(with_input(shape=[], data=data)).inputs == [HeaderInput("A", "FP32", [], -1, b"")]


def test_request_parameters_have_meanings_or_go_to_the_model() -> None:
    own = {"x": "s", "y": 1, "z": True, "w": 1.5}
    known = {"sequence_id": 5, "sequence_start": True, "sequence_end": True, "priority": 3, "timeout": 9}
    header = read({"id": "7", "inputs": [DATA], "parameters": {**own, **known, "binary_data_output": True}})
    assert header.request_id == "7"
    assert header.parameters == own
    assert (header.correlation_id, header.flags, header.priority, header.timeout_us) == (5, 3, 3, 9)
    assert header.default_binary


def test_a_sequence_id_may_be_text() -> None:
    assert read({"inputs": [DATA], "parameters": {"sequence_id": "s"}}).correlation_id == "s"


def test_an_integer_past_64_bits_becomes_a_double() -> None:
    assert read({"inputs": [DATA], "parameters": {"x": 1 << 64}}).parameters == {"x": float(1 << 64)}


def test_listed_outputs_are_json_unless_they_say_otherwise() -> None:
    outputs = [
        {"name": "O"},
        {"name": "P", "parameters": {"binary_data": True}},
        {"name": "Q", "parameters": {"classification": 2}},
    ]
    header = read({"inputs": [DATA], "outputs": outputs, "parameters": {"binary_data_output": True}})
    assert header.outputs == ["O", "P", "Q"]
    assert header.binary == {"O": False, "P": True, "Q": False}
    assert header.classes == {"Q": 2}


def test_an_output_listed_twice_counts_once() -> None:
    assert read({"inputs": [DATA], "outputs": [{"name": "O"}, {"name": "O"}]}).outputs == ["O"]


def test_unknown_members_are_ignored() -> None:
    header = read({"inputs": [{**DATA, "x": [1], "parameters": {"y": {}}}], "z": None})
    assert header.inputs[0].name == "A"


def test_parameters_of_a_tensor_may_be_anything() -> None:
    header = read({"inputs": [{**DATA, "parameters": None}], "outputs": [{"name": "O", "parameters": 3}]})
    assert header.outputs == ["O"]


def test_of_duplicate_members_the_first_counts() -> None:
    text = b'{"id":"1","id":"2","inputs":[{"name":"A","shape":[0],"datatype":"FP32","data":[],"shape":[1]}],"inputs":3}'
    header = read(text)
    assert header.request_id == "1"
    assert header.inputs[0].shape == [0]


def test_nan_is_read_with_care() -> None:
    header = read(b'{"inputs":[{"name":"A","shape":[1],"datatype":"FP64","data":[-Infinity]}]}')
    assert header.inputs[0].data == struct.pack("<d", float("-inf"))


def test_the_same_small_header_is_decoded_once() -> None:
    text = json.dumps({"inputs": [BINARY]}).encode()
    assert decode(memoryview(text), 1 << 20, recurring=True) is decode(memoryview(text), 1 << 20, recurring=True)


ONE_OF = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ({}, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ([], "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({"inputs": 3}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ({"id": 3, "inputs": [DATA]}, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({"inputs": [DATA], "outputs": {}}, "Unable to parse 'outputs': attempt to access JSON non-array as array"),
        (
            {"inputs": [DATA], "outputs": [{}]},
            "Unable to parse 'name': attempt to access non-existing object member 'name'",
        ),
        (
            {"inputs": [DATA], "outputs": [{"name": "O", "parameters": {"binary_data": 1}}]},
            "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
        ),
        (
            {"inputs": [DATA], "outputs": [{"name": "O", "parameters": {"classification": "1"}}]},
            "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (without("name"), "Unable to parse 'name': attempt to access non-existing object member 'name'"),
        (without("datatype"), "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'"),
        (without("shape"), "Unable to parse 'shape': attempt to access non-existing object member 'shape'"),
        (with_input(name=3), "Unable to parse 'name': attempt to access JSON non-string as string"),
        (with_input(shape="2"), "Unable to parse 'shape': attempt to access JSON non-array as array"),
        (
            with_input(shape=[-1]),
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            with_input(shape=[2.0]),
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"inputs": [{**BINARY, "parameters": {"binary_data_size": -1}}]},
            "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        ({"inputs": [DATA], "parameters": 3}, "failed to get request params.: attempt to get members for non-object"),
        (
            {"inputs": [DATA], "parameters": {"sequence_id": -3}},
            "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
        ),
        (
            {"inputs": [DATA], "parameters": {"sequence_start": 1}},
            "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
        ),
        (
            {"inputs": [DATA], "parameters": {"priority": -1}},
            "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (b'{"inputs":[}', "failed to parse the request JSON buffer: Invalid value. at 11"),
    ],
)
def test_wrong_types_are_internal_errors(header: Any, text: str) -> None:
    assert refusal(header) == (ErrorKind.INTERNAL, text)


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (without("data"), ONE_OF + "no field is set"),
        ({"inputs": [3]}, ONE_OF + "no field is set"),
        (with_input(parameters={"binary_data_size": 8}), ONE_OF + "set 'data' 'binary_data_size'"),
        (with_input(datatype="FOO"), "invalid datatype for input A"),
        (
            with_input(datatype="BF16"),
            "receiving BF16 data via JSON is not supported. Please use the binary data format for input A",
        ),
        (
            {"inputs": [DATA], "parameters": {"triton_x": 1}},
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        ),
        (
            {"inputs": [DATA], "parameters": {"x": None}},
            "parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            {
                "inputs": [DATA],
                "outputs": [{"name": "O", "parameters": {"classification": 1, "shared_memory_region": "r"}}],
            },
            "Output can't set both 'shared_memory_region' and 'classification'",
        ),
        (
            with_input(shape=[1 << 40, 1 << 40]),
            "invalid shape for input 'A': shape [1099511627776,1099511627776] causes total element count to exceed "
            "maximum size of 9223372036854775807",
        ),
        (
            {"inputs": [{**BINARY, "shape": [1 << 62]}]},
            "byte size overflow for input 'A': element count (4611686018427387904) * data type size (4) exceeds "
            "maximum allowed size (9223372036854775807)",
        ),
    ],
)
def test_wrong_meanings_are_invalid_arguments(header: Any, text: str) -> None:
    assert refusal(header) == (ErrorKind.INVALID_ARG, text)


def test_no_shared_memory_region_is_known() -> None:
    inputs = [{**BINARY, "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 64}}]
    assert refusal({"inputs": inputs}) == (ErrorKind.NOT_FOUND, "Unable to find shared memory region: 'r'")


TOO_LARGE = "that exceeds the maximum allowed value of {} bytes. Use --http-max-input-size to increase the limit."


def test_a_tensor_may_not_exceed_the_input_limit() -> None:
    numbers = {"inputs": [{"name": "A", "shape": [99], "datatype": "FP32", "data": []}]}
    text = "JSON input 'A' has a byte_size (396 bytes) " + TOO_LARGE.format(100)
    assert refusal(numbers, 100) == (ErrorKind.INVALID_ARG, text)


def test_length_prefixes_of_strings_count_for_the_limit() -> None:
    strings = {"inputs": [{"name": "A", "shape": [70], "datatype": "BYTES", "data": [""] * 70}]}
    text = "JSON input 'A' has a byte_size (280 bytes) " + TOO_LARGE.format(278)
    assert refusal(strings, 278) == (ErrorKind.INVALID_ARG, text)


def test_the_header_itself_is_limited() -> None:
    assert refusal({"inputs": [DATA]}, 10)[1] == (
        "request JSON size of 68 bytes exceeds the maximum allowed input size of 10 bytes. Use --http-max-input-size "
        "to increase the limit."
    )
