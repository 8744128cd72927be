"""Real servers for the system tests: real processes, ZeroMQ, shared memory and sockets; deadlines instead of sleeps."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SHM = Path("/dev/shm")

CONFIG = """
backend: "python"
max_batch_size: 0
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }]
instance_group [{ kind: KIND_CPU count: %d }]
"""

IDENTITY = """
def execute(self, requests):
    return [respond(request, pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()) for request in requests]
"""

PREAMBLE = """
import os, signal, sys, time
import numpy as np
import triton_python_backend_utils as pb_utils


def respond(request, array):
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUT", array)])


class TritonPythonModel:
"""


def eventually(condition: Callable[[], object], timeout_s: float = 10.0, what: str = "") -> object:
    """The first true value of ``condition``; fails after the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"did not happen within {timeout_s} s: {what or condition}"
        time.sleep(0.01)


class Repository:
    """A model repository in a temporary directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(
        self, name: str, code: str = IDENTITY, instances: int = 1, config: str | None = None, version: int = 1
    ) -> Path:
        """A model with methods ``code`` and IN, OUT of FP32 [-1] unless ``config`` says otherwise."""
        directory = self.path / name / str(version)
        directory.mkdir(parents=True)
        text = CONFIG % instances if config is None else config
        if text:
            (self.path / name / "config.pbtxt").write_text(text)
        (directory / "model.py").write_text(PREAMBLE + textwrap.indent(textwrap.dedent(code), "    "))
        return directory


class Answer:
    """Status, headers and body of an HTTP answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def data(self) -> list:
        """Of the one output."""
        assert self.status == 200, self.body
        return self.json["outputs"][0]["data"]


class Server:
    """One ``tensorbus serve`` process."""

    def __init__(self, repository: Path, log: Path, *flags: str) -> None:
        self.log = log
        self.shm_before = set(os.listdir(SHM))
        with log.open("wb") as stream:
            command = [sys.executable, "-m", "tensorbus", "serve", f"--model-repository={repository}"]
            ports = ["--http-port=0", "--grpc-port=0", "--metrics-port=0"]
            addresses = [f"--{kind}-address=127.0.0.1" for kind in ("http", "grpc", "metrics")]
            self.process = subprocess.Popen(
                [*command, *ports, *addresses, *flags], stdout=stream, stderr=subprocess.STDOUT, cwd=ROOT
            )
        self.tree = psutil.Process(self.process.pid)

    def wait_ready(self, timeout_s: float = 30.0) -> Server:
        eventually(lambda: self.process.poll() is not None or "Started Metrics" in self.text(), timeout_s, "start")
        assert self.process.poll() is None, self.text()
        return self

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def _port(self, line: str) -> int:
        return int(self.text().split(line)[1].split(":")[1].split('"')[0])

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self._port('Started HTTPService at')}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self._port('Started GRPCInferenceService at')}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self._port('Started Metrics Service at')}/metrics"

    # -- HTTP without a client library

    def get(self, path: str) -> Answer:
        return self.call("GET", path, None)

    def post(self, model: str, values: list, timeout_s: float = 60.0, **request: object) -> Answer:
        """JSON infer with IN of the given floats."""
        inputs = [{"name": "IN", "datatype": "FP32", "shape": [len(values)], "data": values}]
        body = json.dumps({"inputs": inputs, **request}).encode()
        return self.call("POST", f"/v2/models/{model}/infer", body, timeout_s)

    def call(self, method: str, path: str, body: bytes | None, timeout_s: float = 60.0) -> Answer:
        request = urllib.request.Request(f"http://{self.http}{path}", data=body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, dict(error.headers), error.read())

    def ready(self, model: str = "") -> bool:
        return self.get(f"/v2/models/{model}/ready" if model else "/v2/health/ready").status == 200

    def index(self) -> list[dict]:
        return json.loads(self.call("POST", "/v2/repository/index", b"").body)

    def metric(self, name: str, **labels: str) -> float:
        """One sample of the exposition, by its labels in alphabetical order."""
        inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        start = f"{name}{{{inside}}} "
        with urllib.request.urlopen(self.metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        (value,) = [line[len(start) :] for line in lines if line.startswith(start)]
        return float(value)

    def fail_counts(self, model: str) -> dict[str, float]:
        reasons = ("BACKEND", "CANCELED", "OTHER", "REJECTED")
        return {r: self.metric("nv_inference_request_failure", model=model, reason=r, version="1") for r in reasons}

    # -- processes and memory

    def stubs(self, model: str = "") -> list[psutil.Process]:
        """Living stub processes, of one model if given."""
        found = []
        for process in self.tree.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if f"tensorbus stub: {model}" in title and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def zombies(self) -> list[psutil.Process]:
        children = self.tree.children(recursive=True)
        return [child for child in children if child.status() == psutil.STATUS_ZOMBIE]

    def shm(self) -> set[str]:
        """Segments of ours, made since this server was started."""
        return {name for name in set(os.listdir(SHM)) - self.shm_before if name.startswith("tensorbus-")} & self._own()

    def _own(self) -> set[str]:
        pids = {self.process.pid} | {process.pid for process in self._all}
        return {name for name in os.listdir(SHM) if name.startswith("tensorbus-") and int(name.split("-")[1]) in pids}

    @property
    def _all(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            self._known = {*getattr(self, "_known", set()), *self.tree.children(recursive=True)}
        return list(self._known)

    def shm_bytes(self) -> int:
        """Allocated bytes of our segments."""
        return sum((SHM / name).stat().st_blocks * 512 for name in self.shm())

    # -- the end

    def terminate(self, timeout_s: float = 20.0) -> int:
        """SIGTERM; the exit code."""
        _ = self._all
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        _ = self._all
        self.process.kill()
        self.process.wait(10)

    def nothing_left(self) -> bool:
        """No process and no segment of this server."""
        alive = [process for process in self._all if process.is_running() and process.status() != "zombie"]
        return not alive and not self.shm()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    path = tmp_path / "models"
    path.mkdir()
    return Repository(path)


@pytest.fixture
def start(repository: Repository, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers on the repository; every one must leave nothing behind."""
    servers: list[Server] = []

    def start(*flags: str, wait: bool = True) -> Server:
        server = Server(repository.path, tmp_path / f"server{len(servers)}.log", *flags)
        servers.append(server)
        return server.wait_ready() if wait else server

    yield start
    for server in servers:
        _ = server._all
        if server.process.poll() is None:
            server.terminate()
        eventually(server.nothing_left, 10.0, "processes and segments gone")
    shutil.rmtree(repository.path)
