import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorbus.run_directory import run_directory

KILLED = """
import os
from tensorbus.run_directory import run_directory
with run_directory() as path:
    print(path, flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def temporary_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        monkeypatch.setenv("TMPDIR", path)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(path)


def test_it_is_private_and_goes_with_the_server(temporary_directory: Path) -> None:
    with run_directory() as path:
        assert os.stat(path).st_mode & 0o777 == 0o700
        assert Path(path).parent == temporary_directory
    assert not os.path.exists(path)


def test_what_a_killed_server_left_is_removed_and_a_live_ones_stays() -> None:
    left = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True).stdout.strip()
    assert os.path.isdir(left)
    with run_directory() as first, run_directory() as second:
        assert os.path.isdir(first)
        assert os.path.isdir(second)
        assert not os.path.exists(left)


def test_directories_of_others_are_left_alone(temporary_directory: Path) -> None:
    other = temporary_directory / "tensorbus-model"
    other.mkdir()
    with run_directory():
        assert other.exists()


@pytest.mark.parametrize("name", ["long" * 30, os.fsdecode(b"caf\xe9")])
def test_a_temporary_directory_that_no_socket_can_be_in_is_not_used(
    temporary_directory: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    directory = temporary_directory / name
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    with run_directory() as path:
        assert os.path.dirname(path) == "/tmp"
