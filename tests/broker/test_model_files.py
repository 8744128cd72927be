"""A model's directory made of files that came with a request: all of it inside, or none."""

from __future__ import annotations

import os

import pytest

from broker.model_files import write
from protocol.errors import InvalidArgument


def test_the_files_are_where_their_paths_say(tmp_path):
    files = {
        "file:1/model.py": b"a",
        "file:1/sub/./x/../helper.py": b"b",
        "file:labels.txt": b"",
        "file:2//model.py": b"c",
        "file:/3/model.py": b"d",
        "file://4/model.py": b"e",
    }
    path = write(files, "{}", str(tmp_path / "m"))
    assert path == str(tmp_path / "m") and os.stat(path).st_mode & 0o777 == 0o700
    found = {
        file.relative_to(path).as_posix(): file.read_bytes() for file in (tmp_path / "m").rglob("*") if file.is_file()
    }
    assert found == {
        "1/model.py": b"a",
        "1/sub/helper.py": b"b",
        "labels.txt": b"",
        "2/model.py": b"c",
        "3/model.py": b"d",
        "4/model.py": b"e",
    }


@pytest.mark.parametrize(
    "name",
    ["file:..", "file:../x", "file:1/../../x", "file:/../x", "file://..", "file:", "file:.", "file:1/..", "1/model.py"],
)
def test_a_path_that_leads_out_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(InvalidArgument, match="must stay within model directory"):
        write({"file:1/model.py": b"", name: b""}, "{}", str(tmp_path / "m"))
    assert list(tmp_path.iterdir()) == []


def test_without_a_configuration_there_is_no_model(tmp_path):
    with pytest.raises(ValueError, match="Load parameter 'config' must be specified for model file override"):
        write({"file:1/model.py": b""}, None, str(tmp_path / "m"))


@pytest.mark.parametrize("name", ["file:1/a\0b", "file:1/" + "x" * 300, "file:1/model.py/x", "file:1/\udc80\ud800"])
def test_names_that_are_none_are_errors(tmp_path, name):
    with pytest.raises((OSError, ValueError)):
        write({"file:1/model.py": b"", name: b""}, "{}", str(tmp_path / "m"))


@pytest.mark.parametrize("model", [".", "..", "a\0b", "x" * 300])
def test_a_model_name_that_is_none_is_an_error(tmp_path, model):
    with pytest.raises((OSError, ValueError)):
        write({"file:1/model.py": b""}, "{}", os.path.join(tmp_path, model))
    assert list(tmp_path.iterdir()) == []
