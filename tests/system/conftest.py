"""Real servers for the system tests: real processes, ZeroMQ, shared memory and sockets; deadlines instead of sleeps."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest

from tests.system.forked import Forked

ROOT = Path(__file__).parents[2]
AS_STACK = os.environ.get("TENSORBUS_TEST_STACK", "")  # as_one_server.py: which stack the tests start as a server
SHM = Path("/dev/shm")
MiB = 1 << 20

CONFIG = """
backend: "python"
max_batch_size: 0
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }]
instance_group [{ kind: KIND_CPU count: %d }]
"""

PREAMBLE = """
import os, signal, sys, time
import numpy as np
import triton_python_backend_utils as pb_utils


def values(request):
    return pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()


def respond(request, array):
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("OUT", array)])


def wait_for(path):
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.002)


class TritonPythonModel:
"""

IDENTITY = """
def execute(self, requests):
    return [respond(request, values(request)) for request in requests]
"""

T = TypeVar("T")


def eventually(condition: Callable[[], T], timeout_s: float = 10.0, what: str = "") -> T:
    """The first true value of ``condition``; fails after the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"did not happen within {timeout_s} s: {what or condition}"
        time.sleep(0.01)


def together(clients: int, jobs: Sequence[Callable[[], T]], timeout_s: float = 60.0) -> list[T]:
    """The results of ``jobs`` in their order, done by so many threads at once."""
    with ThreadPoolExecutor(clients) as pool:
        futures = [pool.submit(job) for job in jobs]
        return [future.result(timeout_s) for future in futures]


class Background:
    """Calls ``work`` in threads until told to stop, or so many times; an exception of it is raised by ``stop``."""

    def __init__(self, threads: int, work: Callable[[], T], times: int = sys.maxsize) -> None:
        self.results: list[Any] = []
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(threads)
        self._futures = [self._pool.submit(self._run, work, times) for _ in range(threads)]

    def _run(self, work: Callable[[], T], times: int) -> None:
        while times and not self._stop.is_set():
            self.results.append(work())
            times -= 1

    def stop(self, timeout_s: float = 60.0) -> list[Any]:
        self._stop.set()
        for future in self._futures:
            future.result(timeout_s)
        self._pool.shutdown()
        return self.results


