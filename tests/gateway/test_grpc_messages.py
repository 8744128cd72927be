"""ModelInferRequest bytes to calls, replies to ModelInferResponse bytes: no server, no loop."""

from __future__ import annotations

import struct
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import InferCall, OutputTensor
from gateway.grpc_requests import decode_call, decode_parameters
from gateway.grpc_responses import encode_response
from gateway.grpc_wire import parse_request, varint
from gateway.proto import service_pb2
from protocol.errors import InternalError, InvalidArgument, NotFound, ServingError
from tests.gateway.fake_bus import signature

Request = service_pb2.ModelInferRequest
Contents = service_pb2.InferTensorContents
Parameter = service_pb2.InferParameter


def one_input(datatype: str = "INT32", shape: tuple[int, ...] = (2,), **fields: Any) -> Any:
    request = Request(model_name="m", id="7")
    request.inputs.add(name="IN", datatype=datatype, shape=shape, **fields)
    return request


def decoded(request: Any) -> InferCall:
    parsed = parse_request(request.SerializeToString())
    return decode_call(parsed, signature("m"), decode_parameters(parsed.message))


def refusal(request: Any) -> str:
    with pytest.raises(ServingError) as caught:
        decoded(request)
    return str(caught.value)


# --- the wire -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**64 - 1))
def test_a_varint_is_what_protobuf_writes(value: int) -> None:
    wire = service_pb2.StatisticDuration(count=value).SerializeToString()
    assert (b"\x08" + varint(value) if value else b"") == wire


def test_raw_contents_are_views_of_the_request_and_stay_out_of_the_message() -> None:
    request = one_input("FP32")
    request.raw_input_contents.extend([b"12345678", b""])
    data = request.SerializeToString()
    parsed = parse_request(data)
    assert [bytes(piece) for piece in parsed.raw] == [b"12345678", b""]
    assert all(isinstance(piece, memoryview) and piece.obj is data for piece in parsed.raw)
    assert not parsed.message.raw_input_contents
    assert parsed.message.inputs[0].datatype == "FP32"


def test_requests_that_differ_in_their_data_alone_share_all_else() -> None:
    first, second, other = one_input(), one_input(), one_input(shape=(1,))
    for request, raw in ((first, b"12345678"), (second, b"abcdefgh"), (other, b"wxyz")):
        request.raw_input_contents.append(raw)
    parsed = [parse_request(request.SerializeToString()) for request in (first, second, other)]
    assert parsed[0].head is parsed[1].head and parsed[2].head is not parsed[0].head
    inputs = [decode_call(each, signature("m"), decode_parameters(each.message)).inputs[0] for each in parsed]
    assert [(one.shape, bytes(one.data)) for one in inputs] == [([2], b"12345678"), ([2], b"abcdefgh"), ([1], b"wxyz")]


@given(st.lists(st.integers(0, 2), min_size=2, max_size=6), st.sampled_from(["m", "a:b", ":"]), st.integers(0, 70))
def test_a_head_that_is_known_is_told_from_one_that_begins_alike(kinds: list[int], model: str, size: int) -> None:
    for kind in kinds:
        request = Request(model_name=model)
        if kind > 0:
            request.inputs.add(name="IN", datatype="INT8", shape=(size,))
        request.raw_input_contents.append(b":" * size)
        data = request.SerializeToString()
        if kind == 2:
            data += Request(id="behind").SerializeToString()
        parsed = parse_request(data)
        assert [bytes(piece) for piece in parsed.raw] == [b":" * size]
        assert (parsed.message.model_name, parsed.message.id) == (model, "behind" if kind == 2 else "")
        assert [list(tensor.shape) for tensor in parsed.message.inputs] == ([[size]] if kind > 0 else [])


def test_fields_behind_the_raw_contents_are_read_too() -> None:
    first = Request(model_name="m")
    first.raw_input_contents.append(b"abcd")
    second = Request(id="9", model_version="3")
    second.raw_input_contents.append(b"e" * 200)
    parsed = parse_request(first.SerializeToString() + second.SerializeToString())
    assert (parsed.message.model_name, parsed.message.id, parsed.message.model_version) == ("m", "9", "3")
    assert [bytes(piece) for piece in parsed.raw] == [b"abcd", b"e" * 200]


