from __future__ import annotations

import struct

import pytest

from gateway.calls import InputTensor
from protocol.errors import InvalidArgument
from protocol.signature import Signature, TensorSpec
from protocol.validation import Checker, byte_size, element_count


def signature(*inputs: TensorSpec, max_batch_size: int = 0) -> Signature:
    outputs = (TensorSpec("OUTPUT0", "FP32", (16,)),)
    return Signature("m", 1, "python", max_batch_size, False, inputs, outputs, "{}", b"")


def fp32(name: str, shape: list[int], nbytes: int | None = None) -> InputTensor:
    count = 1
    for dim in shape:
        count *= dim
    return InputTensor(name, "FP32", shape, bytes(count * 4 if nbytes is None else nbytes))


TWO = Checker(signature(TensorSpec("A", "FP32", (16,)), TensorSpec("B", "FP32", (16,))))
BATCHING = Checker(signature(TensorSpec("A", "FP32", (16,)), TensorSpec("B", "FP32", (16,)), max_batch_size=8))
VARIABLE = Checker(signature(TensorSpec("A", "FP32", (-1, 2))))
STRINGS = Checker(signature(TensorSpec("A", "BYTES", (-1,))))
OPTIONAL = Checker(signature(TensorSpec("A", "FP32", (2,)), TensorSpec("B", "FP32", (2,), optional=True)))


def refusal(checker: Checker, *inputs: InputTensor, id: str = "", outputs: list[str] | None = None) -> str:
    with pytest.raises(InvalidArgument) as caught:
        checker.check(id, inputs, outputs or [])
    return str(caught.value)


def test_the_configured_shapes_pass() -> None:
    assert TWO.check("", [fp32("B", [16]), fp32("A", [16])], ["OUTPUT0"]) == [(16,), (16,)]


def test_a_batch_within_the_limit_passes() -> None:
    assert BATCHING.check("", [fp32("A", [8, 16]), fp32("B", [8, 16])], []) == [(8, 16), (8, 16)]


def test_variable_dimensions_take_any_size_even_none() -> None:
    assert VARIABLE.check("", [fp32("A", [5, 2])], []) == [(5, 2)]
    assert VARIABLE.check("", [fp32("A", [0, 2])], []) == [(0, 2)]


def test_an_optional_input_may_be_left_out() -> None:
    assert OPTIONAL.check("", [fp32("A", [2])], []) == [(2,)]


def test_reshape_carries_wildcards_left_to_right() -> None:
    checker = Checker(signature(TensorSpec("A", "FP32", (-1, 2, -1), reshape=(-1, 1, -1, 2))))
    assert checker.check("", [fp32("A", [3, 2, 5])], []) == [(3, 1, 5, 2)]


def test_reshape_of_a_fixed_shape_keeps_the_batch() -> None:
    checker = Checker(signature(TensorSpec("A", "FP32", (4,), reshape=(2, 2)), max_batch_size=4))
    assert checker.check("", [fp32("A", [3, 4])], []) == [(3, 2, 2)]


def test_reshape_without_batching() -> None:
    checker = Checker(signature(TensorSpec("A", "FP32", (1,), reshape=())))
    assert checker.check("", [fp32("A", [1])], []) == [()]


def test_a_ragged_input_takes_any_dimensions() -> None:
    checker = Checker(signature(TensorSpec("A", "FP32", (-1,), ragged=True), max_batch_size=4))
    assert checker.check("", [fp32("A", [1, 7])], []) == [(1, 7)]