class Repository:
    """A model repository in a temporary directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(
        self, name: str, code: str = IDENTITY, instances: int = 1, config: str | None = None, version: int = 1
    ) -> Path:
        """A model of methods ``code``, with IN and OUT of FP32 [-1] unless ``config`` says otherwise ("": no file).

        Returns the version directory. The code may use the names of PREAMBLE."""
        directory = self.path / name / str(version)
        directory.mkdir(parents=True)
        text = CONFIG % instances if config is None else config
        if text:
            (self.path / name / "config.pbtxt").write_text(text)
        (directory / "model.py").write_text(PREAMBLE + textwrap.indent(textwrap.dedent(code), "    "))
        return directory


class Answer:
    """Status, headers (in lower case) and body of an HTTP answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"Answer({self.status}, {self.body[:300]!r})"

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """Of an answer that is an error and nothing else."""
        assert self.status >= 400, self
        (text,) = self.json.values()
        assert list(self.json) == ["error"], self
        return str(text)

    @property
    def data(self) -> list[float]:
        """Of the one output, which is JSON."""
        assert self.status == 200, self
        (output,) = self.json["outputs"]
        return list(output["data"])

    @property
    def array(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Of the one output, which is FP32 by the binary extension."""
        assert self.status == 200, self
        return np.frombuffer(self.body, np.float32, offset=int(self.headers["inference-header-content-length"]))


def json_request(values: Sequence[float], **members: object) -> bytes:
    """The body of an infer request with IN of the given floats."""
    inputs = [{"name": "IN", "datatype": "FP32", "shape": [len(values)], "data": list(values)}]
    return json.dumps({"inputs": inputs, **members}).encode()


def binary_request(array: np.ndarray[Any, Any], datatype: str = "FP32") -> tuple[bytes, dict[str, str]]:
    """Body and headers of an infer request with IN by the binary extension, OUT to come back so too."""
    data = array.tobytes()
    tensor = {"name": "IN", "datatype": datatype, "shape": array.shape, "parameters": {"binary_data_size": len(data)}}
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return header + data, {"Inference-Header-Content-Length": str(len(header))}


class Server:
    """One ``tensorbus serve`` process, on ports of its own choice and with a temporary directory of its own."""

    def __init__(
        self,
        repository: Path | str,
        log: Path,
        *flags: str,
        wrapper: Sequence[str] = (),
        environ: Mapping[str, str] = {},
    ) -> None:
        """``wrapper`` is a command that runs the server's. Of a flag given twice the last counts."""
        self.log = log
        self.temporary = Path(tempfile.mkdtemp(prefix="tb"))  # short: the path of a Unix socket ends at 107 bytes
        given = [f"--model-repository={repository}"]
        for kind in ("http", "grpc", "metrics"):
            given += [f"--{kind}-port=0", f"--{kind}-address=127.0.0.1"]
        given += flags
        env = {**os.environ, "TMPDIR": str(self.temporary), **environ}
        self.process: subprocess.Popen[bytes] | Forked
        with log.open("wb") as stream:
            if wrapper or environ or AS_STACK:
                module = ["tests.system.as_one_server", AS_STACK] if AS_STACK else ["tensorbus", "serve"]
                command = [*wrapper, sys.executable, "-m", *module, *given]
                self.process = subprocess.Popen(command, stdout=stream, stderr=stream, cwd=ROOT, env=env)
            else:
                self.process = Forked(["serve", *given], stream, env)
        self._prepare()

    def _prepare(self) -> None:
        """Its process has just been started."""
        self._shm_before = set(os.listdir(SHM))
        self._tree = psutil.Process(self.process.pid)
        self._seen: set[psutil.Process] = set()
        self._threads = threading.local()

    def wait_ready(self, timeout_s: float = 30.0) -> Server:
        """Until it has opened its ports."""
        return self.wait_for_line("the stack is up" if AS_STACK else "Started Metrics Service", timeout_s)

    def wait_for_line(self, text: str, timeout_s: float = 30.0) -> Server:
        eventually(lambda: self.process.poll() is not None or text in self.text(), timeout_s, text)
        assert self.process.poll() is None, self.text()
        return self

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def lines(self, *words: str) -> list[str]:
        """The lines of the log that hold all of the words."""
        return [line for line in self.text().splitlines() if all(word in line for word in words)]

    def _address(self, service: str) -> str:
        return self.text().split(f"Started {service} at ")[1].split('"')[0]

    @property
    def http(self) -> str:
        return self._address("HTTPService")

    @property
    def grpc(self) -> str:
        return self._address("GRPCInferenceService")

    @property
    def metrics_url(self) -> str:
        return f"http://{self._address('Metrics Service')}/metrics"

    # -- HTTP without a client library

    def post(self, model: str, values: Sequence[float], timeout_s: float = 60.0, **members: object) -> Answer:
        return self.call("POST", f"/v2/models/{model}/infer", json_request(values, **members), timeout_s=timeout_s)

    def post_binary(self, model: str, array: np.ndarray[Any, Any]) -> Answer:
        return self.call("POST", f"/v2/models/{model}/infer", *binary_request(array))

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def call(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}, timeout_s: float = 60.0
    ) -> Answer:
        """Over a connection that the calling thread keeps."""
        connection = self._connection(timeout_s)
        try:
            try:
                connection.request(method, path, body, dict(headers))
                response = connection.getresponse()
            except RemoteDisconnected:  # closed since the last call, before this one was read
                connection.close()
                connection.request(method, path, body, dict(headers))
                response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        except BaseException:
            connection.close()
            raise

    def _connection(self, timeout_s: float) -> HTTPConnection:
        connection = getattr(self._threads, "connection", None)
        if connection is None:
            connection = self._threads.connection = HTTPConnection(self.http)
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        assert isinstance(connection, HTTPConnection)
        return connection

    def connect(self) -> socket.socket:
        """A bare connection to the HTTP port."""
        host, port = self.http.split(":")
        return socket.create_connection((host, int(port)), timeout=10)

    def ready(self, model: str = "") -> bool:
        status = self.get(f"/v2/models/{model}/ready" if model else "/v2/health/ready").status
        assert status in (200, 400), status
        return status == 200

    def index(self) -> dict[str, dict[str, str]]:
        """By "model:version"; "model:" where it has none."""
        rows = self.call("POST", "/v2/repository/index").json
        return {f"{row['name']}:{row.get('version', '')}": row for row in rows}

    def statistics(self, model: str) -> Any:
        (row,) = self.get(f"/v2/models/{model}/stats").json["model_stats"]
        return row["inference_stats"]

    # -- metrics

    def exposition(self) -> list[str]:
        """The samples, without comments."""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return [line for line in lines if not line.startswith("#")]

    def metric(self, name: str, model: str, **labels: str) -> float:
        """A sample of version 1."""
        every = {"model": model, "version": "1", **labels}
        start = name + "{" + ",".join(f'{key}="{value}"' for key, value in sorted(every.items())) + "} "
        (line,) = [line for line in self.exposition() if line.startswith(start)]
        return float(line.removeprefix(start))

    def failures(self, model: str) -> dict[str, float]:
        """By reason, only those that are not 0."""
        reasons = ("BACKEND", "CANCELED", "OTHER", "REJECTED")
        counts = {r: self.metric("nv_inference_request_failure", model, reason=r) for r in reasons}
        return {reason: count for reason, count in counts.items() if count}

    def pending(self, model: str) -> float:
        return self.metric("nv_inference_pending_request_count", model)

    # -- processes and memory

    def processes(self) -> list[psutil.Process]:
        """The server and all below it, the dead ones that nobody has reaped included."""
        with contextlib.suppress(psutil.NoSuchProcess):
            found = [self._tree, *self._tree.children(recursive=True)]
            self._seen.update(found)
            return found
        return []

    def _titled(self, title: str) -> list[psutil.Process]:
        return [process for process in self.processes() if title_of(process).startswith(title)]

    def stubs(self, model: str = "") -> list[psutil.Process]:
        """Living instances, of one model if given."""
        found = self._titled(f"tensorbus stub: {model}:" if model else "tensorbus stub: ")
        return [process for process in found if "auto_complete_config" not in title_of(process)]

    def stub(self, model: str) -> psutil.Process:
        """Of the one instance."""
        (process,) = self.stubs(model)
        return process

    def fork_server(self) -> psutil.Process:
        (process,) = self._titled("tensorbus fork server")
        return process

    def zombies(self) -> list[psutil.Process]:
        return [process for process in self.processes() if _is_zombie(process)]

    def shm(self) -> set[str]:
        """Our segments: made since the server's start, and of an owner that is one of our processes or no longer is."""
        ours = {process.pid for process in self.processes()}

        def is_ours(name: str) -> bool:
            pid = int(name.split("-")[1])
            return pid in ours or not psutil.pid_exists(pid)

        return {n for n in set(os.listdir(SHM)) - self._shm_before if n.startswith("tensorbus-") and is_ours(n)}

    def shm_bytes(self) -> int:
        """Allocated to our segments."""
        total = 0
        for name in self.shm():
            with contextlib.suppress(FileNotFoundError):
                total += (SHM / name).stat().st_blocks * 512
        return total

    def descriptors(self) -> int:
        """Open files and sockets of the server and its stubs, those of mapped segments left out."""
        paths = [fd for process in (self._tree, *self.stubs()) for fd in Path(f"/proc/{process.pid}/fd").iterdir()]
        return sum(os.path.lexists(path) and not os.path.realpath(path).startswith(str(SHM)) for path in paths)

    # -- the end

    def terminate(self, timeout_s: float = 20.0) -> int:
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def signal(self, number: int) -> None:
        self.processes()
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 20.0) -> int:
        """The exit code."""
        return self.process.wait(timeout_s)

    def left(self) -> list[str]:
        """What there still is of a server that has ended."""
        alive = [repr(process) for process in self._seen if process.is_running() and not _is_zombie(process)]
        return [*alive, *self.shm(), *map(str, self.temporary.iterdir())]