def test_unknown_fields_are_skipped_as_protobuf_does() -> None:
    request = one_input()
    request.raw_input_contents.append(b"abcdefgh")
    unknown = b"\xa0\x06\x05" + b"\xfa\x06\x02hi"  # field 100 varint, field 111 bytes
    parsed = parse_request(unknown + request.SerializeToString() + unknown)
    assert parsed.message.model_name == "m"
    assert [bytes(piece) for piece in parsed.raw] == [b"abcdefgh"]


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_raise_internal_error(data: bytes) -> None:
    try:
        expected = Request.FromString(data)
    except Exception:
        with pytest.raises(InternalError, match="Unable to parse request"):
            parse_request(data)
        return
    parsed = parse_request(data)
    assert [bytes(piece) for piece in parsed.raw] == list(expected.raw_input_contents)


@given(st.data())
def test_a_truncated_request_never_passes_for_a_whole_one(data: st.DataObject) -> None:
    request = one_input()
    request.raw_input_contents.append(b"x" * 300)
    wire = request.SerializeToString()
    cut = wire[: data.draw(st.integers(0, len(wire) - 1))]
    try:
        expected = Request.FromString(cut)
    except Exception:
        with pytest.raises(InternalError):
            parse_request(cut)
    else:
        assert parse_request(cut).message == expected


# --- inputs -------------------------------------------------------------------------------------------------------

TYPED = [
    ("BOOL", {"bool_contents": [True, False]}, numpy.array([True, False])),
    ("UINT8", {"uint_contents": [1, 255]}, numpy.array([1, 255], "u1")),
    ("UINT16", {"uint_contents": [1, 65535]}, numpy.array([1, 65535], "<u2")),
    ("UINT32", {"uint_contents": [1, 2**32 - 1]}, numpy.array([1, 2**32 - 1], "<u4")),
    ("UINT64", {"uint64_contents": [1, 2**64 - 1]}, numpy.array([1, 2**64 - 1], "<u8")),
    ("INT8", {"int_contents": [1, -128]}, numpy.array([1, -128], "i1")),
    ("INT16", {"int_contents": [1, -32768]}, numpy.array([1, -32768], "<i2")),
    ("INT32", {"int_contents": [1, -(2**31)]}, numpy.array([1, -(2**31)], "<i4")),
    ("INT64", {"int64_contents": [1, -(2**63)]}, numpy.array([1, -(2**63)], "<i8")),
    ("FP32", {"fp32_contents": [1.5, float("inf")]}, numpy.array([1.5, numpy.inf], "<f4")),
    ("FP64", {"fp64_contents": [1.5, -0.0]}, numpy.array([1.5, -0.0], "<f8")),
]


@pytest.mark.parametrize(("datatype", "contents", "expected"), TYPED, ids=[row[0] for row in TYPED])
def test_typed_contents_become_the_binary_form(
    datatype: str, contents: dict[str, list[Any]], expected: numpy.ndarray[Any, Any]
) -> None:
    call = decoded(one_input(datatype, contents=Contents(**contents)))
    assert call.inputs[0].data == expected.tobytes()


def test_typed_strings_become_length_prefixed() -> None:
    call = decoded(one_input("BYTES", contents=Contents(bytes_contents=[b"", b"ab\0", b"x"])))
    assert call.inputs[0].data == b"\0\0\0\0" + b"\3\0\0\0ab\0" + b"\1\0\0\0x"


def test_integers_wrap_when_cut_to_a_narrower_type() -> None:
    assert decoded(one_input("INT8", contents=Contents(int_contents=[257, -129]))).inputs[0].data == b"\x01\x7f"
    assert decoded(one_input("UINT16", contents=Contents(uint_contents=[65537]))).inputs[0].data == b"\x01\0"


def test_raw_contents_count_only_the_inputs_that_take_them() -> None:
    request = Request(model_name="m")
    for name in ("A", "B"):
        request.inputs.add(name=name, datatype="INT8", shape=[1])
    request.raw_input_contents.extend([b"a", b"b", b"ignored"])
    assert [(tensor.name, bytes(tensor.data)) for tensor in decoded(request).inputs] == [("A", b"a"), ("B", b"b")]


