"""It starts, or ends with one sentence, where the system gives it less than usual."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.conftest import ROOT, Repository, Start, eventually

IN_A_FULL_SHM = 'mount -t tmpfs -o size=4k none /dev/shm; cat /dev/zero > /dev/shm/full 2>/dev/null; exec "$@"'


def own_mounts_allowed() -> bool:
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not own_mounts_allowed(), reason="needs a mount namespace")
def test_with_shared_memory_full_from_the_start_tensors_travel_in_messages(
    repository: Repository, start: Start
) -> None:
    repository.add("ident")
    server = start(wrapper=["unshare", "-m", "sh", "-c", IN_A_FULL_SHM, "sh"])
    assert server.post("ident", [1.0, 2.0]).data == [1.0, 2.0]
    assert server.lines("W", "shared memory is not used")
    assert "Traceback" not in server.text()


def test_a_low_soft_limit_on_open_files_is_raised(repository: Repository, start: Start) -> None:
    for number in range(20):
        repository.add(f"m{number}")
    server = start(wrapper=["sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh"])
    assert server.post("m19", [1.0]).data == [1.0]


def test_a_temporary_directory_with_a_long_path_is_no_obstacle(repository: Repository, start: Start) -> None:
    repository.add("ident")
    long = repository.path.parent / ("long" * 30)
    long.mkdir()
    server = start(environ={"TMPDIR": str(long)})
    assert server.post("ident", [1.0]).data == [1.0]


def test_a_name_that_is_not_utf8_does_not_hide_the_other_models(repository: Repository, start: Start) -> None:
    repository.add("ident")
    os.mkdir(os.fsencode(repository.path) + b"/caf\xe9")
    server = start("--exit-on-error=false")
    assert server.post("ident", [1.0]).data == [1.0]
    assert sorted(server.index()) == [r"caf\xe9:", "ident:1"]


NOTICED = """
def initialize(self, args):
    open({flag!r}, "w").close()

def execute(self, requests):
    return [respond(request, values(request)) for request in requests]
"""


def full_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    return reader, writer


def command(repository: Repository) -> list[str]:
    ports = [f"--{kind}-port=0" for kind in ("http", "grpc", "metrics")]
    return [sys.executable, "-m", "tensorbus", "serve", f"--model-repository={repository.path}", *ports]


def test_a_log_that_nobody_reads_hinders_neither_start_nor_stop(
    repository: Repository, flag: Callable[[str], Path]
) -> None:
    repository.add("noticed", NOTICED.format(flag=str(flag("loaded"))))
    reader, writer = full_pipe()
    with subprocess.Popen(command(repository), cwd=ROOT, stdout=writer, stderr=writer) as server:
        eventually(flag("loaded").exists, 30)
        server.terminate()
        assert server.wait(20) == 0
    os.close(reader)
    os.close(writer)


def test_closed_standard_streams_are_no_obstacle(repository: Repository, flag: Callable[[str], Path]) -> None:
    repository.add("noticed", NOTICED.format(flag=str(flag("loaded"))))
    closing = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    with subprocess.Popen([*closing, *command(repository)], cwd=ROOT) as server:
        eventually(flag("loaded").exists, 30)
        streams = [os.readlink(f"/proc/{server.pid}/fd/{number}") for number in range(3)]
        server.terminate()
        assert server.wait(20) == 0
    assert streams == [os.devnull] * 3


def test_the_next_start_removes_what_a_server_killed_with_its_fork_server_left(
    repository: Repository, start: Start
) -> None:
    repository.add("ident")
    killed = start()
    for process in killed.processes():  # or the fork server would clean up between the two
        process.suspend()
    for process in killed.processes():
        process.send_signal(signal.SIGKILL)
    eventually(lambda: killed.process.poll() is not None)
    assert list(killed.temporary.glob("tensorbus-*"))
    assert start(environ={"TMPDIR": str(killed.temporary)}).terminate() == 0
    eventually(lambda: not killed.left())
