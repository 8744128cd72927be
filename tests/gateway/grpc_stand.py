"""A gRPC engine on a real socket over the fake bus, and clients for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import numpy
import pytest
import tritonclient.grpc as client
import uvloop
from tritonclient.utils import InferenceServerException

from gateway.grpc_engine import GrpcEngine
from gateway.grpc_service import GrpcService
from gateway.proto import service_pb2
from tests.gateway.fake_bus import PLAIN, FakeBus, Submitted, signature

SERVICE = "/inference.GRPCInferenceService/"
SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."
NUMBERS = numpy.array([1, 2, 3], numpy.int32)

Test = Callable[[FakeBus, GrpcEngine], Awaitable[None]]
Serve = Callable[[Test], None]


@asynccontextmanager
async def engine_over(bus: FakeBus) -> AsyncIterator[GrpcEngine]:
    engine = GrpcEngine(GrpcService(bus.dataplane), "127.0.0.1", 0)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.drain(0)
        for _ in range(4):  # what is released is told at the end of the next turn
            await asyncio.sleep(0)
        bus.gateway_store.check()
        assert not bus.leases, "outputs were not released"


def serve_grpc(directory: str, test: Test, way: str = PLAIN) -> None:
    """Runs a coroutine beside an engine and a bus with the models echo, manual (the test answers) and decoupled."""

    async def main() -> None:
        bus = FakeBus(directory, way)
        bus.add(signature("echo"), Submitted.echo)
        bus.add(signature("manual"))
        bus.add(signature("decoupled", decoupled=True))
        async with engine_over(bus) as engine:
            await asyncio.wait_for(test(bus, engine), 30)
        bus.close()

    uvloop.run(main())


def with_client(serve: Serve, test: Callable[[client.InferenceServerClient, FakeBus], None]) -> None:
    """The blocking client, in a thread beside the loop."""

    async def main(bus: FakeBus, engine: GrpcEngine) -> None:
        def talk() -> None:
            with client.InferenceServerClient(f"127.0.0.1:{engine.port}") as triton:
                test(triton, bus)

        await asyncio.to_thread(talk)

    serve(main)


def tensor(array: numpy.ndarray[Any, Any] = NUMBERS, datatype: str = "INT32", module: Any = client) -> Any:
    value = module.InferInput("IN", list(array.shape), datatype)
    value.set_data_from_numpy(array)
    return value


def infer_request(model: str = "manual", id: str = "", **parameters: Any) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, id=id)
    request.inputs.add(name="IN", datatype="INT32", shape=[3])
    request.raw_input_contents.append(NUMBERS.tobytes())
    for name, value in parameters.items():
        request.parameters[name].CopyFrom(service_pb2.InferParameter(**value))
    return request


def channel_to(engine: GrpcEngine) -> Any:
    return grpc.aio.insecure_channel(f"127.0.0.1:{engine.port}")


def unary_call(channel: Any, request: Any, **options: Any) -> Any:
    method = channel.unary_unary(
        SERVICE + "ModelInfer",
        type(request).SerializeToString,
        service_pb2.ModelInferResponse.FromString,
    )
    return method(request, **options)


def stream_call(channel: Any, **options: Any) -> Any:
    method = channel.stream_stream(
        SERVICE + "ModelStreamInfer",
        service_pb2.ModelInferRequest.SerializeToString,
        service_pb2.ModelStreamInferResponse.FromString,
    )
    return method(**options)


async def status_of(call: Any) -> tuple[grpc.StatusCode, str]:
    return await call.code(), await call.details()


def raising(triton: client.InferenceServerClient, call: str, *arguments: Any, **named: Any) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        getattr(triton, call)(*arguments, **named)
    return str(caught.value.status()).removeprefix("StatusCode."), caught.value.message()
