"""The order and the life of a stream's replies, by random sequences of events; no transport."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dataplane import DataPlane
from gateway.grpc_service import GrpcService
from gateway.grpc_stream import InferStream
from gateway.proto import service_pb2
from protocol.errors import InternalError
from shm.store import Reader, Store
from tests.gateway.grpc_bus import GrpcBus, Submitted, signature

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
        self.bus = GrpcBus(directory)
        self.bus.add(signature("plain"))
        self.bus.add(signature("decoupled", decoupled=True))
        self.store = Store(directory)
        self.service = GrpcService(DataPlane(self.bus, self.store, Reader(directory), "triton"))
        self.stream: InferStream = self.service.stream(())
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

    async def rest(self) -> list[str]:
        return [service_pb2.ModelStreamInferResponse.FromString(data).infer_response.id async for data in self.stream]


@settings(max_examples=60)
@given(EVENTS)
def test_every_reply_leaves_once_and_in_its_order(events: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        stream = Stream(directory)
        stream.play(events)
        stream.answer_all()
        stream.stream.half_close()
        ids = asyncio.run(stream.rest())
        assert [id for id in ids if not id.endswith("decoupled")] == stream.ordered
        assert [id for id in ids if id.endswith("decoupled")] == stream.free
        assert not stream.bus.leases
        stream.store.check()


@settings(max_examples=60)
@given(EVENTS)
def test_a_cancelled_stream_leaves_nothing_behind(events: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        stream = Stream(directory)
        stream.play(events)
        stream.stream.cancel()
        assert asyncio.run(stream.rest()) == []
        assert all(entry.cancelled or entry in stream.finished for entry in stream.bus.submitted)
        stream.answer_all()
        assert not stream.bus.leases
        assert asyncio.run(stream.service.drain(0)) is True


def test_a_plain_request_waits_for_the_one_before_it(tmp_path: Any) -> None:
    async def main() -> None:
        stream = Stream(str(tmp_path))
        stream.play(["plain", "plain", (1, True, False)])
        waiting = asyncio.ensure_future(stream.stream.__anext__())
        await asyncio.sleep(0)
        assert not waiting.done()
        stream.answer(0, True, False)
        first = service_pb2.ModelStreamInferResponse.FromString(await waiting)
        assert first.infer_response.id == stream.ordered[0]

    asyncio.run(main())
