from __future__ import annotations

import pytest

from broker.backends import Backend, scan, with_settings
from broker.model_config import from_message, parse_text


def add(directory, name, *files):
    for file in files:
        (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / name / file).write_text("")


def none(name):
    return {}


def test_a_folder_with_a_model_file_is_a_backend(tmp_path):
    add(tmp_path, "add_sub", "model.py")
    add(tmp_path, "empty", "readme.txt")
    add(tmp_path, "compiled", "libtriton_compiled.so")
    (tmp_path / "file").write_text("")
    assert scan([str(tmp_path)], none) == {"add_sub": Backend("add_sub", f"{tmp_path}/add_sub/model.py")}


def test_an_environment_beside_the_file_is_the_backends(tmp_path):
    add(tmp_path, "b", "model.py", "pb_exec_env_model.py.tar.gz")
    assert scan([str(tmp_path)], none)["b"].environment == f"{tmp_path}/b/pb_exec_env_model.py.tar.gz"


def test_of_two_with_one_name_the_earlier_directory_counts(tmp_path):
    add(tmp_path / "users", "onnxruntime", "model.py")
    add(tmp_path / "ours", "onnxruntime", "model.py")
    add(tmp_path / "ours", "pytorch", "model.py")
    files = [one.model_file for one in scan([str(tmp_path / "users"), str(tmp_path / "ours")], none).values()]
    assert files == [f"{tmp_path}/users/onnxruntime/model.py", f"{tmp_path}/ours/pytorch/model.py"]


def test_a_directory_may_be_missing_and_is_told_absolutely(tmp_path, monkeypatch):
    add(tmp_path / "here", "b", "model.py")
    monkeypatch.chdir(tmp_path)
    assert scan(["nowhere", "here"], none)["b"].model_file == f"{tmp_path}/here/b/model.py"


def test_python_itself_is_none(tmp_path):
    add(tmp_path, "python", "model.py", "triton_python_backend_utils.py")
    assert scan([str(tmp_path)], none) == {}


def test_each_has_its_settings(tmp_path):
    add(tmp_path, "a", "model.py")
    add(tmp_path, "b", "model.py")
    found = scan([str(tmp_path)], lambda name: {"of": name})
    assert [one.settings for one in found.values()] == [{"of": "a"}, {"of": "b"}]


@pytest.fixture
def config():
    text = 'name: "m" backend: "b" parameters { key: "op" value { string_value: "add" } }'
    return from_message(parse_text(text.encode(), "config.pbtxt"))


def test_settings_are_defaults_of_the_parameters(config):
    backend = Backend("b", "/b/model.py", settings={"op": "sub", "threads": "2"})
    assert with_settings(config, backend).parameters == {"op": "add", "threads": "2"}
    assert config.parameters == {"op": "add"}


def test_without_settings_the_configuration_stays_the_same(config):
    assert with_settings(config, None) is config
    assert with_settings(config, Backend("b", "/b/model.py")) is config
