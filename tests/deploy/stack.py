"""A stack of compose.yaml that really runs, and load on it by Triton's own clients."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http

from tests.deploy.files import DEPLOY, ROOT

DOCKER = os.environ.get("DOCKER", "docker")
SERVICES = ("broker", "gateway", "stub", "prometheus")
SERVICES_OF = {"compose.gateways.yaml": ["balancer"], "compose.environment.yaml": ["stub-environment"]}

MODEL = """
import os, socket, time
import numpy as np
import triton_python_backend_utils as pb_utils


SLOW = 1000


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()) for request in requests]

    def answer(self, values):
        if values[0] > SLOW:
            time.sleep(10)
        where = np.array([f"{socket.gethostname()}/{os.getpid()}"], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values * 2), pb_utils.Tensor("WHERE", where)])
"""
CONFIG = """
backend: "python"
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [
  { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "WHERE" data_type: TYPE_STRING dims: [ 1 ] }
]
instance_group [{ kind: KIND_CPU count: 2 }]
"""

SLOW = 1001.0  # as the first value of a request: it takes ten seconds
SIZES = (16, 40_000)  # floats of a request: beside the header, and in memory of its own

T = TypeVar("T")


def why_not() -> str:
    """Why no stack can run here; "" if one can."""
    for command in (["compose", "version"], ["info"]):
        try:
            done = subprocess.run([DOCKER, *command], capture_output=True, text=True)
        except OSError as error:
            return f"{DOCKER}: {error.strerror}"
        if done.returncode:
            return f"docker {command[0]}: {(done.stderr or done.stdout).strip().splitlines()[0]}"
    return ""


def make_repository(path: Path, **preambles: str) -> Path:
    """With the model ``double``, and others that do the same after lines of their own."""
    for name, preamble in {"double": "", **preambles}.items():
        version = path / name / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(preamble + MODEL)
        (version.parent / "config.pbtxt").write_text(CONFIG)
    for each in (path, *path.rglob("*")):  # the services run as a user of their own
        each.chmod(0o755 if each.is_dir() else 0o644)
    return path


def eventually(condition: Callable[[], T], timeout_s: float, what: str) -> T:
    """The first true value of ``condition``; what it raises of a network counts as false."""
    deadline = time.monotonic() + timeout_s
    while True:
        with suppress(OSError):
            found = condition()
            if found:
                return found
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stack:
    """One project of compose. ``scale`` says how many there are of each service; one unless it does."""

    def __init__(self, project: str, models: Path, *overrides: str, **variables: str) -> None:
        files = ["compose.yaml", *overrides]
        self._command = [
            DOCKER,
            "compose",
            "--ansi",
            "never",
            "-p",
            project,
            *(part for name in files for part in ("-f", DEPLOY / name)),
        ]
        self._ports = {name: _free_port() for name in ("TENSORBUS_HTTP_PORT", "TENSORBUS_GRPC_PORT", "PROMETHEUS_PORT")}
        self._environ = {
            **os.environ,
            **{name: str(port) for name, port in self._ports.items()},
            "TENSORBUS_MODELS": str(models),
            **variables,
        }
        self._services = [*SERVICES, *(service for name in overrides for service in SERVICES_OF.get(name, ()))]
        self.http, self.grpc, self.prometheus = (f"127.0.0.1:{port}" for port in self._ports.values())

    def compose(self, *arguments: str, timeout_s: float = 300.0) -> str:
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, env=self._environ, cwd=ROOT, timeout=timeout_s
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def up(self, **scale: int) -> None:
        """Until every service is healthy and the models can be asked."""
        scaled = [part for name, count in scale.items() for part in ("--scale", f"{name}={count}")]
        self.compose("up", "--detach", "--wait", "--no-recreate", *scaled, *self._services)
        eventually(
            lambda: self._get(f"http://{self.http}/v2/models/double/ready", 5.0) is not None, 60.0, "model ready"
        )

    def kill(self, service: str) -> None:
        """One of its containers."""
        container = self.compose("ps", "--quiet", service).split()[0]
        subprocess.run([DOCKER, "kill", "--signal", "KILL", container], check=True, capture_output=True)

    def down(self) -> None:
        self.compose("down", "--volumes", "--timeout", "60")

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--no-log-prefix")

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What Prometheus makes of it: metric and value of each series."""
        found = self._get(
            f"http://{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expression})}", 10.0
        )
        answer = json.loads(found)
        assert answer["status"] == "success", answer
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def value(self, expression: str) -> float:
        """Of one series without labels; 0 if there is none."""
        return sum(float(series["value"][1]) for series in self.query(expression))

    def await_value(self, expression: str, expected: float, timeout_s: float = 90.0) -> None:
        seen: list[float] = []

        def is_there() -> bool:
            seen.append(self.value(expression))
            return seen[-1] == expected

        try:
            eventually(is_there, timeout_s, expression)
        except AssertionError:
            raise AssertionError(f"{expression} is {seen[-1:]}, not {expected}") from None

    def _get(self, url: str, timeout_s: float) -> bytes:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return bytes(answer.read())


class Load:
    """Requests of random floats, by so many HTTP and gRPC clients, until ``stop``. Every answer is checked."""

    def __init__(self, stack: Stack, http_clients: int = 3, grpc_clients: int = 2) -> None:
        self.sent = 0
        self.failures: list[str] = []
        self.places: Counter[str] = Counter()  # host/pid of the instances that answered
        self._lock = threading.Lock()
        self._stop = threading.Event()
        kinds = [(http, stack.http)] * http_clients + [(grpc, stack.grpc)] * grpc_clients
        self.threads = [threading.Thread(target=self._run, args=(*kind, seed)) for seed, kind in enumerate(kinds)]
        for thread in self.threads:
            thread.start()

    @property
    def hosts(self) -> set[str]:
        return {place.partition("/")[0] for place in list(self.places)}

    def stop(self) -> Load:
        self._stop.set()
        for thread in self.threads:
            thread.join(60)
        return self

    def await_more(self, count: int, timeout_s: float = 60.0) -> None:
        target = self.sent + count
        eventually(lambda: self.sent >= target, timeout_s, f"{count} more requests")

    def _run(self, module: Any, url: str, seed: int) -> None:
        random = np.random.default_rng(seed)
        with module.InferenceServerClient(url) as client:
            while not self._stop.is_set():
                values = random.standard_normal(random.choice(SIZES)).astype(np.float32)
                problem, where = ask(module, client, values)
                with self._lock:
                    self.sent += 1
                    if problem:
                        self.failures.append(f"{module.__name__}: {problem}")
                    else:
                        self.places[where] += 1


def ask(module: Any, client: Any, values: np.ndarray[Any, Any], model: str = "double") -> tuple[str, str]:
    """What is wrong with the answer ("" if nothing), and who gave it."""
    tensor = module.InferInput("IN", values.shape, "FP32")
    tensor.set_data_from_numpy(values)
    try:
        answer = client.infer(model, [tensor])
    except Exception as error:
        return f"{type(error).__name__}: {error}", ""
    if not np.array_equal(answer.as_numpy("OUT"), values * 2):
        return "a wrong answer", ""
    return "", answer.as_numpy("WHERE")[0].decode()