def test_an_input_without_data_is_refused() -> None:
    assert refusal(one_input()) == "unable to find data for input tensor 'IN' for model 'm' in request."


def test_contents_beside_raw_contents_are_refused() -> None:
    request = one_input(contents=Contents(int_contents=[1, 2]))
    request.raw_input_contents.append(b"12345678")
    assert refusal(request) == (
        "contents field must not be specified when using raw_input_contents for 'IN' for model 'm'"
    )


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16", "<invalid>"])
def test_contents_of_another_type_are_refused(datatype: str) -> None:
    sent = "NO_SUCH" if datatype == "<invalid>" else datatype
    assert refusal(one_input(sent, contents=Contents(int_contents=[1, 2]))) == (
        f"unexpected explicit tensor data for input tensor 'IN' for model 'm' of type 'INT32', "
        f"expected datatype '{datatype}'"
    )


def test_two_kinds_of_contents_are_refused() -> None:
    request = one_input("INT32", contents=Contents(int_contents=[1, 2], fp32_contents=[1.0]))
    assert refusal(request) == (
        "unexpected explicit tensor data for input tensor 'IN' for model 'm', binary data was already supplied."
    )


def test_an_unknown_datatype_is_passed_on_as_invalid() -> None:
    request = one_input("FLOAT")
    request.raw_input_contents.append(b"12345678")
    assert decoded(request).inputs[0].datatype == "<invalid>"


def test_shape_id_and_requested_outputs_arrive() -> None:
    request = one_input(shape=(2, -1))
    request.raw_input_contents.append(b"")
    request.outputs.add(name="O1")
    request.outputs.add(name="O2")
    call = decoded(request)
    assert (call.inputs[0].shape, call.request_id, call.outputs) == ([2, -1], "7", ["O1", "O2"])


# --- parameters ---------------------------------------------------------------------------------------------------


def parameters(**values: Any) -> Any:
    request = Request()
    for name, value in values.items():
        request.parameters[name].CopyFrom(value)
    return request


def test_free_parameters_keep_their_types() -> None:
    found = decode_parameters(
        parameters(
            s=Parameter(string_param="x"),
            i=Parameter(int64_param=-5),
            b=Parameter(bool_param=True),
            d=Parameter(double_param=0.5),
        )
    )
    assert found.free == {"s": "x", "i": -5, "b": True, "d": 0.5}
    assert found.free["b"] is True


def test_reserved_parameters_are_told_apart() -> None:
    found = decode_parameters(
        parameters(
            sequence_id=Parameter(int64_param=-1),
            sequence_start=Parameter(bool_param=True),
            sequence_end=Parameter(bool_param=True),
            priority=Parameter(uint64_param=3),
            timeout=Parameter(int64_param=1000),
            triton_enable_empty_final_response=Parameter(bool_param=True),
        )
    )
    assert found == ({}, 2**64 - 1, 3, 3, 1000, True)


def test_a_sequence_id_may_be_a_string() -> None:
    assert decode_parameters(parameters(sequence_id=Parameter(string_param="abc"))).correlation_id == "abc"


