"""The engine over a real socket, with the real clients and a broker of plain functions behind it."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import ml_dtypes
import numpy
import pytest
import tritonclient.grpc as client
import tritonclient.grpc.aio as aio_client
import uvloop
from tritonclient.utils import InferenceServerException

from gateway.dataplane import DataPlane
from gateway.grpc_engine import GrpcEngine
from gateway.grpc_service import GrpcService
from gateway.proto import service_pb2
from protocol.errors import InternalError, Unavailable
from protocol.kserve import generated
from shm.store import Reader, Store
from tests.gateway.grpc_bus import DATATYPES, GrpcBus, Submitted, signature

SERVICE = "/inference.GRPCInferenceService/"
SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."
ModelConfig = generated("model_config_pb2").ModelConfig
NUMBERS = numpy.array([1, 2, 3], numpy.int32)

Test = Callable[[GrpcBus, GrpcEngine], Awaitable[None]]
Serve = Callable[[Test], None]


@asynccontextmanager
async def engine_over(bus: GrpcBus, directory: str) -> AsyncIterator[GrpcEngine]:
    store = Store(directory)
    plane = DataPlane(bus, store, Reader(directory), "triton")
    engine = GrpcEngine(GrpcService(plane), "127.0.0.1", 0)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.drain(0)
        store.check()
        assert not bus.leases, "outputs were not released"


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Runs a coroutine beside an engine and a bus with the models echo, manual, repeat and the decoupled manual."""

    def run(test: Test) -> None:
        async def main() -> None:
            bus = GrpcBus(str(tmp_path))
            bus.add(signature("echo"), Submitted.echo)
            bus.add(signature("manual"))
            bus.add(signature("decoupled", decoupled=True))
            async with engine_over(bus, str(tmp_path)) as engine:
                await asyncio.wait_for(test(bus, engine), 30)

        uvloop.run(main())

    return run


def with_client(serve: Serve, test: Callable[[client.InferenceServerClient, GrpcBus], None]) -> None:
    """The blocking client, in a thread beside the loop."""

    async def main(bus: GrpcBus, engine: GrpcEngine) -> None:
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


# --- everything but inference -------------------------------------------------------------------------------------


