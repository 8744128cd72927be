"""Bodies to calls and replies to bodies: no HTTP, no socket."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from gateway.calls import InferCall, OutputTensor, Reply
from gateway.http_header import InferHeader
from gateway.http_infer import InferAnswer, read_request, write_reply
from protocol.errors import InvalidArgument
from protocol.messages import Parameters
from protocol.signature import Signature
from tests.gateway.fake_bus import FakeBus, signature

F16 = struct.pack("<16f", *range(16))
TWO = signature("add_sub", {"INPUT0": ("FP32", (16,)), "INPUT1": ("FP32", (16,))})


def binary(name: str, nbytes: int = 64) -> dict[str, Any]:
    return {"name": name, "shape": [16], "datatype": "FP32", "parameters": {"binary_data_size": nbytes}}


def read(header: Any, tail: bytes = b"", model: Signature = TWO) -> InferCall:
    text = json.dumps(header).encode()
    return read_request(memoryview(text + tail), len(text), model, 1 << 20)[0]


def read_raw(data: bytes, model: Signature, max_input_size: int = 1 << 20) -> InferCall:
    call, header = read_request(memoryview(data), 0, model, max_input_size)
    assert header.default_binary
    return call


def test_binary_tensors_follow_in_the_order_of_their_inputs() -> None:
    middle = {"name": "M", "shape": [1], "datatype": "FP32", "data": [1]}
    call = read({"inputs": [binary("INPUT1"), middle, binary("INPUT0")]}, bytes(64) + F16)
    assert [(item.name, bytes(item.data)) for item in call.inputs] == [
        ("INPUT1", bytes(64)),
        ("M", struct.pack("<f", 1)),
        ("INPUT0", F16),
    ]
    assert all(item.offset == -1 for item in call.inputs)


def test_tensors_in_a_block_keep_their_place_where_it_is_aligned(bus: FakeBus) -> None:
    text = json.dumps({"inputs": [binary("INPUT0"), binary("ODD", 4), binary("INPUT1")]}).encode()
    pad = -len(text) % 64
    body = text + F16 + b"abcd" + F16
    block = bus.gateway_store.allocate(pad + len(body))
    block.view[pad:] = body
    call, _ = read_request(block.view[pad:], len(text), TWO, 1 << 20, block, pad)
    first = pad + len(text)
    assert [item.offset for item in call.inputs] == [first, first + 64, -1]
    assert first % 64 == 0 and block.view[first : first + 64] == F16
    assert call.block is block


@pytest.mark.parametrize(
    ("tail", "text"),
    [
        (F16 + F16[:60], "unexpected size for input 'INPUT1', expecting 4 additional bytes for model 'add_sub'"),
        (b"", "unexpected size for input 'INPUT0', expecting 64 additional bytes for model 'add_sub'"),
        (F16 + F16 + b"x", "unexpected additional input data for model 'add_sub'"),
    ],
)
def test_binary_data_must_fit_exactly(tail: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read({"inputs": [binary("INPUT0"), binary("INPUT1")]}, tail)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("model", "data", "shape"),
    [
        (signature("m", {"INPUT0": ("FP32", (-1,))}), F16, [16]),
        (signature("m", {"INPUT0": ("FP32", (-1,))}), b"", [0]),
        (signature("m", {"INPUT0": ("FP32", (-1, 2))}, max_batch_size=4), F16, [1, 8, 2]),
        (signature("m", {"INPUT0": ("FP32", (4, 4))}), F16, [4, 4]),
    ],
)
def test_the_shape_of_a_raw_request_follows_from_its_size(model: Signature, data: bytes, shape: list[int]) -> None:
    [tensor] = read_raw(data, model).inputs
    assert (tensor.name, tensor.shape, tensor.data) == ("INPUT0", shape, data)


def test_a_raw_string_is_the_whole_body() -> None:
    [tensor] = read_raw(b"abc", signature("m", {"INPUT0": ("BYTES", (1,))})).inputs
    assert (tensor.shape, tensor.data) == ([1], b"\3\0\0\0abc")


@pytest.mark.parametrize(
    ("inputs", "data", "text"),
    [
        (
            {"INPUT0": ("FP32", (16,)), "INPUT1": ("FP32", (16,))},
            F16,
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model configuration",
        ),
        (
            {"INPUT0": ("FP32", (-1, -1))},
            F16,
            "The shape of the raw input 'INPUT0' can not be deduced because there are more than one variable-sized "
            "dimension",
        ),
        (
            {"INPUT0": ("BYTES", (-1,))},
            b"abc",
            "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]",
        ),
        (
            {"INPUT0": ("FP32", (-1,))},
            b"abc",
            "input byte size mismatch for input 'raw_input' for model 'm'. Expected 0, got 3",
        ),
        (
            {"INPUT0": ("FP32", (-1, 0))},
            b"abcd",
            "input byte size mismatch for input 'raw_input' for model 'm'. Expected 0, got 4",
        ),
    ],
)
def test_a_raw_request_that_does_not_suit_the_model(inputs: Any, data: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_raw(data, signature("m", inputs))
    assert str(caught.value) == "[request id: <id_unknown>] " + text


def test_a_raw_request_is_limited() -> None:
    with pytest.raises(
        InvalidArgument, match=r"^Raw input has a byte_size \(64 bytes\) that exceeds the maximum allowed"
    ):
        read_raw(F16, signature("m", {"INPUT0": ("FP32", (-1,))}), 63)


# --- replies ----------------------------------------------------------------------------------------------------


def write(
    bus: FakeBus,
    outputs: list[OutputTensor],
    header: InferHeader,
    request_id: str = "",
    parameters: Parameters | None = None,
    max_batch_size: int = 0,
) -> InferAnswer:
    model = TWO._replace(max_batch_size=max_batch_size)
    return write_reply(Reply(model, request_id, outputs, parameters or {}, None, True, False, bus, "stub", 0), header)


def test_a_json_reply(bus: FakeBus) -> None:
    outputs = [OutputTensor("O", "FP32", (2,), struct.pack("<2f", 1, 2)), OutputTensor("P", "BOOL", (), b"\1")]
    parameters: Parameters = {"s": "x", "i": 1, "b": True, "d": 0.5}
    buffers, nbytes, json_nbytes = write(bus, outputs, InferHeader([]), request_id='7"', parameters=parameters)
    assert b"".join(buffers) == (
        b'{"id":"7\\"","model_name":"add_sub","model_version":"1","parameters":{"s":"x","i":1,"b":true,"d":0.5},'
        b'"outputs":[{"name":"O","datatype":"FP32","shape":[2],"data":[1.0,2.0]},'
        b'{"name":"P","datatype":"BOOL","shape":[],"data":[true]}]}'
    )
    assert (nbytes, json_nbytes) == (len(buffers[0]), 0)


def test_binary_outputs_follow_the_json_uncopied(bus: FakeBus) -> None:
    data = memoryview(F16)
    outputs = [OutputTensor("O", "FP32", (16,), data), OutputTensor("P", "FP32", (1,), data[:4])]
    buffers, nbytes, json_nbytes = write(bus, outputs, InferHeader([], binary={"O": True}))
    assert buffers[1] is data
    assert buffers[0] == (
        b'{"model_name":"add_sub","model_version":"1","outputs":[{"name":"O","datatype":"FP32","shape":[16],'
        b'"parameters":{"binary_data_size":64}},{"name":"P","datatype":"FP32","shape":[1],"data":[0.0]}]}'
    )
    assert json_nbytes == len(buffers[0]) == nbytes - 64


def test_unlisted_outputs_follow_the_requests_default(bus: FakeBus) -> None:
    header = InferHeader([], default_binary=True)
    _, nbytes, json_nbytes = write(bus, [OutputTensor("O", "FP32", (16,), F16)], header)
    assert json_nbytes == nbytes - 64


def test_binary_outputs_without_bytes_are_answered_as_json(bus: FakeBus) -> None:
    header = InferHeader([], default_binary=True)
    buffers, _, json_nbytes = write(bus, [OutputTensor("O", "FP32", (0,), b"")], header)
    assert json_nbytes == 0 and b'"binary_data_size":0' in buffers[0]


def test_no_outputs_are_an_empty_list(bus: FakeBus) -> None:
    buffers, _, _ = write(bus, [], InferHeader([]))
    assert buffers == [b'{"model_name":"add_sub","model_version":"1","outputs":[]}']