def title_of(process: psutil.Process) -> str:
    """ "" of one that is gone."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _is_zombie(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return False


@contextlib.contextmanager
def serving(repository: Repository, logs: Path) -> Iterator[Callable[..., Server]]:
    """Gives a function that starts servers. At the end each is told to exit and must leave nothing behind."""
    servers: list[Server] = []

    def start(*flags: str, wait: bool = True, path: Path | str = repository.path, **options: Any) -> Server:
        server = Server(path, logs / f"server{len(servers)}.log", *flags, **options)
        servers.append(server)
        return server.wait_ready() if wait else server

    try:
        yield start
    finally:
        for server in servers:
            _end(server)


def _end(server: Server) -> None:
    try:
        if server.process.poll() is None:
            try:
                assert server.terminate() == 0, server.text()[-4000:]
            except subprocess.TimeoutExpired:
                server.process.kill()
                raise
        eventually(lambda: not server.left(), 10.0, f"nothing left of {server.left()}")
    finally:
        shutil.rmtree(server.temporary, ignore_errors=True)


Start = Callable[..., Server]


@pytest.fixture(scope="module")
def all_in_shared_memory() -> Iterator[None]:
    """Small tensors, too, so that tests of memory need no large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORBUS_SMALL_NBYTES", "0")
        yield


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    path = tmp_path / "models"
    path.mkdir()
    return Repository(path)


@pytest.fixture
def start(repository: Repository, tmp_path: Path) -> Iterator[Start]:
    """Starts servers on the repository; every one must leave nothing behind."""
    with serving(repository, tmp_path) as start:
        yield start


@pytest.fixture
def flag(tmp_path: Path) -> Callable[[str], Path]:
    """Paths of files by which a test tells its models something, and they tell it."""
    return lambda name: tmp_path / name
