"""What only a client that speaks HTTP/2 by hand can see: windows, resets, cut messages, and who keeps what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import hpack
import numpy
import pytest
import tritonclient.grpc as client

from gateway.grpc_engine import GrpcEngine
from gateway.grpc_message import PREFIX
from gateway.grpc_service import INFER, STREAM
from gateway.http2 import frames
from gateway.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    ErrorCode,
    frame,
)
from gateway.http2.headers import encode
from gateway.proto import service_pb2
from tests.gateway.fake_bus import FakeBus, Submitted, signature
from tests.gateway.grpc_stand import (
    SERVICE,
    Serve,
    channel_to,
    infer_request,
    status_of,
    stream_call,
    tensor,
    unary_call,
)

LARGE_NBYTES = 1 << 20


class RawClient:
    """One connection; frames are read until the one that is waited for."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = hpack.Decoder()
        self.data: dict[int, bytes] = {}  # what streams have brought
        self.headers: dict[int, dict[str, str]] = {}

    def say(self, *said: bytes) -> None:
        self._writer.write(b"".join(said))

    def call(self, stream: int, path: str = INFER, message: Any = None, flags: int = END_STREAM, **more: str) -> None:
        headers = [(":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc")]
        given = [(name.replace("_", "-"), value) for name, value in more.items()]
        block = encode([(name.encode(), value.encode()) for name, value in dict([*headers, *given]).items()])
        self.say(frame(HEADERS, END_HEADERS, stream, block))
        if message is not None:
            self.say(frame(DATA, flags, stream, framed(message)))

    async def next(self) -> tuple[int, int, int, bytes]:
        high, low, kind, flags, stream = HEAD.unpack(await self._reader.readexactly(HEAD.size))
        payload = await self._reader.readexactly(high << 16 | low)
        if kind == DATA:
            self.data[stream] = self.data.get(stream, b"") + payload
        elif kind == HEADERS:
            self.headers.setdefault(stream, {}).update(
                {str(name): str(value) for name, value in self._decoder.decode(payload)}
            )
        return kind, flags, stream, payload

    async def until(self, done: Callable[[int, int, int], bool]) -> bytes:
        while True:
            kind, flags, stream, payload = await self.next()
            if done(kind, flags, stream):
                return payload

    async def end_of(self, stream: int) -> tuple[str, str]:
        """Its status and message."""
        await self.until(lambda kind, flags, at: kind == HEADERS and bool(flags & END_STREAM) and at == stream)
        return self.headers[stream].get("grpc-status", ""), self.headers[stream].get("grpc-message", "")

    async def alive(self) -> None:
        """All that was said has been heard."""
        self.say(frame(PING, 0, 0, b"whatever"))
        await self.until(lambda kind, flags, stream: kind == PING)

    async def at_end(self) -> bool:
        return await self._reader.read() == b""

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def raw_client(engine: GrpcEngine, settings: dict[int, int] | None = None) -> AsyncIterator[RawClient]:
    raw = RawClient(*await asyncio.open_connection("127.0.0.1", engine.port))
    raw.say(PREFACE, frames.settings(settings or {}))
    try:
        yield raw
    finally:
        raw.close()


def framed(message: Any) -> bytes:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return PREFIX.pack(0, len(data)) + data


def large_request(model: str = "large") -> Any:
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="IN", datatype="UINT8", shape=[LARGE_NBYTES])
    request.raw_input_contents.append(numpy.arange(LARGE_NBYTES, dtype=numpy.uint8).tobytes())
    return request


def add_large(bus: FakeBus) -> None:
    bus.add(signature("large", {"IN": ("UINT8", (-1,))}), Submitted.echo)


