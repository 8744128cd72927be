"""generate and generate_stream: documents to calls and replies to documents, then over real sockets."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest

from gateway.calls import InferCall, InputTensor
from gateway.http_generate import read_generate
from gateway.tensors import prefixed
from protocol.errors import InternalError, InvalidArgument, NotFound, ServingError
from tests.gateway.fake_bus import Submitted, Tensor, signature
from tests.gateway.http_stand import Run, Stand, post

MODEL = signature(
    "m",
    {
        "V": ("INT32", (-1,)),
        "F": ("INT32", (2, 2)),
        "VF": ("INT32", (-1, 2)),
        "VV": ("INT32", (-1, -1)),
        "T": ("BYTES", (-1,)),
        "B": ("BOOL", (1,)),
        "D": ("FP64", (-1,)),
        "H": ("FP16", (-1,)),
    },
)
BATCHING = MODEL._replace(max_batch_size=4)


def read(document: Any, model: Any = MODEL, max_input_size: int = 1 << 20) -> InferCall:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_generate(b"identity", body, model, max_input_size)


def refusal(document: Any, max_input_size: int = 1 << 20) -> str:
    with pytest.raises(ServingError) as raised:
        read(document, max_input_size=max_input_size)
    return f"{type(raised.value).__name__}: {raised.value}"


# --- requests ---------------------------------------------------------------------------------------------------


def test_members_are_inputs_or_parameters() -> None:
    call = read({"T": "hello", "stream": True, "V": [1, 2], "temperature": 0.5, "n": 3, "stop": "x", "id": "7"})
    assert call.inputs == [
        InputTensor("T", "BYTES", [1], prefixed([b"hello"])),
        InputTensor("V", "INT32", [2], struct.pack("<2i", 1, 2)),
    ]
    assert call.parameters == {"stream": True, "temperature": 0.5, "n": 3, "stop": "x", "id": "7"}
    assert (call.request_id, call.model, call.version, call.signature) == ("7", "m", 1, MODEL)


def test_members_of_parameters_are_mapped_alike() -> None:
    call = read({"parameters": {"V": 5, "top_k": 3}, "T": ["a", "b"]})
    assert [(tensor.name, tensor.shape) for tensor in call.inputs] == [("V", [1]), ("T", [2])]
    assert call.parameters == {"top_k": 3}


def test_what_means_something_to_infer_is_a_plain_parameter_here() -> None:
    call = read({"sequence_id": 7, "priority": 1, "timeout": 5, "triton_x": True})
    assert call.parameters == {"sequence_id": 7, "priority": 1, "timeout": 5, "triton_x": True}
    assert (call.correlation_id, call.priority, call.timeout_us) == (0, 0, 0)


@pytest.mark.parametrize(
    ("member", "shape"),
    [
        ({"V": [1, 2, 3]}, [3]),
        ({"V": 5}, [1]),
        ({"V": []}, [0]),
        ({"V": [[1]]}, [1]),
        ({"F": [1, 2, 3, 4]}, [2, 2]),
        ({"VF": [1, 2, 3, 4]}, [2, 2]),
        ({"VV": [1, 2, 3]}, [1, 3]),
        ({"B": True}, [1]),
        ({"D": [1, 2.5]}, [2]),
    ],
)
def test_elements_are_spread_over_the_configured_shape(member: Any, shape: list[int]) -> None:
    assert read(member).inputs[0].shape == shape
    assert read(member, BATCHING).inputs[0].shape == [1, *shape]


def test_a_batch_takes_what_fixed_dimensions_leave() -> None:
    assert read({"F": [0] * 8}, BATCHING).inputs[0].shape == [2, 2, 2]


@pytest.mark.parametrize("member", [{"F": [1, 2]}, {"F": [0] * 5}, {"F": []}, {"VF": [1, 2, 3]}, {"F": 1}, {"F": {}}])
def test_elements_that_fit_no_shape_are_refused(member: Any) -> None:
    name = next(iter(member))
    text = f"InvalidArgument: The schema can not convert input '{name}' to tensor with proper shape"
    assert refusal(member) == text


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (b"", "JsonError: failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"[]", "JsonError: attempt to get members for non-object"),
        ({"id": 5}, "JsonError: Unable to parse 'id': attempt to access JSON non-string as string"),
        ({"V": "a"}, "JsonError: Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        ({"T": 3}, "JsonError: Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ({"B": 1}, "JsonError: Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
        (
            {"H": 1.0},
            "InvalidArgument: receiving FP16 data via JSON is not supported. Please use the binary data format for "
            "input H",
        ),
        (
            {"a": [1]},
            "InvalidArgument: parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            {"parameters": 3},
            "JsonError: Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
        (
            {"parameters": {"B": 1}},
            "JsonError: Converting keyword: 'parameters': Unable to parse 'data': attempt to access JSON non-boolean "
            "as boolean",
        ),
        (b'{"V":1,"V":2}', "InvalidArgument: [request id: <id_unknown>] input 'V' already exists in request"),
        (
            {"V": 1, "parameters": {"V": 2}, "id": "x"},
            "InvalidArgument: Converting keyword: 'parameters': [request id: x] input 'V' already exists in request",
        ),
    ],
)
def test_texts_of_refusals(document: Any, text: str) -> None:
    assert refusal(document) == text


def test_an_input_may_be_named_parameters_but_then_nothing_can_be_nested() -> None:
    model = signature("m", {"parameters": ("INT32", (-1,))})
    with pytest.raises(InvalidArgument, match="Keyword 'parameters' for nested schema also given as input tensor name"):
        read({"parameters": {"a": 1}}, model)


def test_inputs_are_limited_in_total() -> None:
    assert refusal({"V": [1] * 10, "D": [0] * 8}, max_input_size=100) == (
        "InvalidArgument: request size of 40 bytes with input 'D' of size 64 bytes exceeds the maximum allowed input "
        "size of 100. Use --http-max-input-size to increase the limit."
    )
    assert "request size of 0 bytes with input 'T' of size 104 bytes" in refusal({"T": "x" * 100}, max_input_size=100)


def test_only_identity_is_taken_as_encoding() -> None:
    with pytest.raises(InvalidArgument, match="Unsupported content-encoding, only 'identity' is supported"):
        read_generate(b"gzip", b"{}", MODEL, 100)


# --- over sockets -------------------------------------------------------------------------------------------------

PLAIN = {"INPUT0": [1, 2]}


def ask(model: str, document: Any = PLAIN, stream: bool = True, headers: str = "", version: str = "1.1") -> bytes:
    path = f"/v2/models/{model}/generate" + ("_stream" if stream else "")
    return post(path, json.dumps(document).encode(), headers, version)


def numbers(*values: float) -> list[Tensor]:
    return [("OUTPUT0", "FP32", (len(values),), struct.pack(f"<{len(values)}f", *values))]


async def decoupled(stand: Stand) -> Submitted:
    """The only request of a model that the test answers."""
    await stand.until(lambda: stand.bus.submitted)
    return stand.bus.submitted[0]


def hold_decoupled(stand: Stand) -> None:
    stand.bus.models["dec"] = lambda entry: None


def event(document: str) -> bytes:
    return b"data: " + document.encode() + b"\n\n"


def test_generate_answers_with_one_document_of_sorted_names(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            for _ in range(2):
                client.send(ask("id_fp32", {"INPUT0": [1, 2.5], "id": "a"}, stream=False))
                head = await client.head()
                assert (head.status, head.headers["content-type"]) == (200, "application/json")
                assert await client.chunks() == [
                    b'{"OUTPUT0":[1.0,2.5],"id":"a","model_name":"id_fp32","model_version":"1"}'
                ]

    run(test)


def test_a_single_element_is_a_scalar_and_none_is_an_empty_array(run: Run) -> None:
    async def test(stand: Stand) -> None:
        for value, text in ((["x"], '"x"'), ([], "[]"), (["x", 'y"'], '["x","y\\""]')):
            async with stand.client() as client:
                client.send(ask("id_string", {"INPUT0": value}))
                await client.head()
                assert await client.chunks() == [
                    event(f'{{"OUTPUT0":{text},"model_name":"id_string","model_version":"1"}}')
                ]

    run(test)


def test_each_response_leaves_as_it_is_made(run: Run) -> None:
    async def test(stand: Stand) -> None:
        hold_decoupled(stand)
        async with stand.client() as client:
            client.send(ask("dec") + ask("id_fp32", {"INPUT0": 1}, stream=False))
            entry = await decoupled(stand)
            entry.answer(numbers(1, 2), final=False, parameters={"index": 0, "OUTPUT0": "shadows the tensor"})
            head = await client.head()
            assert (head.status, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            shadowed = '{"OUTPUT0":"shadows the tensor","index":0,"model_name":"dec","model_version":"1"}'
            assert await client.chunk() == event(shadowed)
            entry.answer(error=NotFound("lost"), final=False)
            assert await client.chunk() == event('{"error":"lost"}')
            entry.answer(numbers(3), final=False)
            assert await client.chunk() == event('{"OUTPUT0":3.0,"model_name":"dec","model_version":"1"}')
            entry.answer()
            assert await client.chunk() == b""
            assert (await client.head()).status == 200  # the connection goes on
            assert len(await client.chunks()) == 1

    run(test)


def test_a_stream_without_responses_is_empty(run: Run) -> None:
    async def test(stand: Stand) -> None:
        hold_decoupled(stand)
        async with stand.client() as client:
            client.send(ask("dec"))
            (await decoupled(stand)).answer()
            assert (await client.head()).status == 200
            assert await client.chunks() == []

    run(test)


def test_the_first_response_decides_the_status(run: Run) -> None:
    async def test(stand: Stand) -> None:
        hold_decoupled(stand)
        async with stand.client() as client:
            client.send(ask("dec"))
            entry = await decoupled(stand)
            entry.answer(error=NotFound("lost"), final=False)
            entry.answer(numbers(3), parameters={"last": True})
            head = await client.head()
            assert (head.status, head.headers["content-type"]) == (404, "text/event-stream; charset=utf-8")
            assert await client.chunks() == [
                event('{"error":"lost"}'),
                event('{"OUTPUT0":3.0,"last":true,"model_name":"dec","model_version":"1"}'),
            ]

    run(test)


@pytest.mark.parametrize("responses", [0, 2, 3])
def test_generate_needs_exactly_one_response(run: Run, responses: int) -> None:
    async def test(stand: Stand) -> None:
        hold_decoupled(stand)
        async with stand.client() as client:
            client.send(ask("dec", stream=False))
            entry = await decoupled(stand)
            for _ in range(responses):
                entry.answer(numbers(1), final=False)
            entry.answer()
            assert (await client.head()).status == 200
            assert await client.chunks() == [
                b'{"error":"generate expects model to produce exactly 1 response, use generate stream for model that '
                b'generates various number of responses"}'
            ]

    run(test)


@pytest.mark.parametrize("flag_apart", [True, False])
def test_generate_takes_the_final_flag_with_the_response_or_after_it(run: Run, flag_apart: bool) -> None:
    async def test(stand: Stand) -> None:
        hold_decoupled(stand)
        async with stand.client() as client:
            client.send(ask("dec", stream=False))
            entry = await decoupled(stand)
            entry.answer(numbers(1), final=not flag_apart)
            if flag_apart:
                entry.answer()
            await client.head()
            assert await client.chunks() == [b'{"OUTPUT0":1.0,"model_name":"dec","model_version":"1"}']

    run(test)


def test_errors_of_the_model_and_of_its_outputs(run: Run) -> None:
    def fail(entry: Submitted) -> None:
        entry.answer(error=InternalError("it broke"))

    async def test(stand: Stand) -> None:
        stand.bus.models["id_fp32"] = fail
        stand.bus.models["id_int32"] = lambda entry: entry.answer([("OUTPUT0", "FP16", (1,), b"ab")])
        texts = {
            "id_fp32": (500, "it broke"),
            "id_int32": (
                400,
                "sending FP16 data via JSON is not supported. Please use the binary data format for output",
            ),
        }
        for model, (status, text) in texts.items():
            async with stand.client() as client:
                client.send(ask(model) + ask(model, stream=False))
                for body in (event(f'{{"error":"{text}"}}'), f'{{"error":"{text}"}}'.encode()):
                    assert (await client.head()).status == status
                    assert await client.chunks() == [body]

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_refused_request_has_a_plain_answer(run: Run, stream: bool) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            reply = await client.ask(ask("nope", stream=stream))
            assert (reply.status, reply.json()) == (404, {"error": "Request for unknown model: 'nope' is not found"})
            reply = await client.ask(ask("add_sub", {"INPUT0": [1] * 16}, stream))
            assert reply.status == 400 and "but missing required input(s) ['INPUT1']" in reply.json()["error"]
            reply = await client.ask(ask("add_sub", {}, stream, "Content-Encoding: gzip\r\n"))
            assert reply.json() == {"error": "Unsupported content-encoding, only 'identity' is supported."}
            assert not stand.bus.submitted

    run(test)


def test_an_old_client_gets_the_events_without_chunks(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            client.send(ask("id_fp32", {"INPUT0": 1}, version="1.0"))
            answer = await client.reader.read()
        head, body = answer.split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 200 OK\r\n") and b"Connection: close" in head and b"chunked" not in head
        assert body + b"\n" == b'data: {"OUTPUT0":1.0,"model_name":"id_fp32","model_version":"1"}\n\n\n'

    run(test)


def test_the_connection_closes_after_a_clients_last_stream(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            client.send(ask("id_fp32", {"INPUT0": 1}, headers="Connection: close\r\n"))
            assert (await client.head()).headers["connection"] == "close"
            assert len(await client.chunks()) == 1
            assert await client.is_closed()

    run(test)


def test_draining_lets_a_stream_finish(run: Run) -> None:
    async def test(stand: Stand) -> None:
        hold_decoupled(stand)
        async with stand.client() as client:
            client.send(ask("dec"))
            entry = await decoupled(stand)
            entry.answer(numbers(1), final=False)
            await client.head()
            drain = asyncio.ensure_future(stand.front.drain(20))
            await asyncio.sleep(0)
            entry.answer(numbers(2))
            assert len(await client.chunks()) == 2
            assert await client.is_closed()
            await drain

    run(test)


def test_a_client_that_leaves_cancels_its_stream(run: Run) -> None:
    async def test(stand: Stand) -> None:
        hold_decoupled(stand)
        async with stand.client() as client:
            client.send(ask("dec"))
            entry = await decoupled(stand)
            entry.answer(numbers(1), final=False)
            await client.head()
        await stand.bus.wait_for_cancel(0)
        entry.answer(numbers(2), final=False)  # the model has not heard of it yet
        await stand.until(lambda: not stand.bus.leases)
        entry.answer()

    run(test)


MANY, LARGE = 30, 1 << 18  # 30 responses of a quarter of a million numbers: far more than any socket holds


def test_a_client_that_does_not_read_leaves_the_responses_in_shared_memory(run: Run) -> None:
    async def test(stand: Stand) -> None:
        hold_decoupled(stand)
        async with stand.client() as client:
            client.send(ask("dec"))
            entry = await decoupled(stand)
            for number in range(MANY):
                entry.answer(numbers(*[number] * LARGE), final=False)
            assert len(stand.bus.leases) > MANY // 2
            entry.answer()
            await client.head()
            for number in range(MANY):
                assert (await client.chunk()).startswith(b'data: {"OUTPUT0":[%d.0,%d.0' % (number, number))
            assert await client.chunk() == b""
            assert not stand.bus.leases

    run(test)


def test_a_client_that_leaves_without_reading_gives_all_memory_back(run: Run) -> None:
    async def test(stand: Stand) -> None:
        hold_decoupled(stand)
        async with stand.client() as client:
            client.send(ask("dec"))
            entry = await decoupled(stand)
            for number in range(MANY):
                entry.answer(numbers(*[number] * LARGE), final=False)
            client.writer.transport.abort()
        await stand.bus.wait_for_cancel(0)
        assert not stand.bus.leases
        entry.answer()

    run(test)


def test_the_load_is_reported_to_who_wants_to_know(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.metrics.new_family("stub", 1, "nv_trt_llm_kv_cache_block_metrics", "", "gauge")
        for number, kind in enumerate(("used", "max", "tokens_per")):
            stand.metrics.new_metric("stub", number, 1, {"kv_cache_block_type": kind}, None)
            stand.metrics.update("stub", number, "set", 8)
        wanted = "Endpoint-Load-Metrics-Format: text\r\n"
        report = "TEXT named_metrics.kv_cache_utilization=1.000000, named_metrics.max_token_capacity=64"
        async with stand.client() as client:
            for headers, expected in (("", None), (wanted, report)):
                client.send(ask("id_fp32", {"INPUT0": 1}, headers=headers))
                assert (await client.head()).headers.get("endpoint-load-metrics") == expected
                await client.chunks()

    run(test)
