"""It starts, or ends with one sentence, where the system gives it less than usual."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.system.conftest import Repository, Start

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
