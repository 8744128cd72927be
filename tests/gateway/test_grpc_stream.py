"""The order and the life of a stream's replies: by random sequences of events without a transport, then on the wire."""

from __future__ import annotations

import asyncio
import queue
import tempfile
from typing import Any

import grpc
import grpc.aio
import numpy
import tritonclient.grpc as client
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.grpc_engine import GrpcEngine
from gateway.grpc_service import GrpcService
from gateway.grpc_stream import InferStream
from gateway.proto import service_pb2
from protocol.errors import InternalError
from tests.gateway.fake_bus import FakeBus, Submitted, signature
from tests.gateway.grpc_stand import (
    NUMBERS,
    Serve,
    channel_to,
    infer_request,
    status_of,
    stream_call,
    tensor,
    with_client,
)

# "plain", "decoupled" and "nope" (unknown) send a request; a number answers that one of the running requests.
EVENTS = st.lists(
    st.one_of(
        st.sampled_from(["plain", "decoupled", "nope"]),
        st.tuples(st.integers(0, 5), st.booleans(), st.booleans()),
    ),
    max_size=40,
)


class Stream:
    """A stream, the bus behind it, and what should come out."""

    def __init__(self, directory: str) -> None:
        self.bus = FakeBus(directory)
        self.bus.add(signature("plain"))
        self.bus.add(signature("decoupled", decoupled=True))
        self.service = GrpcService(self.bus.dataplane)
        self.stream: InferStream = self.service.stream((), lambda: None)
        self.finished: list[Submitted] = []
        self.ordered: list[str] = []  # ids of what must leave in request order
        self.free: list[str] = []  # ids of decoupled responses, in the order they were given

    def send(self, model: str) -> None:
        id = f"{len(self.ordered) + len(self.free)}-{len(self.bus.submitted)}-{model}"
        request = service_pb2.ModelInferRequest(model_name=model, id=id)
        request.inputs.add(name="IN", datatype="INT32", shape=[1])
        request.raw_input_contents.append(b"abcd")
        if model != "decoupled":
            self.ordered.append(id)
        self.stream.feed(request.SerializeToString())

    def answer(self, index: int, final: bool, fails: bool) -> None:
        running = [entry for entry in self.bus.submitted if entry not in self.finished]
        if not running:
            return
        entry = running[index % len(running)]
        decoupled = entry.request.model == "decoupled"
        if decoupled:
            self.free.append(entry.request.request_id)
        if final or not decoupled:
            self.finished.append(entry)
        if fails:
            entry.answer(error=InternalError("it broke"), final=final or not decoupled)
        else:
            entry.echo(final=final or not decoupled)

    def answer_all(self) -> None:
        while len(self.finished) < len(self.bus.submitted):
            self.answer(0, True, False)

    def play(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, str):
                self.send(event)
            else:
                self.answer(*event)

    def rest(self) -> list[str]:
        return [response.infer_response.id for response in iter(lambda: next_of(self.stream), None)]


def next_of(stream: InferStream) -> Any:
    """The next response, None if there is none."""
    message = stream.next()
    assert message is None or isinstance(message, bytes)
    return None if message is None else service_pb2.ModelStreamInferResponse.FromString(message)


@settings(max_examples=60)
@given(EVENTS)
def test_every_reply_leaves_once_and_in_its_order(events: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        stream = Stream(directory)
        stream.play(events)
        stream.answer_all()
        stream.stream.half_close()
        ids = stream.rest()
        assert stream.stream.ended
        assert [id for id in ids if not id.endswith("decoupled")] == stream.ordered
        assert [id for id in ids if id.endswith("decoupled")] == stream.free
        assert not stream.bus.leases
        stream.bus.gateway_store.check()


@settings(max_examples=60)
@given(EVENTS)
def test_a_cancelled_stream_leaves_nothing_behind(events: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        stream = Stream(directory)
        stream.play(events)
        stream.stream.cancel()
        assert stream.rest() == [] and stream.stream.ended
        assert all(entry.cancelled or entry in stream.finished for entry in stream.bus.submitted)
        stream.answer_all()
        assert not stream.bus.leases
        assert asyncio.run(stream.service.drain(0)) is True


def test_a_plain_request_waits_for_the_one_before_it(tmp_path: Any) -> None:
    stream = Stream(str(tmp_path))
    stream.play(["plain", "plain", (1, True, False)])
    assert stream.stream.next() is None and not stream.stream.ended
    stream.answer(0, True, False)
    assert stream.rest() == stream.ordered


# --- on the wire ---------------------------------------------------------------------------------------------------


def texts(messages: list[Any]) -> list[str]:
    return [message.infer_response.id or message.error_message for message in messages]


def test_a_stream_answers_in_request_order(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
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
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
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
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
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
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
        bus.models["decoupled"] = lambda entry: (entry.echo(final=False), entry.echo())
        async with channel_to(engine) as channel:
            stream = stream_call(channel)
            await stream.write(infer_request("decoupled"))
            await stream.done_writing()
            finals = [message.infer_response.parameters["triton_final_response"].bool_param async for message in stream]
        assert finals == [False, True]

    serve(talk)


def test_errors_travel_in_band_and_in_order(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
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
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
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


def test_with_triton_grpc_error_what_came_before_the_error_leaves_first(tmp_path: Any) -> None:
    bus = FakeBus(str(tmp_path))
    bus.add(signature("decoupled", decoupled=True))
    stream = GrpcService(bus.dataplane).stream((("triton_grpc_error", "true"),), lambda: None)
    stream.feed(infer_request("decoupled", id="a").SerializeToString())
    [entry] = bus.submitted
    entry.echo(final=False)
    entry.answer(error=InternalError("it broke"))

    first = next_of(stream)
    assert first.infer_response.id == "a" and not first.error_message
    assert stream.next() is None and stream.ended
    assert isinstance(stream.error, InternalError) and str(stream.error) == "it broke"
    assert not bus.leases
    bus.close()


def test_a_final_response_without_outputs_may_carry_parameters(tmp_path: Any) -> None:
    bus = FakeBus(str(tmp_path))
    bus.add(signature("decoupled", decoupled=True))
    stream = GrpcService(bus.dataplane).stream((), lambda: None)
    stream.feed(infer_request("decoupled", id="a").SerializeToString())
    bus.submitted[0].answer(parameters={"tokens": 7})

    last = next_of(stream).infer_response
    assert last.parameters["tokens"].int64_param == 7 and last.parameters["triton_final_response"].bool_param
    bus.close()


def test_a_cancelled_stream_cancels_its_requests(serve: Serve) -> None:
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
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
    async def talk(bus: FakeBus, engine: GrpcEngine) -> None:
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
    def talk(triton: client.InferenceServerClient, bus: FakeBus) -> None:
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
