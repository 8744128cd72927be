"""Starts a server of the tests on free ports and waits until it answers: ours, or the real Triton by a script.

``TENSORBUS_REAL_TRITON`` names that script: it takes a model repository, then flags of tritonserver, and its ports
from HTTP_PORT, GRPC_PORT and METRICS_PORT. SIGTERM stops it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.conformance import scheduling_models
from tests.conformance.replay import Address, Ended

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "models"
START_S = 60.0
FLAGS = {
    "broken": ("--exit-on-error=false",),
    "ensembles": ("--exit-on-error=false",),  # what can be loaded of it is to be served
    "control": ("--model-control-mode=explicit", "--load-model=author"),
    "managed": ("--model-control-mode=explicit",),
    "scheduling": ("--cache-config=local,size=1048576", "--rate-limit=execution_count"),
}
ENVIRONMENT = {"held": {"TRITONSERVER_DELAY_SCHEDULER": str(scheduling_models.HELD)}}


def real_triton() -> str | None:
    return os.environ.get("TENSORBUS_REAL_TRITON")


@contextmanager
def ours(repository: str) -> Iterator[Address]:
    with _address(repository) as address:
        command = [
            sys.executable,
            "-m",
            "tensorbus",
            "serve",
            f"--model-repository={address.repository}",
            *FLAGS.get(repository, ()),
        ]
        command += [f"--http-port={address.http_port}", f"--grpc-port={address.grpc_port}"]
        command += [f"--metrics-port={address.metrics_port}"]
        with _running(command, address, ENVIRONMENT.get(repository, {})):
            yield address


@contextmanager
def theirs(repository: str) -> Iterator[Address]:
    script = real_triton()
    assert script, "TENSORBUS_REAL_TRITON is not set"
    with _address(repository) as address:
        command = [script, address.repository, *FLAGS.get(repository, ())]
        with _running(command, address, ENVIRONMENT.get(repository, {})):
            yield address


@contextmanager
def _address(repository: str) -> Iterator[Address]:
    with tempfile.TemporaryDirectory() as directory:
        if repository in scheduling_models.MODELS:
            models = Path(directory, "models")  # Triton looks through all that is beside it when it is to load ".."
            models.mkdir()
            scheduling_models.write(models, repository)
            yield Address(*_ports(), str(models))
        else:
            yield Address(*_ports(), str(MODELS / repository))


def _ports() -> tuple[int, int, int]:
    with ExitStack() as sockets:  # held together, so that the three differ
        found = [sockets.enter_context(socket.socket()) for _ in range(3)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        http, grpc, metrics = (each.getsockname()[1] for each in found)
    return http, grpc, metrics


@contextmanager
def _running(command: list[str], address: Address, more: Mapping[str, str]) -> Iterator[None]:
    ports = {
        "HTTP_PORT": str(address.http_port),
        "GRPC_PORT": str(address.grpc_port),
        "METRICS_PORT": str(address.metrics_port),
    }
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **ports, **more}, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait_until_live(process, address)
            yield
            if process.poll() is not None:
                raise Ended(f"the server ended with {process.returncode} while it was asked:")
        except (RuntimeError, Ended) as error:
            log.seek(0)
            raise type(error)(f"{error}\n{log.read()[-4000:]}") from None
        finally:
            _stop(process)


def _wait_until_live(process: subprocess.Popen[bytes], address: Address) -> None:
    """The ports open once every model has loaded or failed."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode} while starting:")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{address.http_port}/v2/health/live", timeout=5)
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.05)
    raise RuntimeError(f"the server was not live within {START_S:.0f} s:")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
