"""What is wrong with an environment is told in the words of Triton, or in ours where it has none."""

from __future__ import annotations

import asyncio
import stat
import sys
import tarfile
from pathlib import Path

import pytest

from broker.execution_env import ExecutionEnv
from protocol.errors import InternalError
from protocol.interpreters import Interpreter
from tensorbus.environments import Environments
from tests.tensorbus.test_archive import member, write


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    (tmp_path / "run").mkdir()
    return Environments(str(tmp_path / "run"), str(tmp_path / "cache"))


def prepare(environments: Environments, path: Path | str, is_requirements: bool = False) -> Interpreter:
    return asyncio.run(environments.interpreter(ExecutionEnv(str(path), "the one of 'm'", is_requirements)))


def refusal(environments: Environments, path: Path | str, is_requirements: bool = False) -> str:
    with pytest.raises(InternalError) as refused:
        prepare(environments, path, is_requirements)
    return str(refused.value)


def environment(path: Path, python: str = f'exec {sys.executable} "$@"') -> Path:
    """A directory with a Python that needs nothing."""
    (path / "bin").mkdir(parents=True)
    script = path / "bin" / "python"
    script.write_text(f"#!/bin/sh\n{python}\n")
    script.chmod(stat.S_IRWXU)
    return path


def pack(directory: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(directory, ".")
    return archive


def test_a_path_that_is_not_there(environments: Environments) -> None:
    text = refusal(environments, "/nowhere/env.tar.gz")
    assert text == "Failed to get the canonical path for /nowhere/env.tar.gz. the one of 'm' is not there."


def test_a_directory_without_a_python(environments: Environments, tmp_path: Path) -> None:
    text = "Path {}/bin/{} does not exist. The Python environment should contain {}."
    assert refusal(environments, tmp_path) == text.format(tmp_path, "activate", "an 'activate' script")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").touch()
    assert refusal(environments, tmp_path) == text.format(tmp_path, "python", "its interpreter")


@pytest.mark.parametrize(
    "python, reason",
    [
        ('echo \'{"version": [3, 8, 1], "new_enough": false}\'', "Python 3.8.1 is too old: models run on Python 3.9"),
        ("echo hello", "its Python does not say what it is, but 'hello'"),
        ("echo no libpython; exit 1", "no libpython"),
    ],
)
def test_a_python_that_will_not_do(environments: Environments, tmp_path: Path, python: str, reason: str) -> None:
    text = refusal(environments, environment(tmp_path / "env", python))
    assert text.startswith(f"the one of 'm': {reason}")


def test_a_directory_is_used_as_it_is(environments: Environments, tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    assert prepare(environments, env) == Interpreter(str(env / "bin" / "python"), str(env), [])


def test_an_archive_is_unpacked_once_for_its_content(
    environments: Environments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = pack(environment(tmp_path / "env"), tmp_path / "env.tar.gz")
    (tmp_path / "link").symlink_to(archive)

    async def together() -> list[Interpreter]:
        wanted = [ExecutionEnv(str(path), "it") for path in (archive, tmp_path / "link", archive)]
        return await asyncio.gather(*map(environments.interpreter, wanted))

    first = asyncio.run(together())[0]
    again = prepare(environments, archive)
    assert again == first and first.prefix.startswith(str(tmp_path / "run"))
    pack(environment(tmp_path / "other"), archive)
    assert prepare(environments, archive).prefix != first.prefix
    assert capsys.readouterr().out.count("Extracting Python execution env ") == 2


def test_an_archive_that_failed_is_tried_again_and_leaves_nothing(environments: Environments, tmp_path: Path) -> None:
    archive = tmp_path / "env.tar.gz"
    archive.write_bytes(b"no archive")
    for _ in range(2):
        text = refusal(environments, archive)
        assert text.startswith("the one of 'm': the archive cannot be unpacked: ")
    assert not list((tmp_path / "run" / "environments").iterdir())


def test_a_name_that_is_no_text_can_be_told(environments: Environments, tmp_path: Path) -> None:
    archive = write(tmp_path / "env.tar.gz", member("../\udcff"))
    assert "Path contains '..': '../\\udcff'" in refusal(environments, archive)


def test_what_conda_pack_left_to_do_is_done(environments: Environments, tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    (env / "bin" / "conda-unpack").write_text("open(__file__ + '.done', 'w').close()")
    unpacked = Path(prepare(environments, pack(env, tmp_path / "env.tar")).prefix)
    assert (unpacked / "bin" / "conda-unpack.done").exists()
    prepare(environments, env)
    assert not (env / "bin" / "conda-unpack.done").exists()  # a directory is the user's


def test_an_environment_whose_conda_unpack_fails_is_used_as_it_is(environments: Environments, tmp_path: Path) -> None:
    env = environment(tmp_path / "env")
    (env / "bin" / "conda-unpack").write_text("raise ValueError")
    assert prepare(environments, pack(env, tmp_path / "env.tar"))


def test_requirements_that_cannot_be_met(environments: Environments, tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("this is no requirement")
    text = refusal(environments, requirements, is_requirements=True)
    assert text.startswith("the one of 'm': the environment cannot be built:\n")
    assert "this is no requirement" in text


def test_a_cache_that_cannot_be_written_is_told_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environments = Environments(str(tmp_path), str(tmp_path / "file" / "cache"))
    (tmp_path / "requirements.txt").touch()
    text = refusal(environments, tmp_path / "requirements.txt", is_requirements=True)
    assert text == "the one of 'm': Not a directory"


def test_packages_that_cannot_be_had_are_named(
    environments: Environments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where there is no network."""
    report = (
        '{"version": [3, 9, 18], "new_enough": true, "abi": "cp39", "missing": ["numpy", "msgpack"], "has_pip": true}'
    )
    uv = environment(tmp_path / "tools", "echo no route to host; exit 1") / "bin" / "python"
    uv.rename(uv.with_name("uv"))
    monkeypatch.setenv("PATH", f"{uv.parent}:/usr/bin:/bin")
    text = refusal(environments, environment(tmp_path / "env", f"echo '{report}'"))
    assert text == (
        "the one of 'm': the environment of a model needs numpy and msgpack; it lacks numpy, msgpack, which "
        "cannot be installed:\nno route to host"
    )
