"""Where a stub host has what the broker names."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import ProtocolError
from protocol.messages import LOAD, Handle, Load
from tensorbus.stub_paths import Places, write_files


@pytest.mark.parametrize(
    "path, expected",
    [
        ("/models/m/1/model.py", "/mnt/a/m/1/model.py"),
        ("/models", "/mnt/a"),
        ("/models/special/m", "/mnt/b/m"),  # the innermost counts
        ("/modelsother/m", "/modelsother/m"),
        ("/opt/env.tar.gz", "/opt/env.tar.gz"),
        ("env.tar.gz", "env.tar.gz"),
        ("", ""),
    ],
)
def test_a_path_inside_a_repository_is_looked_for_in_ours(path: str, expected: str) -> None:
    assert Places(["/models/", "/models/special"], ["/mnt/a", "/mnt/b"]).local(path) == expected


def test_without_counterparts_paths_are_what_they_are() -> None:
    assert Places(["/models"], []).local("/models/m") == "/models/m"


def test_the_whole_file_system_may_be_a_repository() -> None:
    assert Places(["/"], ["/host"]).local("/m/1") == "/host/m/1"


def test_files_that_came_along_come_before_a_repository() -> None:
    places = Places(["/models"], ["/mnt"])
    assert places.having("/models/m", "/run/x").local("/models/m/1/model.py") == "/run/x/1/model.py"
    assert places.local("/models/m/1") == "/mnt/m/1"


def test_a_load_has_its_paths_here() -> None:
    args = {"model_repository": "/models/m", "model_name": "/models/m"}
    load = Places(["/models"], ["/mnt"]).load(
        Load(LOAD, "serve", "/models/m/1/model.py", "/models/m/1", args, Handle("", 0, 0), "/dev/shm")
    )
    assert (load.model_file, load.version_directory) == ("/mnt/m/1/model.py", "/mnt/m/1")
    assert load.args == {"model_repository": "/mnt/m", "model_name": "/models/m"}


def test_files_are_written_for_this_user_alone(tmp_path: Path) -> None:
    write_files(str(tmp_path / "a" / "b"), {"config.pbtxt": b"x", "1/model.py": b"y", "1/data/z": b""})
    assert (tmp_path / "a" / "b" / "1" / "model.py").read_bytes() == b"y"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b" / "1" / "data").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", ["/etc/x", "../x", "1/../../x", "..", ".", "", "a/", "./a", "a//b", "a\0b"])
def test_a_file_outside_is_a_protocol_error_and_nothing_is_written(tmp_path: Path, path: str) -> None:
    with pytest.raises(ProtocolError):
        write_files(str(tmp_path / "new"), {"fine": b"", path: b"x"})
    assert list(tmp_path.iterdir()) == []
