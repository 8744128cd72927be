"""A scaled stack of real processes: a broker, gateways and stub hosts, on this host or on several ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.system.conftest import ROOT, Repository, Server, eventually
from tests.system.forked import Forked

Place = Callable[[Sequence[str]], list[str]]  # a command, as it is run on some host


class Service(Server):
    """``tensorbus <kind>``; a gateway has all that Server offers clients."""

    def __init__(
        self, kind: str, log: Path, *flags: str, place: Place | None = None, environ: Mapping[str, str] = {}
    ) -> None:
        self.kind = kind
        self.log = log
        self.temporary = Path(tempfile.mkdtemp(prefix="tb"))
        env = {**os.environ, "TMPDIR": str(self.temporary), **environ}
        with log.open("wb") as stream:
            if place or environ:
                command = [sys.executable, "-m", "tensorbus", kind, *flags]
                self.process = subprocess.Popen(
                    place(command) if place else command,
                    stdout=stream,
                    stderr=stream,
                    cwd=ROOT,
                    env=env,
                    start_new_session=True,
                )
            else:
                self.process = Forked([kind, *flags], stream, env, start_new_session=True)
        self._prepare()

    @property
    def _own(self) -> psutil.Process:
        """The service's process, which on another host is a child of the command that brings it there."""
        return self._tree.children()[0] if self._tree.name() == "nsenter" else self._tree

    def signal(self, number: int) -> None:
        self.processes()
        self._own.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)
        self.process.wait(10)

    def left(self) -> list[str]:
        """The directory of one that was killed is left for the next service of its host."""
        killed = self.process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
        return [one for one in super().left() if not (killed and one.startswith(str(self.temporary)))]


class ScaledStack:
    """``logs`` is a directory; addresses are given where they are needed. At the end all is terminated, from the
    gateways on."""

    def __init__(self, repository: Repository, logs: Path, ip: str = "127.0.0.1", keys: Path | None = None) -> None:
        """``ip`` is that of the broker."""
        self.repository = repository
        self._logs = logs
        self._ip = ip
        self._keys = keys
        self._started = 0
        self.services: list[Service] = []
        self.address = ""

    def _start(self, kind: str, *flags: str, **options: Any) -> Service:
        self._started += 1
        ports = [f"--{one}-port=0" for one in (("http", "grpc", "metrics") if kind == "gateway" else ("metrics",))]
        log = self._logs / f"{self._started}-{kind}.log"
        service = Service(kind, log, *ports, *flags, **options)
        self.services.append(service)
        return service

    def _trust(self, *flags: str) -> list[str]:
        names = {"curve-key": "service.key", "curve-broker-key": "broker.pub"}
        return [*flags, *(f"--{flag}={self._keys / name}" for flag, name in names.items() if self._keys is not None)]

    def broker(self, *flags: str, **options: Any) -> Service:
        """The first one takes a free port, which the next ones have too."""
        bind = self.address or f"tcp://{self._ip}:0"
        trust = [] if self._keys is None else [f"--curve-key={self._keys}/broker.key"]
        trust += [] if self._keys is None else [f"--curve-authorized={self._keys}/service.pub"]
        given = [f"--bind={bind}", f"--model-repository={self.repository.path}", *trust, *flags]
        service = self._start("broker", *given, **options)
        service.wait_for_line("listening for services")
        self.address = service.text().split("address=")[1].split()[0]
        return service

    def gateway(self, *flags: str, wait: bool = True, **options: Any) -> Service:
        service = self._start("gateway", *self._trust(f"--broker={self.address}"), *flags, **options)
        return service.wait_for_line("joined the broker") if wait else service

    def stub_host(self, *flags: str, wait: bool = True, **options: Any) -> Service:
        service = self._start("stub", *self._trust(f"--broker={self.address}"), *flags, **options)
        return service.wait_for_line("joined the broker") if wait else service

    def close(self) -> None:
        order = ("gateway", "stub", "broker")
        for service in sorted(self.services, key=lambda one: order.index(one.kind)):
            if service.process.poll() is None:
                service.signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    service.process.wait(20)
                if service.process.poll() is None:
                    service.kill()


@contextlib.contextmanager
def scaled_stack(repository: Repository, logs: Path, **options: Any) -> Iterator[ScaledStack]:
    """What is left of it at the end is a failure of the test."""
    stack = ScaledStack(repository, logs, **options)
    try:
        yield stack
        stack.close()
        for service in stack.services:
            eventually(lambda service=service: not service.left(), 10, f"leftovers of {service.log.name}")  # type: ignore[misc]
    finally:
        stack.close()
        for service in stack.services:
            shutil.rmtree(service.temporary, ignore_errors=True)


def ready(gateway: Service, model: str, timeout_s: float = 30.0) -> Service:
    """Once the gateway takes requests for the model."""
    eventually(lambda: gateway.call("GET", f"/v2/models/{model}/ready").status == 200, timeout_s, f"{model} is ready")
    return gateway