def test_a_call_by_hand(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with raw_client(engine) as raw:
            raw.call(1, message=infer_request("echo", "mine"))
            assert await raw.end_of(1) == ("0", "")
            response = service_pb2.ModelInferResponse.FromString(raw.data[1][PREFIX.size :])
            assert response.id == "mine"

    serve(talk)


def test_a_large_answer_leaves_as_the_client_s_windows_open_and_is_held_until_then(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        add_large(bus)
        request = large_request()
        async with raw_client(engine) as raw:
            raw.call(1, message=None)
            body = framed(request)
            for start in range(0, len(body), 300_000):
                last = start + 300_000 >= len(body)
                raw.say(frame(DATA, END_STREAM if last else 0, 1, body[start : start + 300_000]))
            while len(raw.data.get(1, b"")) < 65535:
                await raw.next()
            await raw.alive()
            assert len(raw.data[1]) == 65535 and bus.leases
            raw.say(frames.window_update(0, 2 * LARGE_NBYTES), frames.window_update(1, 2 * LARGE_NBYTES))
            assert await raw.end_of(1) == ("0", "")
            response = service_pb2.ModelInferResponse.FromString(raw.data[1][PREFIX.size :])
            assert response.raw_output_contents == request.raw_input_contents
        await gone(bus)

    serve(talk)


def test_large_requests_that_wait_together_keep_their_data(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        bus.add(signature("waiting", {"IN": ("UINT8", (-1,))}))
        async with channel_to(engine) as channel:
            calls = []
            for number in range(4):
                request = large_request("waiting")
                request.raw_input_contents[0] = bytes([number]) * LARGE_NBYTES
                calls.append(asyncio.ensure_future(_awaited(unary_call(channel, request))))
            for entry in await bus.wait_for(4):
                entry.echo()
            for number, call in enumerate(calls):
                assert (await call).raw_output_contents[0] == bytes([number]) * LARGE_NBYTES

    serve(talk)


async def _awaited(call: Any) -> Any:
    return await call


async def gone(bus: FakeBus) -> None:
    """Until all outputs are released."""
    async with asyncio.timeout(10):
        while bus.leases:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("leave", ["resets the stream", "closes the connection"])
def test_what_a_client_does_not_take_is_released_when_it_goes(serve: Serve, leave: str) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        add_large(bus)
        async with raw_client(engine, {frames.INITIAL_WINDOW_SIZE: 100}) as raw:
            raw.call(1, message=None)
            body = framed(large_request())
            raw.say(frame(DATA, 0, 1, body[:500_000]), frame(DATA, END_STREAM, 1, body[500_000:]))
            await raw.until(lambda kind, flags, stream: kind == DATA)
            assert bus.leases
            if leave == "resets the stream":
                raw.say(frames.rst_stream(1, ErrorCode.CANCEL))
                await raw.alive()
            else:
                raw.close()
            await gone(bus)

    serve(talk)


def test_a_stream_s_replies_wait_unrendered_for_a_slow_client(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with raw_client(engine, {frames.INITIAL_WINDOW_SIZE: 10}) as raw:
            raw.call(1, STREAM, infer_request("decoupled"))
            (entry,) = await bus.wait_for(1)
            for _ in range(100):
                entry.echo(final=False)
            entry.answer()
            await raw.until(lambda kind, flags, stream: kind == DATA)
            await raw.alive()
            assert len(bus.leases) == 99
            raw.say(frames.window_update(1, 1 << 20))
            assert await raw.end_of(1) == ("0", "")
            await gone(bus)
        assert len(messages(raw.data[1])) == 100

    serve(talk)


def messages(data: bytes) -> list[bytes]:
    found = []
    while data:
        _, nbytes = PREFIX.unpack_from(data)
        found.append(data[PREFIX.size : PREFIX.size + nbytes])
        data = data[PREFIX.size + nbytes :]
    return found


def test_a_slow_stream_does_not_hold_up_others(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with raw_client(engine, {frames.INITIAL_WINDOW_SIZE: 10}) as raw:
            raw.call(1, message=infer_request("echo"))
            await raw.until(lambda kind, flags, stream: kind == DATA)
            raw.call(3, message=infer_request("echo"))
            raw.say(frames.window_update(3, 1000))
            assert await raw.end_of(3) == ("0", "")

    serve(talk)


@pytest.mark.parametrize(
    "said, status",
    [
        ({"method": INFER, "data": b""}, "13"),
        ({"method": INFER, "data": framed(b"abc")[:-1]}, "13"),
        ({"method": STREAM, "data": framed(b"abc")[:-1]}, "13"),
        ({"method": STREAM, "data": b""}, "0"),
        ({"method": STREAM, "data": framed(b"\xff\xff")}, "13"),
        ({"method": INFER, "data": PREFIX.pack(0, 2**32 - 1)}, "8"),
        ({"method": STREAM, "data": PREFIX.pack(0, 2**32 - 1)}, "8"),
        ({"method": INFER, "data": PREFIX.pack(1, 1) + b"x", "encoding": "snappy"}, "12"),
        ({"method": "/nowhere", "data": framed(b"abc")}, "12"),
    ],
)
def test_what_is_no_call_has_its_status(serve: Serve, said: dict[str, Any], status: str) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with raw_client(engine) as raw:
            raw.call(1, said["method"], grpc_encoding=said.get("encoding", "identity"))
            raw.say(frame(DATA, END_STREAM, 1, said["data"]))
            assert (await raw.end_of(1))[0] == status
            await raw.alive()

    serve(talk)


def test_what_is_no_grpc_is_answered_by_http(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with raw_client(engine) as raw:
            raw.call(1, message=b"", content_type="application/json")
            await raw.end_of(1)
            assert raw.headers[1] == {":status": "415"}

    serve(talk)


def test_a_client_of_http_1_is_turned_away(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        raw = RawClient(*await asyncio.open_connection("127.0.0.1", engine.port))
        raw.say(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reason = await raw.until(lambda kind, flags, stream: kind == GOAWAY)
        assert reason[4:8] == bytes((0, 0, 0, ErrorCode.PROTOCOL_ERROR))
        assert await raw.at_end()
        raw.close()

    serve(talk)


def test_a_deadline_is_kept_by_the_server_too(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with raw_client(engine) as raw:
            raw.call(1, message=infer_request(), grpc_timeout="50m")
            assert await raw.end_of(1) == ("4", "Deadline Exceeded")
            await bus.wait_for_cancel(0)
            bus.submitted[0].echo()
            raw.call(3, STREAM, infer_request(), flags=0, grpc_timeout="50m")
            assert await raw.end_of(3) == ("4", "Deadline Exceeded")
            assert await raw.until(lambda kind, flags, stream: kind == RST_STREAM) == bytes(4)
            bus.submitted[1].echo()

    serve(talk)


def test_an_idle_connection_is_told_of_the_end_and_closed(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with raw_client(engine) as raw:
            await raw.alive()
            await engine.drain(1)
            await raw.until(lambda kind, flags, stream: kind == GOAWAY)
            assert await raw.at_end()

    serve(talk)


def test_a_client_that_reads_nothing_is_not_read_without_end(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with raw_client(engine, {frames.INITIAL_WINDOW_SIZE: 2**31 - 1}) as raw:
            add_large(bus)
            raw.say(frames.window_update(0, 2**30))
            body = framed(large_request())
            for stream in range(1, 60, 2):
                raw.call(stream)
                raw.say(frame(DATA, 0, stream, body[:500_000]), frame(DATA, END_STREAM, stream, body[500_000:]))
            (connection,) = engine._connections
            while not connection._blocked:
                await asyncio.sleep(0.001)
            ping = frame(PING, 0, 0, bytes(8))
            for _ in range(16):
                raw.say(ping * 1000)
            while not connection._paused:
                await asyncio.sleep(0.001)
            pongs = 0
            while pongs < 16_000:
                pongs += (await raw.next())[0] == PING
            assert not connection._paused

    serve(talk)


# --- clients that we did not write ------------------------------------------------------------------------------------


def test_pings_of_an_eager_client_are_answered(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        options = client.KeepAliveOptions(
            keepalive_time_ms=50,
            keepalive_timeout_ms=5000,
            keepalive_permit_without_calls=True,
            http2_max_pings_without_data=0,
        )

        def calls() -> None:
            with client.InferenceServerClient(f"127.0.0.1:{engine.port}", keepalive_options=options) as triton:
                for _ in range(3):
                    triton.infer("echo", [tensor()])
                with pytest.raises(client.InferenceServerException, match="Deadline Exceeded"):
                    triton.infer("manual", [tensor()], client_timeout=0.5)
                triton.infer("echo", [tensor()])

        await asyncio.to_thread(calls)
        bus.submitted[3].echo()

    serve(talk)


def test_many_streams_and_calls_share_one_connection(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        add_large(bus)
        async with channel_to(engine) as channel:

            async def stream(number: int) -> None:
                call = stream_call(channel)
                for index in range(20):
                    await call.write(infer_request("echo", f"{number}-{index}"))
                await call.done_writing()
                ids = [message.infer_response.id async for message in call]
                assert ids == [f"{number}-{index}" for index in range(20)]
                assert await status_of(call) == (grpc.StatusCode.OK, "")

            async def infer(request: Any) -> None:
                method = channel.unary_unary(
                    SERVICE + "ModelInfer",
                    service_pb2.ModelInferRequest.SerializeToString,
                    service_pb2.ModelInferResponse.FromString,
                )
                response = await method(request)
                assert response.raw_output_contents == request.raw_input_contents

            larges = [infer(large_request()) for _ in range(8)]
            await asyncio.gather(*map(stream, range(8)), *larges, *(infer(infer_request("echo")) for _ in range(40)))

    serve(talk)
