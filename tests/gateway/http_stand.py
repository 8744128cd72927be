"""An HTTP front on a real socket over the fake bus, and clients for it."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from gateway.http_front import HttpFront
from metrics.custom import CustomMetrics
from tests.gateway.fake_bus import PLAIN, FakeBus, add_models, memory_in_use

DEADLINE_S = 20

LIVE = b"GET /v2/health/live HTTP/1.1\r\n\r\n"
ONES = struct.pack("<16f", *[1.0] * 16)
INPUTS = [
    {"name": name, "shape": [16], "datatype": "FP32", "parameters": {"binary_data_size": 64}}
    for name in ("INPUT0", "INPUT1")
]


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self, has_body: bool = True) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        nbytes = int(headers.get("content-length", 0)) if has_body else 0
        return Reply(int(status.split()[1]), headers, await self.reader.readexactly(nbytes))

    async def head(self) -> Reply:
        """Of an answer whose body comes in chunks."""
        reply = await self.reply(has_body=False)
        assert reply.headers["transfer-encoding"] == "chunked"
        return reply

    async def chunk(self) -> bytes:
        """b"" is the last one."""
        nbytes = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(nbytes)
        assert await self.reader.readexactly(2) == b"\r\n"
        return data

    async def chunks(self) -> list[bytes]:
        found = [await self.chunk()]
        while found[-1]:
            found.append(await self.chunk())
        return found[:-1]

    async def ask(self, data: bytes) -> Reply:
        self.send(data)
        return await self.reply()

    async def is_closed(self) -> bool:
        return await self.reader.read() == b""


class Stand:
    """A front over a fake bus, and clients."""

    def __init__(self, bus: FakeBus, front: HttpFront, metrics: CustomMetrics) -> None:
        self.bus = bus
        self.front = front
        self.metrics = metrics

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.front.port)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await asyncio.sleep(0)


Test = Callable[[Stand], Awaitable[None]]
Run = Callable[[Test], None]


async def serve_http(directory: str, test: Test, way: str = PLAIN) -> None:
    """Runs a test's coroutine beside a front, and looks for memory that it left behind."""
    bus = FakeBus(directory, way)
    add_models(bus)
    metrics = CustomMetrics()
    front = HttpFront(bus.dataplane, "127.0.0.1", 0, custom_metrics=metrics)
    await front.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            await test(Stand(bus, front, metrics))
            await front.drain(0)
            for entry in bus.held:
                entry.run()
            while memory_in_use(bus.gateway_store) or memory_in_use(bus.stub_store):
                await asyncio.sleep(0)
    finally:
        await front.drain(0)
        bus.close()


def post(path: str, body: bytes, headers: str = "", version: str = "1.1") -> bytes:
    return f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def infer(model: str, header: Any, tail: bytes = b"", headers: str = "", version: str = "1.1") -> bytes:
    text = json.dumps(header).encode()
    size = f"Inference-Header-Content-Length: {len(text)}\r\n" if tail else ""
    return post(f"/v2/models/{model}/infer", text + tail, size + headers, version)


def add_sub(headers: str = "", version: str = "1.1", **members: Any) -> bytes:
    return infer("add_sub", {"inputs": INPUTS, **members}, ONES + ONES, headers, version)


def identity(data: bytes, binary: bool = True) -> bytes:
    tensor = {
        "name": "INPUT0",
        "shape": [len(data)],
        "datatype": "UINT8",
        "parameters": {"binary_data_size": len(data)},
    }
    return infer("id_uint8", {"inputs": [tensor], "parameters": {"binary_data_output": binary}}, data)
