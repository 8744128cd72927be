"""The front over real sockets and a broker in memory, on uvloop and on plain asyncio."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from pathlib import Path

import pytest

from gateway.http_front import HttpFront
from protocol.errors import Unavailable
from tests.gateway.fake_bus import FakeBus, memory_in_use
from tests.gateway.http_stand import LIVE, Run, Stand, add_sub, identity, infer

CHUNKED = b"POST /v2/models/id_int8/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSE = "Connection: close\r\n"


def test_tensors_in_binary_both_ways(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            reply = await client.ask(add_sub(id="7", parameters={"binary_data_output": True}))
        size = int(reply.headers["inference-header-content-length"])
        assert reply.status == 200 and reply.headers["content-type"] == "application/octet-stream"
        assert json.loads(reply.body[:size])["id"] == "7"
        assert struct.unpack("<32f", reply.body[size:]) == (2.0,) * 16 + (0.0,) * 16

    run(test)


def test_tensors_in_json_both_ways(run: Run) -> None:
    async def test(stand: Stand) -> None:
        inputs = [{"name": "INPUT0", "shape": [3], "datatype": "FP32", "data": [0.1, 2, 1e21]}]
        async with stand.client() as client:
            reply = await client.ask(infer("id_fp32", {"inputs": inputs}))
        assert reply.status == 200 and reply.headers["content-type"] == "application/json"
        assert "inference-header-content-length" not in reply.headers
        assert b'"data":[0.10000000149011612,2.0,1.000000020040877' in reply.body

    run(test)


def test_a_connection_is_used_again(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            for _ in range(50):
                assert (await client.ask(add_sub())).status == 200
                assert (await client.ask(LIVE)).status == 200
        assert len(stand.bus.submitted) == 50

    run(test)


def test_pipelined_requests_are_answered_in_order(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            client.send(b"".join(add_sub(id=str(number)) + LIVE for number in range(500)))
            for number in range(500):
                assert (await client.reply()).json()["id"] == str(number)
                assert (await client.reply()).body == b""

    run(test)


def test_only_one_request_of_a_connection_runs_at_a_time(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.hold = True
        async with stand.client() as client:
            client.send(add_sub(id="first"))
            await stand.until(lambda: stand.bus.held)
            client.send(add_sub(id="second") + LIVE)
            async with stand.client() as other:  # its answer shows that the loop has turned
                assert (await other.ask(LIVE)).status == 200
            assert len(stand.bus.held) == 1
            stand.bus.held.pop().run()
            assert (await client.reply()).json()["id"] == "first"
            await stand.until(lambda: stand.bus.held)
            stand.bus.held.pop().run()
            assert (await client.reply()).json()["id"] == "second"
            assert (await client.reply()).status == 200

    run(test)


def test_hundreds_of_connections_are_served(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async def one(number: int) -> None:
            async with stand.client() as client:
                assert (await client.ask(add_sub(id=str(number)))).json()["id"] == str(number)

        await asyncio.gather(*map(one, range(300)))

    run(test)


@pytest.mark.parametrize("binary", [True, False])
def test_a_large_tensor_both_ways(run: Run, binary: bool) -> None:
    async def test(stand: Stand) -> None:
        data = bytes(range(256)) * (8 << 10 if binary else 1 << 10)
        async with stand.client() as client:
            for _ in range(3):
                reply = await client.ask(identity(data, binary))
                found = reply.body[-len(data) :] if binary else bytes(reply.json()["outputs"][0]["data"])
                assert found == data

    run(test)


def test_a_large_reply_keeps_its_memory_until_the_client_has_it(run: Run) -> None:
    async def test(stand: Stand) -> None:
        data = bytes(16 << 20)
        async with stand.client() as client:
            client.send(identity(data))
            await stand.until(lambda: stand.bus.submitted and not stand.bus.dataplane.pending)
            assert memory_in_use(stand.bus.stub_store) > len(data)
            assert (await client.reply()).body.endswith(data)
            await stand.until(lambda: memory_in_use(stand.bus.stub_store) == 0)
            assert (await client.ask(LIVE)).status == 200

    run(test)


def test_a_client_that_leaves_amid_a_large_reply_gives_its_memory_back(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            client.send(identity(bytes(16 << 20)))
            await stand.until(lambda: stand.bus.submitted and not stand.bus.dataplane.pending)
            client.writer.transport.abort()
            await stand.until(lambda: memory_in_use(stand.bus.stub_store) == 0)

    run(test)


def test_a_client_that_leaves_cancels_its_request(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.hold = True
        async with stand.client() as client:
            client.send(add_sub())
            await stand.until(lambda: stand.bus.held)
        await stand.until(lambda: stand.bus.submitted[0].cancelled)

    run(test)


def test_a_client_that_leaves_takes_along_what_waits_behind_its_request(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.hold = True
        async with stand.client() as client:
            client.send(add_sub() + identity(bytes(1 << 18)))
            await stand.until(lambda: any(connection._queue for connection in stand.front.connections))
        await stand.bus.wait_for_cancel(0)
        assert len(stand.bus.submitted) == 1

    run(test)


def test_a_client_that_leaves_amid_its_body_leaves_no_memory(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            client.send(identity(bytes(1 << 20))[:-1])
            await stand.until(lambda: memory_in_use(stand.bus.gateway_store) > 0)
        await stand.until(lambda: memory_in_use(stand.bus.gateway_store) == 0)

    run(test)


def test_a_large_body_for_an_unknown_model_takes_no_memory(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            reply = await client.ask(identity(bytes(1 << 20)).replace(b"id_uint8", b"id_xxxxx", 1))
            assert (reply.status, reply.json()) == (
                404,
                {"error": "Request for unknown model: 'id_xxxxx' is not found"},
            )
            assert stand.bus.gateway_store.nbytes == 0
            assert (await client.ask(LIVE)).status == 200

    run(test)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /v2/", 404),
        ("GET /nope", 404),
        ("POST /v2/health/live", 405),
        ("GET /v2/models/add_sub/infer", 405),
        ("PUT /v2/models/add_sub/infer", 405),
        ("OPTIONS /v2", 405),
    ],
)
def test_only_routes_and_their_methods_are_served(run: Run, request_line: str, status: int) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            reply = await client.ask(f"{request_line} HTTP/1.1\r\n\r\n".encode())
            error = "Not Found" if status == 404 else "Method Not Allowed"
            assert (reply.status, reply.json()) == (status, {"error": error})
            assert (await client.ask(LIVE)).status == 200

    run(test)


def test_head_is_not_allowed_and_has_no_body(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            client.send(b"HEAD /v2 HTTP/1.1\r\n\r\n")
            assert (await client.reply(has_body=False)).status == 405
            assert (await client.ask(LIVE)).status == 200

    run(test)


@pytest.mark.parametrize(
    ("version", "header", "stays_open"),
    [
        ("1.1", "", True),
        ("1.1", "Connection: close\r\n", False),
        ("1.0", "", False),
        ("1.0", "Connection: keep-alive\r\n", True),
    ],
)
def test_a_connection_closes_when_the_client_says_so(run: Run, version: str, header: str, stays_open: bool) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            client.send(add_sub(header, version))
            line = await client.reader.readuntil(b"\r\n")
            assert line == f"HTTP/{version} 200 OK\r\n".encode()
            head = await client.reader.readuntil(b"\r\n\r\n")
            body = await client.reader.readexactly(int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]))
            assert json.loads(body)["model_name"] == "add_sub"
            if stays_open:
                assert (await client.ask(LIVE)).status == 200
            else:
                assert await client.is_closed()

    run(test)


def test_expect_is_answered_before_the_body_is_sent(run: Run) -> None:
    async def test(stand: Stand) -> None:
        head, _, body = add_sub("Expect: 100-continue\r\n").partition(b"\r\n\r\n")
        async with stand.client() as client:
            assert (await client.ask(head + b"\r\n\r\n")).status == 100
            assert (await client.ask(body)).status == 200

    run(test)


def test_expect_is_answered_when_its_turn_comes(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.hold = True
        head, _, body = add_sub("Expect: 100-continue\r\n", id="second").partition(b"\r\n\r\n")
        async with stand.client() as client:
            client.send(add_sub(id="first") + head + b"\r\n\r\n")
            await stand.until(lambda: stand.bus.held)
            stand.bus.held.pop().run()
            assert (await client.reply()).json()["id"] == "first"
            assert (await client.reply()).status == 100
            client.send(body)
            await stand.until(lambda: stand.bus.held)
            stand.bus.held.pop().run()
            assert (await client.reply()).json()["id"] == "second"

    run(test)


def test_a_body_that_did_not_wait_for_its_turn_is_not_asked_for(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            client.send(add_sub(id="first") + add_sub("Expect: 100-continue\r\n", id="second"))
            assert (await client.reply()).json()["id"] == "first"
            assert (await client.reply()).json()["id"] == "second"

    run(test)


@pytest.mark.parametrize("good", [LIVE, LIVE * 3, add_sub(), add_sub() + LIVE, add_sub() + add_sub()])
@pytest.mark.parametrize("bad", [b"hello\r\n\r\n", CHUNKED + b"zz\r\n"])
def test_what_is_not_http_is_refused_after_the_good_ones(run: Run, good: bytes, bad: bytes) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            client.send(good + bad)
            for _ in range(good.count(b"HTTP/1.1")):
                assert (await client.reply()).status == 200
            reply = await client.reply()
            assert reply.status == 400 and reply.headers["connection"] == "close"
            assert await client.is_closed()

    run(test)


def test_a_client_that_leaves_after_what_is_not_http_cancels_its_request(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.hold = True
        async with stand.client() as client:
            client.send(add_sub() + b"hello\r\n\r\n")
            await stand.until(lambda: stand.bus.held)
            client.send(b"more")
        await stand.until(lambda: stand.bus.submitted[0].cancelled)

    run(test)


@pytest.mark.parametrize("request_", [LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), add_sub(CLOSE)])
def test_nothing_is_answered_after_a_clients_last_request(run: Run, request_: bytes) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            reply = await client.ask(request_ + LIVE)
            assert reply.status == 200 and reply.headers["connection"] == "close"
            assert await client.is_closed()

    run(test)


def test_an_offer_to_upgrade_is_ignored(run: Run) -> None:
    async def test(stand: Stand) -> None:
        offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
        request = add_sub(offer)
        async with stand.client() as client:
            assert (await client.ask(request)).json()["outputs"][0]["data"] == [2.0] * 16
            cut = request.index(b"\r\n\r\n") + 4
            client.send(request[:cut])
            await asyncio.sleep(0)
            assert (await client.ask(request[cut:])).json()["outputs"][0]["data"] == [2.0] * 16
            assert (await client.ask(LIVE)).status == 200

    run(test)


def test_a_chunked_request_is_served(run: Run) -> None:
    async def test(stand: Stand) -> None:
        body = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "INT8", "data": [5]}]}).encode()
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        head = b"POST /v2/models/id_int8/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with stand.client() as client:
            assert (await client.ask(head + chunks)).json()["outputs"][0]["data"] == [5]

    run(test)


def test_what_is_not_http_ends_the_connection(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            reply = await client.ask(b"hello\r\n\r\n")
            assert reply.status == 400 and reply.headers["connection"] == "close"
            assert await client.is_closed()

    run(test)


def test_draining_lets_running_requests_finish_and_refuses_new_ones(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.hold = True
        async with stand.client() as idle, stand.client() as busy, stand.client() as late:
            assert (await idle.ask(LIVE)).status == 200
            head, _, body = add_sub().partition(b"\r\n\r\n")
            late.send(head)
            busy.send(add_sub())
            await stand.until(lambda: stand.bus.held)
            drain = asyncio.ensure_future(stand.front.drain(20))
            assert await idle.is_closed()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", stand.front.port)
            reply = await late.ask(b"\r\n\r\n" + body)
            assert reply.status == 503 and reply.headers["connection"] == "close"
            assert "Server is stopping" in reply.json()["error"]
            stand.bus.held.pop().run()
            assert (await busy.reply()).status == 200
            assert await busy.is_closed() and await late.is_closed()
            await drain

    run(test)


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_comes_in_the_last_moment_does_not_hold_up_the_exit(run: Run, turns: int) -> None:
    """What was accepted and not made yet when the others were closed stayed open until the deadline."""

    async def test(stand: Stand) -> None:
        with socket.create_connection(("127.0.0.1", stand.front.port)):
            for _ in range(turns):
                await asyncio.sleep(0)
            await stand.front.drain(20)
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not stand.front.connections

    run(test)


def test_draining_ends_at_its_deadline(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.hold = True
        async with stand.client() as client:
            client.send(add_sub())
            await stand.until(lambda: stand.bus.held)
            await stand.front.drain(0.01)
            assert await client.is_closed()
            await stand.bus.wait_for_cancel(0)

    run(test)


def test_a_port_in_use_is_told_in_tritons_words(run: Run) -> None:
    async def test(stand: Stand) -> None:
        second = HttpFront(stand.bus.dataplane, "127.0.0.1", stand.front.port)
        with pytest.raises(Unavailable) as caught:
            await second.start()
        assert str(caught.value) == f"Socket '127.0.0.1:{stand.front.port}' already in use"

    run(test)


def test_an_address_that_is_not_ours_is_told(tmp_path: Path) -> None:
    front = HttpFront(FakeBus(str(tmp_path)).dataplane, "192.0.2.1", 0)
    with pytest.raises(Unavailable, match=r"^Socket '192\.0\.2\.1:0' cannot be opened: "):
        asyncio.run(front.start())
