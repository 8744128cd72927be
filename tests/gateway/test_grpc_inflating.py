"""Large compressed messages are inflated in a thread: in their order, within bounds, while others are served."""

from __future__ import annotations

import asyncio
import gzip
import threading
from typing import Any

import pytest

from gateway import grpc_inflating
from gateway.grpc_engine import GrpcEngine
from gateway.grpc_head import GrpcError
from gateway.grpc_inflating import Inflating
from gateway.grpc_message import PREFIX
from gateway.grpc_service import INFER, STREAM
from gateway.http2.frames import DATA, END_STREAM, RST_STREAM, WINDOW_UPDATE, ErrorCode, frame
from gateway.proto import service_pb2
from protocol.errors import InternalError
from tests.gateway.fake_bus import FakeBus
from tests.gateway.grpc_stand import Serve, infer_request
from tests.gateway.test_grpc_connection import RawClient, add_large, framed, large_request, raw_client

# Room for responses.
WINDOW = {4: 8 << 20}
MUCH = frame(WINDOW_UPDATE, 0, 0, (8 << 20).to_bytes(4))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Messages are inflated once it is set."""
    gate = threading.Event()
    finish = Inflating.finish

    def wait_and_finish(inflating: Inflating) -> memoryview:
        gate.wait(20)
        return finish(inflating)

    monkeypatch.setattr(Inflating, "finish", wait_and_finish)
    return gate


def compressed(message: Any) -> bytes:
    data = gzip.compress(message if isinstance(message, bytes) else message.SerializeToString())
    return PREFIX.pack(1, len(data)) + data


def send(raw: RawClient, stream: int, path: str, *messages: bytes, flags: int = END_STREAM) -> None:
    raw.call(stream, path, grpc_encoding="gzip")
    for number, message in enumerate(messages, 1):
        raw.say(frame(DATA, flags if number == len(messages) else 0, stream, message))


def responses(raw: RawClient, stream: int, kind: Any) -> list[Any]:
    data, found = raw.data[stream], []
    while data:
        _, nbytes = PREFIX.unpack_from(data)
        found.append(kind.FromString(data[PREFIX.size : PREFIX.size + nbytes]))
        data = data[PREFIX.size + nbytes :]
    return found


def test_others_are_answered_meanwhile(serve: Serve, gate: Any) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        add_large(bus)
        async with raw_client(engine, WINDOW) as raw:
            raw.say(MUCH)
            send(raw, 1, INFER, compressed(large_request()))
            raw.call(3, message=infer_request("echo", "other"))
            assert await raw.end_of(3) == ("0", "")
            gate.set()
            assert await raw.end_of(1) == ("0", "")
            (response,) = responses(raw, 1, service_pb2.ModelInferResponse)
            assert response.raw_output_contents[0] == large_request().raw_input_contents[0]

    serve(talk)


def test_what_comes_behind_it_on_a_stream_waits_for_it(serve: Serve, gate: Any) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        add_large(bus)
        async with raw_client(engine, WINDOW) as raw:
            raw.say(MUCH)
            first, second = large_request(), large_request()
            first.id, second.id = "1", "3"
            send(
                raw,
                1,
                STREAM,
                compressed(first),
                framed(infer_request("echo", "2")),
                compressed(second),
                framed(infer_request("echo", "4")),
            )
            await raw.alive()
            assert not bus.submitted
            gate.set()
            assert await raw.end_of(1) == ("0", "")
            assert [one.request.request_id for one in bus.submitted] == ["1", "2", "3", "4"]
            found = responses(raw, 1, service_pb2.ModelStreamInferResponse)
            assert sorted(response.infer_response.id for response in found) == ["1", "2", "3", "4"]

    serve(talk)


def test_a_call_may_be_given_up_meanwhile(serve: Serve, gate: Any) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        add_large(bus)
        async with raw_client(engine) as raw:
            for stream in (1, 3):
                send(raw, stream, INFER, compressed(large_request()))
                raw.say(frame(RST_STREAM, 0, stream, ErrorCode.CANCEL.to_bytes(4)))
            await raw.alive()
            gate.set()
            raw.call(5, message=infer_request("echo", "other"))
            assert await raw.end_of(5) == ("0", "")
            await asyncio.sleep(0)
            assert len(bus.submitted) == 1

    serve(talk)


def test_too_much_behind_it_ends_the_call(serve: Serve, gate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        monkeypatch.setattr(grpc_inflating, "_HELD_NBYTES", 1000)
        async with raw_client(engine) as raw:
            send(raw, 1, STREAM, compressed(large_request()), framed(bytes(900)), framed(b""), flags=0)
            assert await raw.end_of(1) == ("8", "too much behind a compressed message")
            gate.set()

    serve(talk)


@pytest.mark.parametrize("cut, status", [(0, ("8", "SERVER: Received message larger than max")), (9, ("13", "Failed"))])
def test_a_message_that_is_none_ends_the_call(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, cut: int, status: tuple[str, str]
) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        monkeypatch.setattr(grpc_inflating, "MAX_NBYTES", 3 << 20)
        data = gzip.compress(bytes(2 << 20 if cut else 5 << 20))[: -cut or None]
        async with raw_client(engine) as raw:
            send(raw, 1, INFER, PREFIX.pack(1, len(data)) + data)
            code, text = await raw.end_of(1)
            assert (code, text[: len(status[1])]) == status

    serve(talk)


def test_a_bomb_is_given_up_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_inflating, "MAX_NBYTES", 10 << 20)
    inflating = Inflating(gzip.compress(bytes(200 << 20)), b"gzip")
    assert inflating.begin() is None
    with pytest.raises(GrpcError):
        inflating.finish()
    assert len(inflating) < 12 << 20


@pytest.mark.parametrize("nbytes", [1, (256 << 10) - 1, (256 << 10) + 1, 3 << 20])
def test_what_is_small_is_whole_at_once(nbytes: int) -> None:
    inflating = Inflating(gzip.compress(bytes(nbytes)), b"gzip")
    begun = inflating.begin()
    assert (begun is not None) == (nbytes < 256 << 10)
    assert (begun if begun is not None else bytes(inflating.finish())) == bytes(nbytes)


def test_one_that_ends_too_early_is_none() -> None:
    data = gzip.compress(bytes(range(256)) * 4000)
    for end in range(20, len(data), 37):
        inflating = Inflating(data[:end], b"gzip")
        with pytest.raises(InternalError, match="ends too early"):
            assert inflating.begin() is None
            inflating.finish()