def test_server_and_model_health(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
        assert triton.is_server_live()
        assert triton.is_server_ready()
        assert triton.is_model_ready("echo")
        assert not triton.is_model_ready("")
        bus.is_ready = False
        assert not triton.is_server_ready()
        with pytest.raises(InferenceServerException, match="Request for unknown model: 'nope' is not found") as caught:
            triton.is_model_ready("nope")
        assert caught.value.status() == "StatusCode.NOT_FOUND"

    with_client(serve, talk)


def test_health_check_follows_server_readiness(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await check(b"\x0a\x03any") == b"\x08\x01"
            bus.is_ready = False
            assert await check(b"") == b"\x08\x02"

    serve(talk)


def test_metadata_and_configuration(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
        server = triton.get_server_metadata()
        assert server.name == "triton"
        assert "statistics" in server.extensions
        bus.add(signature("batched", max_batch_size=8))
        model = triton.get_model_metadata("batched")
        assert (model.name, list(model.versions), model.platform) == ("batched", ["1"], "python")
        assert [(i.name, i.datatype, list(i.shape)) for i in model.inputs] == [("IN", "INT32", [-1, -1])]
        assert triton.get_model_config("batched", "1").config == ModelConfig(
            name="batched", backend="python", max_batch_size=8
        )

    with_client(serve, talk)


def test_statistics(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
        (row,) = triton.get_inference_statistics("echo").model_stats
        assert (row.name, row.version, row.last_inference, row.inference_count, row.execution_count) == (
            ("echo", "1", 1234, 5, 6)
        )
        stats = row.inference_stats
        named = (stats.success, stats.fail, stats.queue, stats.compute_input, stats.compute_infer)
        named += (stats.compute_output, stats.cache_hit, stats.cache_miss)
        assert [(duration.count, duration.ns) for duration in named] == [(n, n * 10) for n in range(1, 9)]
        (batch,) = row.batch_stats
        assert (batch.batch_size, batch.compute_input.count, batch.compute_output.ns) == (4, 9, 110)
        assert len(triton.get_inference_statistics().model_stats) == 3
        with pytest.raises(InferenceServerException, match="requested model 'nope' is not available") as caught:
            triton.get_inference_statistics("nope")
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"

    with_client(serve, talk)


def test_repository_index(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        async with aio_client.InferenceServerClient(f"127.0.0.1:{engine.port}") as triton:
            rows = (await triton.get_model_repository_index()).models
            assert [(row.name, row.version, row.state) for row in rows] == [
                ("decoupled", "1", "READY"),
                ("echo", "1", "READY"),
                ("manual", "1", "READY"),
                ("zz", "", ""),
            ]
        async with channel_to(engine) as channel:
            index = channel.unary_unary(SERVICE + "RepositoryIndex")
            request = service_pb2.RepositoryIndexRequest(ready=True)
            response = service_pb2.RepositoryIndexResponse.FromString(await index(request.SerializeToString()))
            assert len(response.models) == 3
            call = index(service_pb2.RepositoryIndexRequest(repository_name="r").SerializeToString())
            assert await status_of(call) == (
                grpc.StatusCode.UNIMPLEMENTED,
                "'repository_name' specification is not supported",
            )

    serve(talk)


def raising(triton: client.InferenceServerClient, call: str, *arguments: Any, **named: Any) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        getattr(triton, call)(*arguments, **named)
    return str(caught.value.status()).removeprefix("StatusCode."), caught.value.message()


def test_model_control_is_refused(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
        refused = ("UNAVAILABLE", "explicit model load / unload is not allowed if polling is enabled")
        assert raising(triton, "load_model", "echo") == refused
        assert raising(triton, "load_model", "echo", config="{}", files={"file:1/model.py": b"x"}) == refused
        assert raising(triton, "unload_model", "echo") == refused

    with_client(serve, talk)


def test_client_shared_memory_is_disabled(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
        disabled = (
            "UNIMPLEMENTED",
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
        )
        assert raising(triton, "register_system_shared_memory", "r", "/key", 64) == disabled
        assert raising(triton, "unregister_system_shared_memory") == disabled
        assert raising(triton, "register_cuda_shared_memory", "r", b"", 0, 64) == disabled
        assert raising(triton, "unregister_cuda_shared_memory") == disabled
        assert not triton.get_system_shared_memory_status().regions
        assert not triton.get_cuda_shared_memory_status().regions
        assert raising(triton, "get_system_shared_memory_status", "r") == (
            ("NOT_FOUND", "Unable to find system shared memory region: 'r'")
        )

    with_client(serve, talk)


def test_unknown_methods_are_unimplemented(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            for method in (SERVICE + "NoSuch", "/other.Service/ServerLive", "/grpc.health.v1.Health/Watch"):
                assert await channel.unary_unary(method)(b"").code() is grpc.StatusCode.UNIMPLEMENTED

    serve(talk)


def test_a_malformed_message_is_an_internal_error(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            for method in ("ServerLive", "ModelInfer", "ModelConfig"):
                call = channel.unary_unary(SERVICE + method)(b"\xff\xff\xff")
                assert await status_of(call) == (grpc.StatusCode.INTERNAL, "Unable to parse request")

    serve(talk)


def test_a_taken_port_is_said_so(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        second = GrpcEngine(engine._service, "127.0.0.1", engine.port)
        with pytest.raises(Unavailable) as caught:
            await second.start()
        assert str(caught.value) == (
            f"failed to start GRPC service: Unavailable - Socket '127.0.0.1:{engine.port}' already in use"
        )

    serve(talk)


# --- ModelInfer ---------------------------------------------------------------------------------------------------


def sample(datatype: str) -> numpy.ndarray[Any, Any]:
    if datatype == "BYTES":
        return numpy.array([b"", b"two", b"drei"], numpy.object_)
    if datatype == "BF16":
        return numpy.array([0, 1, 1], ml_dtypes.bfloat16)
    return numpy.array([0, 1, 1], DATATYPES[datatype])


@pytest.mark.parametrize("datatype", [*DATATYPES, "BF16"])
def test_every_datatype_comes_back_as_it_was_sent(serve: Serve, datatype: str) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
        bus.add(signature("typed", datatype), Submitted.echo)
        array = sample(datatype)
        outputs = [client.InferRequestedOutput("OUT")]
        result = triton.infer("typed", [tensor(array, datatype)], outputs=outputs, request_id="42")
        numpy.testing.assert_array_equal(result.as_numpy("OUT"), array)
        response = result.get_response()
        assert (response.model_name, response.model_version, response.id) == ("typed", "1", "42")
        assert response.outputs[0].datatype == datatype
        assert not response.parameters
        assert bus.submitted[0].request.outputs == ["OUT"]

    with_client(serve, talk)


def test_typed_contents_reach_the_model(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        request = service_pb2.ModelInferRequest(model_name="echo")
        contents = service_pb2.InferTensorContents(int_contents=[5, 6, 7])
        request.inputs.add(name="IN", datatype="INT32", shape=[3], contents=contents)
        async with channel_to(engine) as channel:
            response = await unary_call(channel, request)
        assert list(response.raw_output_contents) == [numpy.array([5, 6, 7], numpy.int32).tobytes()]

    serve(talk)


def test_parameters_travel_both_ways(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
        bus.models["manual"] = partial(Submitted.echo, parameters={"n": 3, "s": "x", "b": True, "d": 0.5})
        result = triton.infer(
            "manual",
            [tensor()],
            sequence_id=7,
            sequence_start=True,
            priority=2,
            timeout=5000,
            parameters={"free": "yes", "k": 4},
        )
        request = bus.submitted[0].request
        assert request.parameters == {"free": "yes", "k": 4}
        assert (request.correlation_id, request.flags, request.priority, request.timeout_us) == (7, 1, 2, 5000)
        found = result.get_response().parameters
        assert (found["n"].int64_param, found["s"].string_param, found["b"].bool_param) == (3, "x", True)
        assert found["d"].double_param == 0.5

    with_client(serve, talk)


def test_two_hundred_requests_in_flight_find_their_callers(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
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


def test_request_errors_have_triton_s_status_and_words(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
        assert raising(triton, "infer", "nope", [tensor()]) == (
            ("NOT_FOUND", "Request for unknown model: 'nope' is not found")
        )
        assert raising(triton, "infer", "echo", [tensor()], model_version="9") == (
            ("NOT_FOUND", "Request for unknown model: 'echo' version 9 is not found")
        )
        assert raising(triton, "infer", "echo", [tensor()], model_version="one") == (
            "INVALID_ARGUMENT",
            "failed to get model version from specified version string 'one' (details: stol), "
            "version should be an integral value > 0",
        )
        assert raising(triton, "infer", "decoupled", [tensor()]) == (
            ("UNIMPLEMENTED", "ModelInfer RPC doesn't support models with decoupled transaction policy")
        )
        empty = client.InferInput("IN", [3], "INT32")
        assert raising(triton, "infer", "echo", [empty]) == (
            ("INVALID_ARGUMENT", "unable to find data for input tensor 'IN' for model 'echo' in request.")
        )

    with_client(serve, talk)


def test_a_model_s_error_is_the_call_s(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
        bus.models["manual"] = partial(Submitted.answer, error=InternalError("it broke"))
        assert raising(triton, "infer", "manual", [tensor()]) == ("INTERNAL", "it broke")

    with_client(serve, talk)


def test_a_client_that_cancels_cancels_its_request(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            call = unary_call(channel, infer_request())
            await bus.wait_for(1)
            call.cancel()
            await bus.wait_for_cancel(0)
            bus.submitted[0].echo()

    serve(talk)


def test_a_deadline_cancels_the_request(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            call = unary_call(channel, infer_request(), timeout=0.2)
            await bus.wait_for(1)
            assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await bus.wait_for_cancel(0)
            assert bus.submitted[0].request.timeout_us == 0
            bus.submitted[0].echo()

    serve(talk)


def test_compressed_requests_are_read(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
        for algorithm in ("gzip", "deflate"):
            array = numpy.arange(10_000, dtype=numpy.int32)
            result = triton.infer("echo", [tensor(array)], compression_algorithm=algorithm)
            numpy.testing.assert_array_equal(result.as_numpy("OUT"), array)

    with_client(serve, talk)


def test_a_message_far_beyond_grpc_s_default_limit_passes_both_ways(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
        bus.add(signature("typed", "UINT8"), Submitted.echo)
        array = numpy.arange(16 << 20, dtype=numpy.uint8)
        result = triton.infer("typed", [tensor(array, "UINT8")])
        assert numpy.array_equal(result.as_numpy("OUT"), array)

    with_client(serve, talk)


# --- ModelStreamInfer ---------------------------------------------------------------------------------------------


def texts(messages: list[Any]) -> list[str]:
    return [message.infer_response.id or message.error_message for message in messages]


def test_a_stream_answers_in_request_order(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            stream = stream_call(channel)
            for id in "abc":
                await stream.write(infer_request(id=id))
            first, second, third = await bus.wait_for(3)
            third.echo()
            second.echo()
            first.echo()
            await stream.done_writing()
            messages = [message async for message in stream]
            assert texts(messages) == ["a", "b", "c"]
            response = messages[0].infer_response
            assert (response.model_name, response.model_version) == ("manual", "1")
            assert response.parameters["triton_final_response"].bool_param is True
            assert list(response.raw_output_contents) == [NUMBERS.tobytes()]
            assert await stream.code() is grpc.StatusCode.OK

    serve(talk)


def test_decoupled_responses_do_not_wait_for_others(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            stream = stream_call(channel)
            for model, id in (("manual", "m"), ("decoupled", "d1"), ("decoupled", "d2")):
                await stream.write(infer_request(model, id))
            await stream.done_writing()
            manual, one, two = await bus.wait_for(3)
            two.echo(final=False)
            one.echo(final=False)
            two.echo(final=False)
            assert texts([await stream.read() for _ in range(3)]) == ["d2", "d1", "d2"]
            manual.echo()
            one.answer()
            two.answer()
            assert texts([await stream.read()]) == ["m"]
            assert await stream.read() is grpc.aio.EOF

    serve(talk)


def test_the_empty_final_response_needs_opting_in(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        bus.models["decoupled"] = lambda entry: (entry.echo(final=False), entry.answer())
        async with channel_to(engine) as channel:
            stream = stream_call(channel)
            await stream.write(infer_request("decoupled", "without"))
            opted = {"triton_enable_empty_final_response": {"bool_param": True}}
            await stream.write(infer_request("decoupled", "with", **opted))
            await stream.done_writing()
            messages = [message.infer_response async for message in stream]
        finals = [message.parameters["triton_final_response"].bool_param for message in messages]
        assert [message.id for message in messages] == ["without", "with", "with"]
        assert finals == [False, False, True]
        last = messages[-1]
        assert (last.model_name, last.model_version, len(last.outputs)) == ("decoupled", "", 0)
        assert not bus.submitted[1].request.parameters

    serve(talk)


def test_a_final_flag_on_the_last_data_response_is_passed_on(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        bus.models["decoupled"] = lambda entry: (entry.echo(final=False), entry.echo())
        async with channel_to(engine) as channel:
            stream = stream_call(channel)
            await stream.write(infer_request("decoupled"))
            await stream.done_writing()
            finals = [message.infer_response.parameters["triton_final_response"].bool_param async for message in stream]
        assert finals == [False, True]

    serve(talk)


def test_errors_travel_in_band_and_in_order(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            stream = stream_call(channel)
            await stream.write(infer_request(id="slow"))
            await stream.write(infer_request("nope", id="unknown"))
            await stream.write(infer_request(id="broken"))
            await stream.write(infer_request("echo", id="fine"))
            slow, broken, _ = await bus.wait_for(3)
            broken.answer(error=InternalError("it broke"))
            slow.echo()
            await stream.done_writing()
            messages = [message async for message in stream]
        assert [(message.infer_response.id, message.error_message) for message in messages] == [
            ("slow", ""),
            ("unknown", "Request for unknown model: 'nope' is not found"),
            ("broken", "it broke"),
            ("fine", ""),
        ]
        before, after = messages[1].infer_response, messages[2].infer_response
        assert (before.model_name, len(before.parameters)) == ("", 0)
        assert (after.model_name, after.parameters["triton_final_response"].bool_param) == ("manual", True)

    serve(talk)


def test_with_triton_grpc_error_a_model_s_error_ends_the_stream(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            stream = stream_call(channel, metadata=(("triton_grpc_error", "true"),))
            await stream.write(infer_request("nope", id="unknown"))
            assert (await stream.read()).error_message == "Request for unknown model: 'nope' is not found"
            for id in "ab":
                await stream.write(infer_request(id=id))
            failing, other = await bus.wait_for(2)
            failing.answer(error=InternalError("it broke"))
            assert await status_of(stream) == (grpc.StatusCode.INTERNAL, "it broke")
            await bus.wait_for_cancel(1)
            other.echo()

    serve(talk)


def test_a_cancelled_stream_cancels_its_requests(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            stream = stream_call(channel)
            await stream.write(infer_request(id="a"))
            await stream.write(infer_request("decoupled", id="b"))
            first, second = await bus.wait_for(2)
            stream.cancel()
            await bus.wait_for_cancel(0)
            await bus.wait_for_cancel(1)
            first.echo()
            second.echo(final=False)
            second.answer()

    serve(talk)


def test_replies_held_for_their_turn_are_released_when_the_client_goes(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
        async with channel_to(engine) as channel:
            stream = stream_call(channel)
            await stream.write(infer_request(id="a"))
            await stream.write(infer_request(id="b"))
            first, second = await bus.wait_for(2)
            second.echo()
            assert bus.leases
            stream.cancel()
            await bus.wait_for_cancel(0)
            assert not bus.leases
            first.echo()

    serve(talk)


def test_the_stock_client_s_stream(serve: Serve) -> None:
    def talk(triton: client.InferenceServerClient, bus: GrpcBus) -> None:
        done: queue.Queue[tuple[Any, Any]] = queue.Queue()
        triton.start_stream(lambda result, error: done.put((result, error)))
        for number in range(50):
            triton.async_stream_infer("echo", [tensor(numpy.array([number], numpy.int32))], request_id=str(number))
        triton.async_stream_infer("nope", [tensor()], request_id="last")
        for number in range(50):
            result, error = done.get(timeout=10)
            assert error is None
            assert (result.as_numpy("OUT")[0], result.get_response().id) == (number, str(number))
        result, error = done.get(timeout=10)
        assert "'nope' is not found" in str(error)
        triton.stop_stream()

    with_client(serve, talk)


# --- shutdown -----------------------------------------------------------------------------------------------------


def test_draining_refuses_new_requests_and_finishes_running_ones(serve: Serve) -> None:
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
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
    async def talk(bus: GrpcBus, engine: GrpcEngine) -> None:
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
