"""The shell with real ZeroMQ and real shared memory; the test plays the stubs over DEALER sockets."""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
import zmq
import zmq.asyncio

from broker.core import Core
from broker.events import DeadlinePassed, Discard, LoadModel, LoadModels, Override, Send, StartServing
from broker.execution_env import ExecutionEnv
from broker.model import VersionSource
from broker.model_config import ModelConfigMessage, from_message
from broker.server import BrokerServer
from broker.settings import BrokerSettings
from broker.stubs import LocalStubs
from metrics.recorder import Recorder
from protocol.errors import InternalError
from protocol.interpreters import Interpreter
from protocol.messages import (
    ANSWERED,
    EXECUTE,
    HELLO,
    LOG,
    READY,
    RESULTS,
    VERSION,
    Answered,
    Execute,
    Executed,
    Handle,
    Hello,
    Log,
    Ready,
    Request,
    Response,
    Results,
    TensorRef,
)
from shm.store import Reader, Store

MiB = 1 << 20


class Sink:
    def __init__(self) -> None:
        self.answered: asyncio.Future = asyncio.get_running_loop().create_future()

    def on_response(self, response, origin, frames) -> None:
        self.answered.set_result((response, origin, [bytes(frame) for frame in frames]))

    def on_inputs_released(self) -> None: ...


class World:
    """A broker shell on an ipc socket, with a store for the gateway's tensors."""

    def __init__(self, directory) -> None:
        self.bus = f"ipc://{directory}/bus"
        self.store = Store("/dev/shm")
        block = self.store.allocate(32)
        block.view[:] = b"n" * 32
        settings = BrokerSettings(self.bus, "/dev/shm", auto_complete=False, explicit_control=True)
        core = Core(settings, Recorder(), Handle(block.segment, block.offset, 32), b"n" * 32, 0)
        self.spawned: list[str] = []
        self.killed: list[str] = []
        self.discarded: list[str] = []
        self.asked: list[ExecutionEnv] = []
        self.environment: asyncio.Future[Interpreter] | Exception = asyncio.get_running_loop().create_future()
        self.server = BrokerServer(
            core,
            settings,
            LocalStubs(self.bus, "/dev/shm", Reader("/dev/shm")),
            lambda spawn: self.spawned.append(spawn.key),
            self.killed.append,
            self.killed.append,
            self.prepare,
            self,
            self.hear,
        )
        self.context = zmq.asyncio.Context()
        self.last_id = 0
        self.said = 0

    async def prepare(self, env: ExecutionEnv) -> Interpreter:
        self.asked.append(env)
        if isinstance(self.environment, Exception):
            raise self.environment
        return await self.environment

    async def poll(self, model: str, override: Override | None, quiet: bool = False) -> list[VersionSource]:
        if model == "broken":
            raise OSError("broken")
        raise InternalError(f"failed to load '{model}', failed to poll from model repository")

    async def names(self) -> dict[str, str]:
        return {"new": ""}

    async def discard(self, directory: str) -> None:
        self.discarded.append(directory)

    def hear(self, line) -> None:
        self.said += 1

    def load_with_requirements(self, name: str) -> Callable[[], tuple[str, str]]:
        """Returns what tells its state and the reason."""
        message = ModelConfigMessage(name=name, backend="python")
        message.instance_group.add(count=1, name=name)
        for io in (message.input.add(), message.output.add()):
            io.name, io.data_type, io.dims[:] = "X", 11, [-1]
        config = from_message(message)
        self.server.post(LoadModels([VersionSource(name, 1, "/repo", config, requirements="/repo/requirements.txt")]))

        def told() -> tuple[str, str]:
            rows = [row for row in self.server.core.registry.index(ready=False) if row.name == name]
            return (rows[0].state, rows[0].reason) if rows else ("", "")

        return told

    async def stub(self, nonce: bytes = b"n" * 32, max_batch_size: int = 0) -> zmq.asyncio.Socket:
        """The model's one stub, ready."""
        message = ModelConfigMessage(name="m", backend="python", max_batch_size=max_batch_size)
        if max_batch_size:
            message.dynamic_batching.SetInParent()
        message.instance_group.add(count=1, name="m")
        for io in (message.input.add(), message.output.add()):
            io.name, io.data_type, io.dims[:] = "X", 11, [-1]
        self.server.post(LoadModels([VersionSource("m", 1, "/repo/m", from_message(message))]))
        await until(lambda: self.spawned)
        socket = self.context.socket(zmq.DEALER)
        socket.routing_id = self.spawned[-1].encode()
        socket.connect(self.bus)
        await say(socket, Hello(HELLO, VERSION, 1))
        assert (await receive(socket))[0][0] == "L"
        await say(socket, Ready(READY, nonce, ""))
        await until(lambda: self.server.core.registry.all_loaded())
        return socket

    def submit(self, data: bytes = b"1234") -> tuple[int, Sink]:
        self.last_id += 1
        sink = Sink()
        block = self.store.allocate(len(data))
        block.view[:] = data
        tensor = TensorRef("X", "FP32", (1,), Handle(block.segment, block.offset, len(data)))
        self.server.submit(Request(self.last_id, "m", 1, [tensor]), (), sink)
        return self.last_id, sink


