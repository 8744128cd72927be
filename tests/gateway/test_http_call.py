"""Inferences by HTTP that go wrong or are compressed, over real sockets and a broker in memory."""

from __future__ import annotations

import asyncio
import gzip
from functools import partial

import pytest

from protocol.errors import error_of
from tests.gateway.fake_bus import Submitted, memory_in_use
from tests.gateway.http_stand import LIVE, Run, Stand, add_sub, identity, infer, post


@pytest.mark.parametrize(
    ("data", "status", "error"),
    [
        (infer("dec", {}), 501, "HTTP end point doesn't support models with decoupled transaction policy"),
        (infer("nope", {}), 404, "Request for unknown model: 'nope' is not found"),
        (infer("add_sub", {}), 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        (
            post("/v2/models/add_sub/infer", b"{}", "Inference-Header-Content-Length: 3\r\n"),
            400,
            "inference header size should be in range (0, 2), got: 3",
        ),
        (
            post("/v2/models/add_sub/infer", b""),
            400,
            "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in "
            "'add_sub' model configuration",
        ),
        (post("/v2/models/add_sub/infer", b"", "Content-Encoding: gzip\r\n"), 400, "nothing to be decompressed"),
    ],
)
def test_refused_inferences(run: Run, data: bytes, status: int, error: str) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            reply = await client.ask(data)
            assert (reply.status, reply.json()) == (status, {"error": error})
            assert reply.headers["content-type"] == "application/json"
            assert (await client.ask(LIVE)).status == 200

    run(test)


@pytest.mark.parametrize(
    ("kind", "status"), [(1, 500), (2, 404), (3, 400), (4, 503), (5, 501), (6, 400), (7, 400), (0, 400)]
)
def test_an_error_of_the_model_has_the_status_of_its_kind(run: Run, kind: int, status: int) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.models["add_sub"] = partial(Submitted.answer, error=error_of(kind, 'said "no"'))
        async with stand.client() as client:
            reply = await client.ask(add_sub())
            assert (reply.status, reply.json()) == (status, {"error": 'said "no"'})

    run(test)


def test_a_model_that_answers_more_than_once_is_an_error(run: Run) -> None:
    def twice(entry: Submitted) -> None:
        entry.echo(final=False)
        entry.echo()

    async def test(stand: Stand) -> None:
        stand.bus.models["id_uint8"] = twice
        async with stand.client() as client:
            for _ in range(2):
                reply = await client.ask(identity(b"x"))
                assert (reply.status, reply.json()) == (500, {"error": "expected a single response, got 2"})

    run(test)


def test_a_large_request_that_is_refused_when_all_of_it_is_here_leaves_nothing(run: Run) -> None:
    async def test(stand: Stand) -> None:
        tensor = {"name": "INPUT0", "shape": [8], "datatype": "UINT8", "parameters": {"binary_data_size": 8}}
        async with stand.client() as client:
            reply = await client.ask(infer("id_uint8", {"inputs": [tensor]}, bytes(1 << 18)))
            assert reply.status == 400 and "unexpected additional input data" in reply.json()["error"]
            assert memory_in_use(stand.bus.gateway_store) == 0

    run(test)


def test_an_output_that_json_cannot_carry_is_an_error(run: Run) -> None:
    async def test(stand: Stand) -> None:
        tensor = {"name": "INPUT0", "shape": [1], "datatype": "FP16", "parameters": {"binary_data_size": 2}}
        async with stand.client() as client:
            reply = await client.ask(infer("id_fp16", {"inputs": [tensor]}, b"\0\0"))
            assert reply.status == 400 and "sending FP16 data via JSON is not supported" in reply.json()["error"]

    run(test)


def test_compressed_requests_and_replies(run: Run) -> None:
    async def test(stand: Stand) -> None:
        _, _, body = add_sub(parameters={"binary_data_output": True}).partition(b"\r\n\r\n")
        size = len(body) - 128
        headers = f"Content-Encoding: gzip\r\nAccept-Encoding: gzip\r\nInference-Header-Content-Length: {size}\r\n"
        async with stand.client() as client:
            reply = await client.ask(post("/v2/models/add_sub/infer", gzip.compress(body), headers))
            assert reply.headers["content-encoding"] == "gzip"
            plain = gzip.decompress(reply.body)
            assert len(plain) - int(reply.headers["inference-header-content-length"]) == 128

    run(test)


def packed(data: bytes, headers: str = "") -> bytes:
    _, _, body = identity(data).partition(b"\r\n\r\n")
    headers += f"Content-Encoding: gzip\r\nInference-Header-Content-Length: {len(body) - len(data)}\r\n"
    return post("/v2/models/id_uint8/infer", gzip.compress(body, 1), headers)


def test_while_a_large_request_is_inflated_others_are_served(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client, stand.client() as other:
            client.send(packed(bytes(48 << 20)))
            assert (await other.ask(LIVE)).status == 200
            assert not stand.bus.submitted
            reply = await client.reply()
            assert reply.status == 200 and reply.body.endswith(bytes(48 << 20))

    run(test)


def test_while_a_large_reply_is_deflated_others_are_served(run: Run) -> None:
    async def test(stand: Stand) -> None:
        data = bytes(range(256)) * (16 << 12)
        stand.bus.hold = True
        async with stand.client() as client, stand.client() as other:
            client.send(packed(data, "Accept-Encoding: gzip\r\n"))
            await stand.until(lambda: stand.bus.held)
            waits = asyncio.create_task(client.reply())
            stand.bus.held.pop().run()
            assert (await other.ask(LIVE)).status == 200
            assert not waits.done()
            reply = await waits
            assert reply.headers["content-encoding"] == "gzip"
            assert gzip.decompress(reply.body).endswith(data)

    run(test)


@pytest.mark.parametrize("when", ["inflating", "deflating"])
def test_a_client_that_leaves_while_its_body_is_packed_leaves_nothing(run: Run, when: str) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            client.send(packed(bytes(16 << 20), "Accept-Encoding: gzip\r\n"))
            if when == "deflating":
                await stand.until(lambda: stand.bus.submitted)
        await stand.until(lambda: not stand.front.connections)
        await stand.until(lambda: memory_in_use(stand.bus.gateway_store) == memory_in_use(stand.bus.stub_store) == 0)

    run(test)


def test_what_is_too_large_or_none_after_much_is_refused(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            reply = await client.ask(packed(bytes(65 << 20)))
            assert reply.status == 400 and "exceeds the maximum allowed value" in reply.json()["error"]
            body = gzip.compress(bytes(1 << 20))[:-9]
            reply = await client.ask(post("/v2/models/id_uint8/infer", body, "Content-Encoding: gzip\r\n"))
            assert reply.json() == {"error": "unable to decompress the request body: it ends too early"}
            assert (await client.ask(LIVE)).status == 200

    run(test)


def test_an_unknown_encoding_is_answered_with_those_we_take(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            reply = await client.ask(post("/v2/models/add_sub/infer", b"{}", "Content-Encoding: br\r\n"))
            assert (reply.status, reply.json()) == (501, {"error": "Unsupported compression type"})
            assert reply.headers["accept-encoding"] == "gzip, deflate"

    run(test)


def test_a_name_with_percent_signs_is_found_decoded(run: Run) -> None:
    async def test(stand: Stand) -> None:
        inputs = [{"name": "INPUT0", "shape": [2], "datatype": "FP32", "data": [1, 2]}]
        async with stand.client() as client:
            assert (await client.ask(infer("a%20b", {"inputs": inputs}))).json()["model_name"] == "a b"

    run(test)
