"""The services of a scaled stack as processes of this host, and what they cost."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from benchmarks.server import ROOT

START_S = 60.0
STOP_S = 20.0
# With a /dev/shm of its own, as on another host; needs root.
ALONE = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")


class Service:
    """``tensorbus <kind>``, with a log that can be read while it runs."""

    def __init__(self, kind: str, flags: Sequence[str], log: Path, place: Sequence[str] = ()) -> None:
        """``place`` is a command that runs the one after it, elsewhere."""
        self.kind = kind
        self._log = log
        command = [*place, sys.executable, "-m", "tensorbus", kind, *flags]
        with log.open("wb") as stream:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT)
        self._own = psutil.Process(self.process.pid)

    def said(self, text: str, timeout_s: float = START_S) -> str:
        """The rest of the first line of its log that has this text, once it is there."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and self.process.poll() is None:
            for line in self._log.read_text().splitlines():
                if text in line:
                    return line.split(text, 1)[1].strip()
            time.sleep(0.02)
        raise RuntimeError(f"{self.kind} has not said '{text}':\n{self._log.read_text()[-3000:]}")

    @property
    def address(self) -> str:
        """Where a broker listens."""
        return self.said("listening for services").split("address=")[1].split()[0]

    def cpu_s(self) -> float:
        """CPU time so far, without its children."""
        return float(sum(self._own.cpu_times()[:2]))

    def tree_cpu_s(self) -> float:
        """With its living children."""
        return sum(sum(one.cpu_times()[:2]) for one in [self._own, *self._own.children(recursive=True)])

    def stubs(self) -> int:
        """Processes of its models, and of what starts them."""
        return len(self._own.children(recursive=True))

    def pss_bytes(self) -> int:
        return int(self._own.memory_full_info().pss)

    def open_files(self) -> int:
        return int(self._own.num_fds())

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def services() -> Iterator[Services]:
    with tempfile.TemporaryDirectory() as directory:
        started = Services(Path(directory))
        try:
            yield started
        finally:
            started.stop()


class Services:
    """Those that were started, in their order."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started: list[Service] = []

    def start(self, kind: str, *flags: str, place: Sequence[str] = ()) -> Service:
        service = Service(kind, flags, self._logs / f"{len(self._started)}-{kind}.log", place)
        self._started.append(service)
        return service

    def stop(self) -> None:
        """The last first: gateways go before stub hosts, and the broker is there until the end."""
        for service in reversed(self._started):
            if service.process.poll() is None:
                service.stop()
        self._started.clear()