WRONG = [
    ("sequence_id", Parameter(bool_param=True), "int64_param or string_param."),
    ("sequence_start", Parameter(int64_param=1), "bool_param."),
    ("sequence_end", Parameter(string_param="x"), "bool_param."),
    ("priority", Parameter(string_param="1"), "int64_param or uint64_param."),
    ("timeout", Parameter(uint64_param=1), "int64_param."),
    ("triton_enable_empty_final_response", Parameter(int64_param=1), "bool_param."),
    ("free", Parameter(uint64_param=1), "int64_param, bool_param, or string_param."),
    ("free", Parameter(), "int64_param, bool_param, or string_param."),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_a_parameter_of_the_wrong_type_is_refused(name: str, value: Any, expected: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_parameters(parameters(**{name: value}))
    assert str(caught.value) == f"invalid value type for '{name}' parameter, expected {expected}"


def test_a_negative_priority_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"^invalid value for 'priority', expected value >= 0\.$"):
        decode_parameters(parameters(priority=Parameter(int64_param=-1)))


def test_other_triton_keys_are_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_parameters(parameters(triton_x=Parameter(bool_param=True)))
    assert str(caught.value) == (
        "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with "
        "'triton_' are allowed: triton_enable_empty_final_response"
    )


# --- shared memory and classification ---------------------------------------------------------------------------

REGION = {"shared_memory_region": Parameter(string_param="r"), "shared_memory_byte_size": Parameter(int64_param=8)}
REGION_CASES = [
    ({"shared_memory_offset": Parameter(int64_param=1)},
     "'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 'IN'"),
    ({"shared_memory_byte_size": Parameter(int64_param=1)},
     "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 'IN'"),
    ({"shared_memory_region": Parameter(string_param="r")},
     "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'IN'"),
    ({"shared_memory_region": Parameter(int64_param=1)},
     "invalid value type for 'shared_memory_region' parameter for tensor 'IN', expected string_param."),
    ({**REGION, "shared_memory_offset": Parameter(string_param="1")},
     "invalid value type for 'shared_memory_offset' parameter for tensor 'IN', expected int64_param."),
    (REGION, "Unable to find shared memory region: 'r'"),
]  # fmt: skip


@pytest.mark.parametrize(("given_parameters", "expected"), REGION_CASES)
def test_shared_memory_parameters_are_checked(given_parameters: dict[str, Any], expected: str) -> None:
    assert refusal(one_input(parameters=given_parameters)) == expected
    request = Request(model_name="m")
    request.outputs.add(name="IN", parameters=given_parameters)
    assert refusal(request) == expected


def test_contents_beside_shared_memory_are_refused() -> None:
    assert refusal(one_input(parameters=REGION, contents=Contents(int_contents=[1]))) == (
        "unexpected 'content' provided when using shared memory for input tensor 'IN' for model 'm'"
    )


def test_an_unknown_region_is_not_found() -> None:
    with pytest.raises(NotFound):
        decoded(one_input(parameters=REGION))


CLASSIFICATION = [
    ({"classification": Parameter(string_param="1")},
     "invalid value type for 'classification' parameter, expected int64_param"),
    ({"classification": Parameter(int64_param=0)},
     "invalid value for 'classification' parameter, expected >= 0"),
    ({**REGION, "classification": Parameter(int64_param=1)},
     "output can't set both 'shared_memory_region' and 'classification'"),
]  # fmt: skip


@pytest.mark.parametrize(("given_parameters", "expected"), CLASSIFICATION)
def test_classification_parameters_are_checked(given_parameters: dict[str, Any], expected: str) -> None:
    request = Request(model_name="m")
    request.outputs.add(name="O", parameters=given_parameters)
    assert refusal(request) == expected


def test_outputs_to_classify_are_told_apart() -> None:
    request = one_input(contents=Contents(int_contents=[1, 2]))
    request.outputs.add(name="O", parameters={"classification": Parameter(int64_param=3)})
    request.outputs.add(name="P")
    call = decoded(request)
    assert (call.outputs, call.classes) == (["O", "P"], {"O": 3})


# --- responses ----------------------------------------------------------------------------------------------------


def test_a_response_is_what_protobuf_reads() -> None:
    data = struct.pack("<2f", 1, 2)
    outputs = [OutputTensor("A", "FP32", (1, 2), memoryview(data)), OutputTensor("B", "INT8", (0,), b"")]
    pieces = encode_response("m", "3", "id", {"s": "x", "i": 2, "b": False, "d": 0.5}, outputs)
    response = service_pb2.ModelInferResponse.FromString(b"".join(pieces))
    assert (response.model_name, response.model_version, response.id) == ("m", "3", "id")
    assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == [
        ("A", "FP32", [1, 2]),
        ("B", "INT8", [0]),
    ]
    assert list(response.raw_output_contents) == [data, b""]
    assert response.parameters["b"].WhichOneof("parameter_choice") == "bool_param"
    assert (response.parameters["s"].string_param, response.parameters["i"].int64_param) == ("x", 2)
    assert response.parameters["d"].double_param == 0.5


def test_a_response_beyond_two_gib_is_refused() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(InvalidArgument, match=r"^Response has byte size \d+ which exceeds gRPC's byte size limit"):
        encode_response("m", "1", "", {}, [OutputTensor("A", "UINT8", (2**31,), Huge())])
