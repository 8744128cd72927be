"""The broker's end for tests of a stub host: a ROUTER on TCP, a gateway's segment, and messages by hand."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import zmq

from protocol.codec import decode_from_service, decode_from_stub, encode
from protocol.messages import (
    EXECUTE,
    FINISH,
    LOAD,
    Execute,
    Finish,
    Handle,
    Hello,
    Load,
    Log,
    Ready,
    Request,
    Response,
    Results,
)
from protocol.services import (
    START,
    STOP,
    TO_STUBS,
    VERSION,
    WELCOME,
    Beat,
    Died,
    FromStubs,
    Holds,
    Join,
    Proved,
    Start,
    Stop,
    ToStubs,
    Welcome,
)
from shm.store import Reader, Store
from tests.stub import by_hand

DEADLINE_S = 30
SECOND = 10**9
NONCE = b"the nonce that stubs read back .."


class BareStubBroker:
    """Speaks with one stub host at a time, by blocking calls with a deadline. What stubs say is in ``said``."""

    def __init__(self, shm_directory: str, repository: Path, port: int = 0, name: str = "one") -> None:
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        self.router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.address = self.router.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        self.port = int(self.address.rpartition(":")[2])
        self.name = name
        self.repository = repository
        self.store = Store(shm_directory)
        self.reader = Reader(shm_directory)
        self.host = ""
        self.said: list[tuple[str, Any, list[bytes]]] = []
        self.sizes: list[int] = []  # of the FromStubs that came
        self.last_id = 100

    def bind(self, address: str) -> None:
        """The port may be that of another one whose socket is being closed."""
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                self.router.bind(address)
                return
            except zmq.ZMQError:
                assert time.monotonic() < end
                time.sleep(0.01)

    def close(self) -> None:
        self.store.close()
        self.reader.close()
        self.context.destroy(linger=0)

    # --- services ---

    def send(self, message: Any, frames: Any = ()) -> None:
        self.send_bytes(encode(message), *frames)

    def send_bytes(self, *parts: bytes) -> None:
        self.router.send_multipart([self.host.encode(), *parts])

    def receive(self, deadline_s: float = DEADLINE_S) -> tuple[Any, list[bytes]]:
        """The next message of the host that is no Beat."""
        end = time.monotonic() + deadline_s
        while True:
            assert self.router.poll(max(0.0, end - time.monotonic()) * 1000), "the host says nothing"
            host, header, *frames = self.router.recv_multipart()
            self.host = host.decode()
            message = decode_from_service(header)
            if not isinstance(message, Beat):
                return message, frames

    def expect(self, kind: type) -> Any:
        """The next message of that type; what stubs say before it is kept."""
        while True:
            message, frames = self.receive()
            if isinstance(message, FromStubs):
                self.keep(message, frames)
            if isinstance(message, kind):
                self.frames = frames
                return message
            assert isinstance(message, (FromStubs, Join)), message

    def keep(self, message: FromStubs, frames: list[bytes]) -> None:
        self.sizes.append(len(message.messages))
        for key, header, count in message.messages:
            taken, frames = frames[:count], frames[count:]
            self.said.append((key, decode_from_stub(header), taken))
        assert not frames

    def welcome(self, probes: dict[str, Handle] | None = None, silence_s: float = 60) -> tuple[Join, Proved, Holds]:
        join = self.expect(Join)
        repositories = [str(self.repository)]
        silence_ns = int(silence_s * SECOND)
        self.send(Welcome(WELCOME, VERSION, self.name, silence_ns // 4, silence_ns, probes or {}, NONCE, repositories))
        return join, self.expect(Proved), self.expect(Holds)

    # --- stubs ---

    def to_stub(self, key: str, message: Any, frames: Any = ()) -> None:
        self.send(ToStubs(TO_STUBS, [(key, encode(message), len(frames))]), frames)

    def next_of(self, key: str, kind: type) -> Any:
        """The next thing that this stub says, which is of that type; log lines are passed over."""
        while True:
            for place, (address, message, frames) in enumerate(self.said):
                if address == key and not isinstance(message, Log):
                    del self.said[place]
                    self.frames = frames
                    assert isinstance(message, kind), message
                    return message
            message, frames = self.receive()
            assert isinstance(message, FromStubs), message
            self.keep(message, frames)

    def died(self, key: str) -> Died:
        message = self.expect(Died)
        assert message.key == key
        return message

    def start(self, key: str, model: str = "m", files: dict[str, bytes] | None = None, **more: Any) -> Hello:
        directory = str(self.repository / model)
        self.send(Start(START, key, f"{model}:1 {key}", model, 1, f"{model}_0", "stamp", directory, files=files or {}))
        return self.next_of(key, Hello)

    def load(self, key: str, model: str = "m", **config: Any) -> Ready:
        directory = self.repository / model
        args = by_hand.load_args(directory, {"name": model, **by_hand.TENSORS, **config}, model)
        file = str(directory / "1" / "model.py")
        load = Load(LOAD, "serve", file, os.path.dirname(file), args, Handle("", 0, 0), "/nowhere")
        self.to_stub(key, load)
        return self.next_of(key, Ready)

    def serve(self, key: str, model: str = "m", **config: Any) -> Ready:
        self.start(key, model)
        return self.load(key, model, **config)

    def stop(self, key: str, abort: bool = False) -> None:
        self.send(Stop(STOP, key, abort))

    def finish(self, key: str) -> None:
        self.to_stub(key, Finish(FINISH))

    # --- requests ---

    def request(self, *values: float, inline: bool = False) -> tuple[Request, list[bytes]]:
        self.last_id += 1
        return by_hand.request(self.last_id, values, None if inline else self.store)

    def execute(self, key: str, *requests: Request, frames: Any = (), inline: Any = ()) -> None:
        self.to_stub(key, Execute(EXECUTE, by_hand.batches(requests), [], [], list(inline)), frames)

    def infer(self, key: str, *values: float, **options: Any) -> Response:
        request, frames = self.request(*values, inline=options.pop("inline", False))
        self.execute(key, request, frames=frames)
        return self.response(key)

    def response(self, key: str) -> Response:
        results = self.next_of(key, Results)
        (response,) = results.executed[0].responses if results.executed else results.responses
        return response

    def values(self, response: Response) -> list[float]:
        return by_hand.values(response, self.frames, self.reader)