async def until(condition, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def say(socket, message, *frames: bytes) -> None:
    await socket.send_multipart([msgspec.msgpack.encode(message), *frames])


async def receive(socket):
    header, *frames = await asyncio.wait_for(socket.recv_multipart(), 5)
    return msgspec.msgpack.decode(header), frames


@contextlib.asynccontextmanager
async def world(directory):
    world = World(directory)
    world.server.start()
    try:
        yield world
    finally:
        world.context.destroy(linger=0)
        world.server.close()
        world.store.close()


@pytest.fixture
def run(tmp_path):
    def run(scenario) -> None:
        async def main() -> None:
            async with world(tmp_path) as it:
                await asyncio.wait_for(scenario(it), 20)

        asyncio.run(main())

    return run


def executed(batch: list, **fields: object) -> Executed:
    return Executed(batch[0], 0, 1000, 0, False, [Response(request[0], [], **fields) for request in batch[1]])


def test_what_comes_in_one_turn_leaves_in_one_message_and_so_do_the_answers(run):
    async def scenario(world: World) -> None:
        stub = await world.stub()
        _, first = world.submit()
        (_, batches, *_), _ = await receive(stub)
        await say(stub, Results(RESULTS, [executed(batches[0])], []))
        await first.answered
        sinks = [world.submit()[1] for _ in range(5)]
        (_, batches, *_), _ = await receive(stub)
        assert len(batches) == 5
        await say(stub, Results(RESULTS, [executed(batch) for batch in batches], []))
        for sink in sinks:
            response, origin, _ = await sink.answered
            assert response.error is None and origin == world.spawned[-1]

    run(scenario)


def test_who_is_answered_first_of_a_large_batch_has_a_turn_before_the_last_one_is(run):
    async def scenario(world: World) -> None:
        stub = await world.stub(max_batch_size=64)
        sinks = [world.submit()[1] for _ in range(20)]
        (_, [batch], *_), _ = await receive(stub)
        await say(stub, Results(RESULTS, [executed(batch)], []))
        await sinks[0].answered
        assert not sinks[-1].answered.done()
        await asyncio.gather(*[sink.answered for sink in sinks])

    run(scenario)


def test_frames_of_an_answer_reach_the_gateway(run):
    async def scenario(world: World) -> None:
        stub = await world.stub()
        request, sink = world.submit()
        (_, batches, *_), _ = await receive(stub)
        tensor = TensorRef("X", "FP32", (1,), 0)
        answer = Executed(batches[0][0], 0, 0, 0, False, [Response(request, [tensor])])
        await say(stub, Results(RESULTS, [answer], []), b"abcd")
        assert (await sink.answered)[2] == [b"abcd"]

    run(scenario)


def test_a_stub_that_does_not_share_memory_is_sent_the_bytes(run):
    async def scenario(world: World) -> None:
        stub = await world.stub(nonce=b"")
        world.submit(b"wxyz")
        (_, batches, *_), frames = await receive(stub)
        (tensor,) = batches[0][1][0][3]
        assert tensor[3] == 0 and frames == [b"wxyz"]

    run(scenario)


def test_inputs_that_go_by_message_are_sent_from_where_they_lie(run):
    async def scenario(world: World) -> None:
        stub = await world.stub(nonce=b"")
        data = bytes(range(256)) * (64 << 12)
        tracemalloc.start()
        try:
            world.submit(data)
            await asyncio.sleep(0)  # the turn that sends it
            assert tracemalloc.get_traced_memory()[1] < MiB
        finally:
            tracemalloc.stop()
        assert (await receive(stub))[1] == [data]

    run(scenario)


def test_input_that_a_message_of_the_timer_hides_is_seen(run):
    """It has come, and the loop has not told of it yet."""

    async def scenario(world: World) -> None:
        stub = await world.stub()
        _, first = world.submit()
        (_, batches, *_), _ = await receive(stub)
        await say(stub, Results(RESULTS, [executed(batches[0], lease=7)], []))
        await first.answered
        _, second = world.submit()
        (_, batches, *_), _ = await receive(stub)
        world.server.release(world.spawned[-1], 7)
        await say(stub, Results(RESULTS, [executed(batches[0])], []))
        select.select(
            [world.server._stubs._router.peers[world.spawned[-1]]._socket], [], [], 5
        )  # without a turn of the loop, which would read it
        while world.server.core.next_deadline() > time.monotonic_ns():
            pass
        world.server._on_timer()
        assert (await receive(stub))[0] == ["E", [], [7], [], []]
        await asyncio.wait_for(second.answered, 1)

    run(scenario)


def test_turns_leave_the_deadlines_of_all_else_to_a_timer_and_an_idle_server_has_none(run, monkeypatch):
    async def scenario(world: World) -> None:
        stub = await world.stub()
        core, asked = world.server.core, []
        next_deadline = core.next_deadline
        monkeypatch.setattr(core, "next_deadline", lambda: asked.append(time.monotonic_ns()) or next_deadline())
        began = time.monotonic_ns()
        for _ in range(50):
            _, sink = world.submit()
            (_, batches, *_), _ = await receive(stub)
            await say(stub, Results(RESULTS, [executed(batch) for batch in batches], []))
            await sink.answered
        await until(lambda: world.server._timer is None)
        assert 0 < len(asked) <= 1 + (asked[-1] - began) // BrokerSettings(world.bus, "/dev/shm").release_delay_ns

    run(scenario)


def test_a_message_that_is_none_of_ours_gets_the_stub_killed(run):
    async def scenario(world: World) -> None:
        stub = await world.stub()
        await stub.send(b"\x93\xa1?nonsense")
        await until(lambda: world.killed == [world.spawned[-1]])

    run(scenario)


def test_work_for_a_stub_that_is_gone_waits_for_its_successor(run):
    async def scenario(world: World) -> None:
        stub = await world.stub()
        stub.close(linger=0)
        _, sink = world.submit()
        await asyncio.sleep(0)
        world.server.stub_died(world.spawned[-1], -9)
        await until(lambda: len(world.spawned) == 2)
        response, _, _ = await asyncio.wait_for(sink.answered, 5)
        assert "is not healthy" in response.error[1]  # without a status word it counts as having been inside

    run(scenario)


def test_while_an_environment_is_made_ready_the_model_waits_and_the_loop_goes_on(run):
    async def scenario(world: World) -> None:
        await world.stub()
        loading = world.load_with_requirements("other")
        await until(lambda: world.asked)
        world.submit()
        assert loading() == ("LOADING", "") and len(world.spawned) == 1
        world.environment.set_result(Interpreter("/env/bin/python", "/env"))
        await until(lambda: len(world.spawned) == 2)

    run(scenario)


@pytest.mark.parametrize(
    "fault, reason",
    [(InternalError("no room"), "no room"), (RuntimeError("no room in /secret"), "internal error")],
    ids=["told", "a fault of ours, which only the log is told"],
)
def test_an_environment_that_cannot_be_made_ready_is_the_reason_why_the_model_is_not_loaded(run, fault, reason):
    async def scenario(world: World) -> None:
        world.environment = fault
        loading = world.load_with_requirements("other")
        await until(lambda: loading()[0] == "UNAVAILABLE")
        assert loading()[1].endswith(reason) and not world.spawned

    run(scenario)


def test_at_the_end_no_environment_is_waited_for(run):
    async def scenario(world: World) -> None:
        world.load_with_requirements("other")
        await until(lambda: world.asked)
        await world.server.stop_preparing()
        assert world.environment.cancelled()

    run(scenario)


def test_a_stub_that_says_more_than_is_heard_keeps_nobody_from_being_served(run):
    async def scenario(world: World) -> None:
        stub = await world.stub()
        line = Log(LOG, "V", "model.py", 1, "x")
        for _ in range(900):
            await say(stub, line)
        turns = 0
        while world.said < 900:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 5  # others had their turns in between

    run(scenario)


def test_whoever_asks_for_a_load_is_told_how_it_ended(run):
    async def scenario(world: World) -> None:
        told: list[str] = []
        world.server.post(StartServing())
        for model in ("nobody", "broken"):
            world.server.post(LoadModel(model, None, lambda error: told.append(str(error))))
        await until(lambda: len(told) == 2)
        assert sorted(told) == [
            "failed to load 'broken', internal error",
            "failed to load 'nobody', failed to poll from model repository",
        ]

    run(scenario)


def test_what_was_made_for_a_load_is_discarded_in_the_background(run):
    async def scenario(world: World) -> None:
        world.server._carry_out([Discard("/private")])
        await until(lambda: world.discarded == ["/private"])

    run(scenario)


class TwoMessages:
    """A core whose turn ends with the answer to a call and, behind it, with work for the stub that has the outputs."""

    def __init__(self) -> None:
        answered = Answered(ANSWERED, 1, Response(-1, []), "1.0")
        self.news = [Send("2.0/forked", answered, shared=False), Send("3.0", answered)]
        self.work = [Send("1.0", Execute(EXECUTE, [], [7]))]
        self.events: list = []

    def handle(self, event, now: int) -> list:
        self.events.append(event)
        return self.news

    def dispatch(self, now: int) -> list:
        return self.work

    def count(self) -> None: ...

    def next_deadline(self) -> None:
        return None

    next_request_deadline = next_deadline


def test_what_is_told_comes_at_once_and_the_turn_ends_by_itself():
    stubs, core = Recording(), TwoMessages()

    async def turn() -> None:
        server = BrokerServer(core, BrokerSettings("ipc:///x", "/dev/shm"), stubs, *[None] * 6)
        server.start()
        server.post(DeadlinePassed())
        server.tell(StartServing())
        assert core.events == [StartServing()]  # what stubs say next is understood
        await asyncio.sleep(0.01)

    asyncio.run(turn())
    assert core.events == [StartServing(), DeadlinePassed()]
    assert "1.0" in stubs.sent


class Recording:
    def __init__(self) -> None:
        self.sent: list[str] = []

    def start(self, heard, done) -> None: ...

    def send(self, action: Send) -> None:
        self.sent.append(action.key)

    watch = hear_out = close = None


def test_outputs_for_who_does_not_share_memory_are_copied_before_their_lease_can_end():
    stubs = Recording()

    async def turn() -> None:
        server = BrokerServer(TwoMessages(), BrokerSettings("ipc:///x", "/dev/shm"), stubs, *[None] * 6)
        server.start()
        server.post(DeadlinePassed())
        await asyncio.sleep(0.01)

    asyncio.run(turn())
    assert stubs.sent == ["2.0/forked", "1.0", "3.0"]
