"""The other end of the bus for tests of real stub processes: a ROUTER, a gateway's segment, and the fork server."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import zmq

from protocol.codec import decode_from_stub, encode
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
)
from shm.segment import Segment
from shm.store import Reader, Store
from shm.sweep import sweep
from tests.stub import by_hand

DEADLINE_S = 30
MAIN = Path(__file__).resolve().parents[2] / "stub" / "__main__.py"
NONCE = b"sixteen random b"
CONFIG = {"name": "m", **by_hand.TENSORS}
IMPORTS = "import numpy as np, os, sys, threading, time\nimport triton_python_backend_utils as pb_utils\n"
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()) for request in requests]
    def answer(self, array):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
"""


def write_model(models: Path, addition: str = "", source: str = ECHO, name: str = "m") -> Path:
    """Writes a model.py; ``answer`` (of ECHO) may be replaced, and anything added to the class."""
    path = models / name / "1" / "model.py"
    path.parent.mkdir(parents=True)
    path.write_text(IMPORTS + source + textwrap.indent(textwrap.dedent(addition), "    "))
    return path


class BareBroker:
    """Speaks with one stub at a time, by blocking calls with a deadline."""

    def __init__(self, directory: Path, router: zmq.Socket) -> None:
        self.shm_directory = str(directory / "shm")
        os.mkdir(self.shm_directory)
        self.bus = f"ipc://{directory}/bus"
        router.bind(self.bus)
        self.router = router
        self.store = Store(self.shm_directory)
        self.reader = Reader(self.shm_directory)
        self.logs: list[Log] = []
        self.key = ""
        self.process: subprocess.Popen | None = None  # a stub by path
        self.fork_server: subprocess.Popen | None = None
        self.forked_pid = 0
        self.output = 2  # where stubs of the fork server write to
        self.last_id = 100

    # --- life ---

    def start(self) -> Hello:
        """A stub from the fork server."""
        if self.fork_server is None:
            self.start_fork_server()
        self.new_key()
        socket.send_fds(self.orders, [json.dumps(["spawn", self.key, self.key, None]).encode() + b"\n"], [self.output])
        hello = self.receive()
        self.forked_pid = hello.pid
        return hello

    def start_by_path(self) -> Hello:
        """A stub as another interpreter would run it."""
        self.new_key()
        self.process = subprocess.Popen(
            [sys.executable, MAIN, "--bus", self.bus, "--key", self.key, "--title", self.key], stdin=subprocess.DEVNULL
        )
        return self.receive()

    def start_fork_server(self) -> None:
        self.orders, theirs = socket.socketpair()
        self.orders.settimeout(DEADLINE_S)
        self.reports = self.orders.makefile("rb")
        with theirs:
            arguments = ["--fork-server", str(theirs.fileno()), "--bus", self.bus, "--run-dir", "/nowhere"]
            self.fork_server = subprocess.Popen(
                [sys.executable, MAIN, *arguments, "--shm-directory", self.shm_directory], pass_fds=[theirs.fileno()]
            )

    def stop_fork_server(self) -> None:
        if self.fork_server is not None:
            self.orders.sendall(b'["close"]\n')
            assert self.fork_server.wait(DEADLINE_S) == 0
            self.reports.close()
            self.orders.close()
            self.fork_server = None

    def new_key(self) -> None:
        self.last_id += 1
        self.key = f"m_{self.last_id}"
        self.logs.clear()

    def exit_code(self) -> int:
        if self.process is not None:
            return self.process.wait(DEADLINE_S)
        while self.forked_pid:
            what, *of_stub = json.loads(self.reports.readline())
            if what == "exited" and of_stub[0] == self.key:
                self.forked_pid = 0
                return of_stub[1]
        return 0

    def end_stub(self) -> None:
        if self.process is not None:
            self.process.kill()
        elif self.forked_pid:
            self.orders.sendall(json.dumps(["kill", self.key]).encode() + b"\n")
        self.exit_code()
        self.process = None
        sweep(self.shm_directory)

    def close(self) -> None:
        self.stop_fork_server()
        self.store.close()
        self.reader.close()

    def load(
        self,
        model_file: Path,
        mode: str = "serve",
        shared: bool = True,
        config: dict = CONFIG,
        max_unread: int = 0,
    ) -> None:
        args = by_hand.load_args(model_file.parent.parent, config, version=model_file.parent.name)
        block = self.store.allocate(len(NONCE))
        block.view[:] = NONCE
        probe = Handle(*block[:3]) if shared else Handle("tensorbus-1-" + 32 * "0", 128, 16)
        directory = os.path.dirname(model_file)
        self.send(Load(LOAD, mode, str(model_file), directory, args, probe, self.shm_directory, max_unread))

    def serve(self, model_file: Path, **options) -> Ready:
        """Load, and be told that it is ready."""
        self.load(model_file, **options)
        ready = self.receive()
        assert isinstance(ready, Ready), ready
        return ready

    def segment_of(self, ready: Ready) -> Segment:
        """The one with the stub's status word."""
        return Segment.attach(self.shm_directory, ready.segment)

    def finish(self) -> None:
        self.send(Finish(FINISH))

    # --- messages ---

    def send(self, message, frames=()) -> None:
        self.send_bytes(encode(message), *frames)

    def send_bytes(self, *frames: bytes) -> None:
        self.router.send_multipart([self.key.encode(), *frames])

    def receive(self):
        """The next message that is no Log (those are kept); its frames are in ``frames``."""
        while True:
            assert self.router.poll(DEADLINE_S * 1000), "the stub says nothing"
            key, header, *self.frames = self.router.recv_multipart()
            if key.decode() != self.key:  # the last words of an earlier one
                continue
            message = decode_from_stub(header)
            if not isinstance(message, Log):
                return message
            self.logs.append(message)

    def wait_for_log(self) -> Log:
        while not self.logs:
            assert self.router.poll(DEADLINE_S * 1000), "no log line"
            message = decode_from_stub(self.router.recv_multipart()[1])
            assert isinstance(message, Log), message
            self.logs.append(message)
        return self.logs.pop(0)

    # --- requests ---

    def request(self, *values: float, inline: bool = False) -> tuple[Request, list[bytes]]:
        """A request with an input IN of FP32, and the frames that go with it."""
        self.last_id += 1
        return by_hand.request(self.last_id, values, None if inline else self.store)

    def execute(self, *requests: Request, released=(), frames=()) -> None:
        """Each request as a batch of its own; the batch has the request's id."""
        self.send(Execute(EXECUTE, by_hand.batches(requests), list(released)), frames)

    def infer(self, *values: float, inline: bool = False) -> Response:
        request, frames = self.request(*values, inline=inline)
        self.execute(request, frames=frames)
        results = self.receive()
        (executed,) = results.executed
        (response,) = executed.responses
        assert executed.batch == response.request == request.id
        return response

    def values(self, response: Response) -> list:
        """What is in its one output."""
        return by_hand.values(response, self.frames, self.reader)
