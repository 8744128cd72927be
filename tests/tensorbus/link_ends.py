"""The two ends of a link for tests, each with what it heard; on the loop of production."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvloop
import zmq

from tensorbus.curve import Trust, broker_trust, make_keys, service_trust
from tensorbus.dialer import Dialer
from tensorbus.listener import Listener

LOCAL = "tcp://127.0.0.1:0"


async def until(condition: Callable[[], object], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def on_the_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def run(keys: Keys) -> None:
        uvloop.run(test(keys))

    run.__name__ = test.__name__
    return run


class Keys:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        make_keys(str(directory))
        make_keys(str(directory / "foreign"))

    def broker(self, authorized: str = "service.pub") -> Trust:
        return broker_trust(self.file("broker.key"), self.file(authorized))

    def service(self, own: str = "service.key", broker: str = "broker.pub") -> Trust:
        return service_trust(self.file(own), self.file(broker))

    def file(self, name: str) -> str:
        return str(self.directory / name)


class Broker:
    """What a Listener hears."""

    def __init__(self, trust: Trust | None = None, address: str = LOCAL, echo: bool = False) -> None:
        self.heard: list[tuple[str, bytes, list[bytes]]] = []
        self.turns = 0
        self.echo = echo
        self.listener = Listener(address, trust, self._hear, self._done)
        self.listener.start()

    def _hear(self, service: str, header: bytes, frames: list[memoryview]) -> None:
        if self.echo:
            self.listener.send(service, header, frames)
        self.heard.append((service, header, [bytes(frame) for frame in frames]))

    def _done(self) -> None:
        self.turns += 1


class Service:
    """What a Dialer hears."""

    def __init__(self, address: str, trust: Trust | None = None, service_id: str = "0123abcd") -> None:
        self.heard: list[tuple[bytes, list[bytes]]] = []
        self.events: list[str] = []
        self.dialer = Dialer(
            address,
            service_id,
            trust,
            lambda header, frames: self.heard.append((header, [bytes(frame) for frame in frames])),
            lambda: None,
            lambda: self.events.append("connected"),
            lambda: self.events.append("lost"),
        )
        self.dialer.start()

    async def connected(self) -> Service:
        await until(lambda: self.dialer.is_connected)
        return self


@contextlib.asynccontextmanager
async def pair(
    broker_keys: Trust | None = None, service_keys: Trust | None = None, echo: bool = False
) -> AsyncIterator:
    broker = Broker(broker_keys, echo=echo)
    service = await Service(broker.listener.address, service_keys).connected()
    yield broker, service
    service.dialer.close()
    broker.listener.close()


@contextlib.contextmanager
def raw_socket(kind: int) -> Iterator[zmq.Socket]:
    context: zmq.Context = zmq.Context()
    end = context.socket(kind)
    end.linger = 0
    yield end
    end.close()
    context.term()
