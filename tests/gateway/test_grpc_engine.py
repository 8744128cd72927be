"""What the transport adds to the service: many calls at once, cancelling, limits, compression, and its end."""

from __future__ import annotations

import asyncio
import queue
import socket
from typing import Any

import grpc
import grpc.aio
import numpy
import pytest
import tritonclient.grpc as client

from gateway.grpc_engine import GrpcEngine
from protocol.errors import Unavailable
from tests.gateway.fake_bus import FakeBus, Submitted, signature
from tests.gateway.grpc_stand import (
    SERVICE,
    SHUTTING_DOWN,
    Serve,
    channel_to,
    infer_request,
    status_of,
    stream_call,
    tensor,
    unary_call,
    with_client,
)


def test_unknown_methods_are_unimplemented(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            for method in (SERVICE + "NoSuch", "/other.Service/ServerLive", "/grpc.health.v1.Health/Watch"):
                assert await channel.unary_unary(method)(b"").code() is grpc.StatusCode.UNIMPLEMENTED

    serve(talk)


def test_a_malformed_message_is_an_internal_error(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            for method in ("ServerLive", "ModelInfer", "ModelConfig"):
                call = channel.unary_unary(SERVICE + method)(b"\xff\xff\xff")
                assert await status_of(call) == (grpc.StatusCode.INTERNAL, "Unable to parse request")

    serve(talk)


def test_a_taken_port_is_said_so(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        second = GrpcEngine(engine._service, "127.0.0.1", engine.port)
        with pytest.raises(Unavailable) as caught:
            await second.start()
        assert str(caught.value) == f"Socket '127.0.0.1:{engine.port}' already in use"

    serve(talk)


def test_all_addresses_are_those_of_ipv6_too(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        second = GrpcEngine(engine._service, "0.0.0.0", 0)
        await second.start()
        third = GrpcEngine(engine._service, "0.0.0.0", second.port)
        with pytest.raises(Unavailable, match="already in use"):
            await third.start()
        for host in ("127.0.0.1", "[::1]") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            async with grpc.aio.insecure_channel(f"{host}:{second.port}") as channel:
                assert await channel.unary_unary(SERVICE + "ServerLive")(b"") == b"\x08\x01"
        await second.drain(0)

    serve(talk)


def test_two_hundred_requests_in_flight_find_their_callers(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        done: queue.Queue[tuple[Any, Any]] = queue.Queue()

        def callback(result: Any, error: Any) -> None:
            done.put((result, error))

        for number in range(200):
            array = numpy.array([number], numpy.int32)
            triton.async_infer("echo", [tensor(array)], callback, request_id=str(number))
        for _ in range(200):
            result, error = done.get(timeout=10)
            assert error is None
            assert str(result.as_numpy("OUT")[0]) == result.get_response().id

    with_client(serve, talk)


def test_a_client_that_cancels_cancels_its_request(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            call = unary_call(channel, infer_request())
            await bus.wait_for(1)
            call.cancel()
            await bus.wait_for_cancel(0)
            bus.submitted[0].echo()

    serve(talk)


def test_a_deadline_cancels_the_request(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            call = unary_call(channel, infer_request(), timeout=0.2)
            await bus.wait_for(1)
            assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await bus.wait_for_cancel(0)
            assert bus.submitted[0].request.timeout_us == 0
            bus.submitted[0].echo()

    serve(talk)


def test_compressed_requests_are_read(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        for algorithm in ("gzip", "deflate"):
            array = numpy.arange(10_000, dtype=numpy.int32)
            result = triton.infer("echo", [tensor(array)], compression_algorithm=algorithm)
            numpy.testing.assert_array_equal(result.as_numpy("OUT"), array)

    with_client(serve, talk)


def test_a_message_far_beyond_grpc_s_default_limit_passes_both_ways(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
        bus.add(signature("typed", {"IN": ("UINT8", (-1,))}), Submitted.echo)
        array = numpy.arange(16 << 20, dtype=numpy.uint8)
        result = triton.infer("typed", [tensor(array, "UINT8")])
        assert numpy.array_equal(result.as_numpy("OUT"), array)

    with_client(serve, talk)


def test_draining_refuses_new_requests_and_finishes_running_ones(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            running = asyncio.ensure_future(_awaited(unary_call(channel, infer_request())))
            stream = stream_call(channel)
            await stream.write(infer_request(id="on stream"))
            unary, streamed = await bus.wait_for(2)
            draining = asyncio.create_task(engine.drain(20))
            await asyncio.sleep(0)
            refused = unary_call(channel, infer_request())
            assert await status_of(refused) == (grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)
            await stream.write(infer_request(id="late"))
            live = channel.unary_unary(SERVICE + "ServerLive")
            assert await live(b"") == b"\x08\x01"
            assert not draining.done()
            unary.echo()
            streamed.echo()
            assert (await running).raw_output_contents
            messages = [await stream.read() for _ in range(2)]
            assert [(message.infer_response.id, message.error_message) for message in messages] == [
                ("on stream", ""),
                ("late", SHUTTING_DOWN),
            ]
            assert await status_of(stream) == (grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)
            await draining

    serve(talk)


def test_the_deadline_of_a_drain_cancels_what_still_runs(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            call = unary_call(channel, infer_request())
            (entry,) = await bus.wait_for(1)
            await engine.drain(0.1)
            await bus.wait_for_cancel(0)
            assert await call.code() is not grpc.StatusCode.OK
            entry.echo()

    serve(talk)


async def _awaited(call: Any) -> Any:
    return await call
