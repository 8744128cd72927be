"""Starts a server under measurement, tells what its whole process tree costs, and stops it."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import psutil  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")
START_S = 120.0
STOP_S = 30.0


class Ports(NamedTuple):
    http: int
    grpc: int
    metrics: int


class Contender(NamedTuple):
    """A server that can be measured, by the command that starts it. Its ports are in the environment as well."""

    name: str
    command: Callable[[Path, Ports], list[str]]


def _ours(repository: Path, ports: Ports) -> list[str]:
    command = [sys.executable, "-m", "tensorbus", "serve", f"--model-repository={repository}"]
    command += [f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]
    return [*command, "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"]


OURS = Contender("tensorbus", _ours)


def triton(script: str) -> Contender:
    """The real Triton, by a script that takes a model repository and HTTP_PORT, GRPC_PORT and METRICS_PORT."""
    return Contender("triton", lambda repository, ports: [script, str(repository)])


class Server:
    """A running server. ``started_ns`` is when its command was run, ``ready_s`` how long until ready answered 200."""

    def __init__(self, process: subprocess.Popen[bytes], ports: Ports, started_ns: int) -> None:
        self._process = psutil.Process(process.pid)
        self.ports = ports
        self.started_ns = started_ns
        self.ready_s = 0.0

    def tree(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]

    def cpu_s(self) -> float:
        """CPU time of the tree so far. A process's ``children_*`` are its dead, reaped children, the living are in
        the list themselves: each is counted once."""
        return sum(sum(times[:4]) for times in self._each(lambda process: process.cpu_times()))

    def pss_bytes(self) -> int:
        """Memory of the tree; a page that several processes share is counted once among them."""
        return sum(info.pss for info in self._each(lambda process: process.memory_full_info()))

    def open_files(self) -> int:
        return sum(self._each(lambda process: process.num_fds()))

    def _each(self, ask: Callable[[psutil.Process], T]) -> Iterator[T]:
        for process in self.tree():
            try:
                yield ask(process)
            except psutil.NoSuchProcess:
                continue


@contextmanager
def running(contender: Contender, repository: Path, flags: tuple[str, ...] = ()) -> Iterator[Server]:
    ports = free_ports()
    environment = {
        **os.environ,
        "HTTP_PORT": str(ports.http),
        "GRPC_PORT": str(ports.grpc),
        "METRICS_PORT": str(ports.metrics),
    }
    with tempfile.TemporaryFile() as log:
        started_ns = time.monotonic_ns()
        command = [*contender.command(repository, ports), *flags]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        server = Server(process, ports, started_ns)
        try:
            _wait_until_ready(process, server)
            yield server
        except Exception:
            log.seek(0)
            sys.stderr.write(f"--- the end of {contender.name}'s log\n{log.read()[-3000:].decode(errors='replace')}\n")
            raise
        finally:
            _stop(process, server)


def free_ports() -> Ports:
    with ExitStack() as sockets:  # held together, so that the three differ
        found = [sockets.enter_context(socket.socket()) for _ in range(3)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        http_port, grpc_port, metrics_port = (each.getsockname()[1] for each in found)
    return Ports(http_port, grpc_port, metrics_port)


def _wait_until_ready(process: subprocess.Popen[bytes], server: Server) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode} while starting")
        if _is_ready(server.ports.http):
            server.ready_s = (time.monotonic_ns() - server.started_ns) / 1e9
            return
        time.sleep(0.005)
    raise RuntimeError(f"the server was not ready within {START_S:.0f} s")


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes], server: Server) -> None:
    """The whole tree is gone when this returns: what it leaves behind would load the next one's machine."""
    tree = server.tree() if process.poll() is None else []
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(tree, timeout=5)
    for each in alive:
        each.kill()