@pytest.mark.parametrize(
    ("checker", "inputs", "text"),
    [
        (
            TWO,
            [fp32("A", [16])],
            "expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing required input(s) "
            "['B']. Please provide all required input(s).",
        ),
        (
            TWO,
            [],
            "expected 2 inputs but got 0 inputs for model 'm'. Got input(s) [], but missing required input(s) "
            "['A','B']. Please provide all required input(s).",
        ),
        (
            TWO,
            [fp32("A", [16]), fp32("B", [16]), fp32("C", [1])],
            "expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['C','B','A'], but missing required "
            "input(s) ]. Please provide all required input(s).",
        ),
        (
            OPTIONAL,
            [],
            "expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. Got input(s) [], but missing "
            "required input(s) ['A']. Please provide all required input(s).",
        ),
        (TWO, [fp32("A", [16]), fp32("A", [16])], "input 'A' already exists in request"),
        (
            TWO,
            [fp32("A", [16]), fp32("B", [16])._replace(datatype="INT32")],
            "inference input 'B' data-type is 'INT32', but model 'm' expects 'FP32'",
        ),
        (
            TWO,
            [fp32("A", [8]), fp32("B", [16])],
            "unexpected shape for input 'A' for model 'm'. Expected [16], got [8]. ",
        ),
        (
            TWO,
            [fp32("A", [16]), fp32("B", [-1], 0)],
            "All input dimensions should be specified for input 'B' for model 'm', got [-1]",
        ),
        (
            TWO,
            [fp32("A", [16]), fp32("B", [16], 60)],
            "input byte size mismatch for input 'B' for model 'm'. Expected 64, got 60",
        ),
        (
            BATCHING,
            [fp32("A", [2, 16]), fp32("B", [1, 16])],
            "input 'A' batch size does not match other inputs for 'm'",
        ),
        (BATCHING, [fp32("A", [9, 16]), fp32("B", [9, 16])], "inference request batch-size must be <= 8 for 'm'"),
        (
            BATCHING,
            [fp32("A", [], 0), fp32("B", [], 0)],
            "input 'B' has no shape but model requires batch dimension for 'm'",
        ),
        (
            BATCHING,
            [fp32("A", [0, 16]), fp32("B", [0, 16])],
            "input byte size mismatch for input 'B' for model 'm'. Expected 64, got 0",
        ),
    ],
)
def test_refusals_are_in_tritons_words(checker: Checker, inputs: list[InputTensor], text: str) -> None:
    assert refusal(checker, *inputs) == "[request id: <id_unknown>] " + text


def test_a_wrong_shape_of_a_batching_model_explains_the_batch_dimension() -> None:
    text = refusal(BATCHING, fp32("A", [1, 8]), fp32("B", [1, 16]), id="7")
    assert text.startswith(
        "[request id: 7] unexpected shape for input 'A' for model 'm'. Expected [-1,16], got [1,8]. NOTE: Setting a "
        "non-zero max_batch_size in the model config requires a batch dimension to be prepended"
    )


def test_an_unknown_output_is_refused_first() -> None:
    text = refusal(TWO, fp32("A", [16]), outputs=["NOPE"])
    assert text == "unexpected inference output 'NOPE' for model 'm'"


def test_an_unknown_input_is_refused_without_the_request_id() -> None:
    text = refusal(TWO, fp32("A", [16]), fp32("C", [16]), id="7")
    assert text == "unexpected inference input 'C' for model 'm'"


def strings(*items: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def test_string_elements_may_be_empty_or_hold_any_byte() -> None:
    assert STRINGS.check("", [InputTensor("A", "BYTES", [3], strings(b"", b"\0\xff", b"x"))], []) == [(3,)]


@pytest.mark.parametrize(
    ("count", "data", "text"),
    [
        (3, strings(b"a", b""), "expected 3 string elements for inference input 'A' for model 'm', got 2"),
        (
            1,
            strings(b"a", b"b"),
            "unexpected number of string elements 2 for inference input 'A' for model 'm', expecting 1",
        ),
        (
            2,
            strings(b"a") + b"\1\0",
            "incomplete string length indicator for inference input 'A' for model 'm', expecting 4 bytes but only 2 "
            "bytes available. Please make sure the string length indicator is in one buffer.",
        ),
    ],
)
def test_string_elements_are_counted(count: int, data: bytes, text: str) -> None:
    assert refusal(STRINGS, InputTensor("A", "BYTES", [count], data), id="z") == "[request id: z] " + text


def test_a_string_may_not_reach_past_its_tensor() -> None:
    text = refusal(STRINGS, InputTensor("A", "BYTES", [1], struct.pack("<I", 1 << 31) + b"abc"))
    assert text == (
        "incomplete string data for inference input 'A', expecting string of length 2147483648 but only 3 bytes "
        "available"
    )


def test_sizes_past_64_bits_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"shape <?\[4294967296,4294967296\]>? causes total element count"):
        element_count("A", [1 << 32, 1 << 32])
    with pytest.raises(InvalidArgument, match=r"byte size overflow for input 'A': element count \(4611686018427387904"):
        byte_size("A", 1 << 62, 4)
