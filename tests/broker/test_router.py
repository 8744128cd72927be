"""The broker's socket against libzmq's DEALER, and against peers that are none."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from broker.router import DoesNotRead, Router, Unreachable
from protocol import zmtp

SIZES = [0, 1, 255, 256, 65_536, 3_000_000]
DEADLINE_S = 20.0


class World:
    def __init__(self, path: Path) -> None:
        self.path = str(path / "bus")
        self.context = zmq.asyncio.Context()
        self.heard: asyncio.Queue[tuple[str, list[bytes]]] = asyncio.Queue()
        self.done = 0
        self.router = Router(self._hear, self._end)
        self.router.bind(f"ipc://{self.path}")

    def _hear(self, key: str, header: memoryview, frames: list[memoryview]) -> None:
        self.heard.put_nowait((key, [bytes(header), *map(bytes, frames)]))

    def _end(self) -> None:
        self.done += 1

    async def dealer(self, key: str = "key") -> zmq.asyncio.Socket:
        """One that the router knows."""
        dealer = self.context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.routing_id = key.encode()
        dealer.connect(f"ipc://{self.path}")
        await dealer.send(b"hello")
        assert await self.heard.get() == (key, [b"hello"])
        return dealer

    async def raw(self, *said: bytes) -> socket.socket:
        """Whoever may find the socket."""
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, self.path)
        for data in said:
            await loop.sock_sendall(connection, data)
        return connection

    async def refusal(self, *said: bytes) -> None:
        """Returns once the router has hung up."""
        loop = asyncio.get_running_loop()
        with await self.raw(*said) as connection:
            try:
                while await loop.sock_recv(connection, 1000):
                    pass
            except ConnectionError:
                pass


Run = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(scenario: Callable[[World], Awaitable[None]]) -> None:
        async def main() -> None:
            world = World(tmp_path)
            try:
                await asyncio.wait_for(scenario(world), DEADLINE_S)
            finally:
                world.router.close()
                world.context.destroy(linger=0)
            assert not world.router.peers and not os.path.exists(world.path)

        gc.collect()  # what other tests have left
        before = len(os.listdir("/proc/self/fd"))
        asyncio.run(main())
        assert len(os.listdir("/proc/self/fd")) == before

    return run


def test_messages_of_all_sizes_in_both_directions(run: Run) -> None:
    async def scenario(world: World) -> None:
        dealer = await world.dealer()
        frames = [os.urandom(size) for size in SIZES]
        await dealer.send_multipart([b"header", *frames])
        assert await world.heard.get() == ("key", [b"header", *frames])
        world.router.send("key", b"header", frames)
        assert await dealer.recv_multipart() == [b"header", *frames]

    run(scenario)


def test_what_cannot_leave_at_once_leaves_in_order(run: Run) -> None:
    async def scenario(world: World) -> None:
        dealer = await world.dealer()
        for number in range(300):
            world.router.send("key", b"%d" % number, [bytes(10_000)] if number % 3 else [])
        for number in range(300):
            header, *frames = await dealer.recv_multipart()
            assert header == b"%d" % number and len(frames) == bool(number % 3)

    run(scenario)


def test_a_peer_that_does_not_read_is_told_of(run: Run) -> None:
    async def scenario(world: World) -> None:
        with await world.raw(zmtp.greeting(), zmtp.ready("DEALER", b"key"), *zmtp.encode(b"hello")):
            await world.heard.get()
            with pytest.raises(DoesNotRead):
                for _ in range(5000):
                    world.router.send("key", bytes(10_000), [])

    run(scenario)


def test_a_message_of_many_frames_is_one_message(run: Run) -> None:
    """Without shared memory each tensor of a batch is a frame."""

    async def scenario(world: World) -> None:
        dealer = await world.dealer()
        frames = [bytes(1000)] * 4000
        world.router.send("key", b"batch", frames)
        world.router.send("key", b"cancel", [])
        assert await dealer.recv_multipart() == [b"batch", *frames]
        assert await dealer.recv_multipart() == [b"cancel"]

    run(scenario)


def test_nobody_of_that_key(run: Run) -> None:
    async def scenario(world: World) -> None:
        dealer = await world.dealer()
        with pytest.raises(Unreachable):
            world.router.send("other", b"", [])
        dealer.close()
        with pytest.raises(Unreachable):
            while True:
                world.router.send("key", b"", [])
                await asyncio.sleep(0.01)

    run(scenario)


def test_a_key_means_who_has_said_it_last(run: Run) -> None:
    async def scenario(world: World) -> None:
        first, second = await world.dealer(), await world.dealer()
        world.router.send("key", b"you", [])
        assert await second.recv() == b"you"
        assert not await first.poll(50)

    run(scenario)


def test_the_dead_are_heard_out(run: Run) -> None:
    """What they have said lies in the socket when their death is known."""

    async def scenario(world: World) -> None:
        with await world.raw(zmtp.greeting(), zmtp.ready("DEALER", b"key"), *zmtp.encode(b"hello")) as stub:
            await world.heard.get()
            stub.setblocking(True)
            for number in range(20):
                stub.sendall(zmtp.encode(b"%d" % number)[0])
        world.router.hear_out("key")
        assert [world.heard.get_nowait()[1] for _ in range(20)] == [[b"%d" % number] for number in range(20)]
        assert not world.router.peers
        world.router.hear_out("key")

    run(scenario)


@pytest.mark.parametrize(
    "said",
    [
        [b"GET / HTTP/1.1\r\n".ljust(64)],
        [zmtp.greeting(), b"\0\5hello"],
        [zmtp.greeting(), zmtp.ready("DEALER")],
        [zmtp.greeting(), zmtp.ready("DEALER", b"\xff")],
        [zmtp.greeting(), b"\4\x09\x05READY\x05Abc"],
        [zmtp.greeting(), zmtp.ready("DEALER", b"key"), b"\2" + (1 << 62).to_bytes(8, "big")],
    ],
)
def test_who_is_no_dealer_with_a_key_is_refused(run: Run, said: list[bytes]) -> None:
    async def scenario(world: World) -> None:
        await world.refusal(*said)
        await world.dealer()

    run(scenario)


def test_who_goes_before_being_greeted_is_forgotten(run: Run) -> None:
    async def scenario(world: World) -> None:
        for _ in range(10):
            (await world.raw(zmtp.greeting(), zmtp.ready("DEALER", b"gone"), *zmtp.encode(b"hello"))).close()
        await world.dealer()
        while world.router._unknown or len(world.router.peers) > 1:
            await asyncio.sleep(0.01)

    run(scenario)


def test_a_greeting_may_come_in_pieces(run: Run) -> None:
    async def scenario(world: World) -> None:
        said = zmtp.greeting() + zmtp.ready("DEALER", b"key") + zmtp.encode(b"hello")[0]
        with await world.raw(*(said[at : at + 1] for at in range(len(said)))):
            assert await world.heard.get() == ("key", [b"hello"])

    run(scenario)


def test_what_came_together_ends_together(run: Run) -> None:
    async def scenario(world: World) -> None:
        said = b"".join(zmtp.encode(b"%d" % number)[0] for number in range(50))
        with await world.raw(zmtp.greeting(), zmtp.ready("DEALER", b"key")) as stub:
            while "key" not in world.router.peers:
                await asyncio.sleep(0.01)
            world.done = 0
            await asyncio.get_running_loop().sock_sendall(stub, said)
            for _ in range(50):
                await world.heard.get()
            assert world.done == 1

    run(scenario)


def test_without_a_free_descriptor_others_are_served_on(run: Run) -> None:
    async def scenario(world: World) -> None:
        dealer = await world.dealer()
        waiting = socket.socket(socket.AF_UNIX)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
        try:
            waiting.connect(world.path)
            waiting.sendall(zmtp.greeting())
            await asyncio.sleep(0.05)
            world.router.send("key", b"still here", [])
            assert await dealer.recv() == b"still here"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        waiting.setblocking(False)
        greeting = await asyncio.get_running_loop().sock_recv(waiting, 1000)
        assert greeting.startswith(zmtp.greeting())
        waiting.close()

    run(scenario)
