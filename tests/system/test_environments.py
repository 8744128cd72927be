"""Models in Pythons and environments of their own, on a server that is in another."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stub.test_names_of_the_user import HOSTILE, write_model
from tests.system import pythons
from tests.system.conftest import CONFIG, Repository, Server, Start, eventually, serving
from tests.tensorbus.test_archive import member, write
from tests.tensorbus.test_environments import environment, pack

LOADING_S = 240  # pip is slow

# Answers the characters of a text.
SAYS = """
def execute(self, requests):
    import importlib, locale
    text = str(({}))
    return [respond(request, np.array([ord(character) for character in text], np.float32)) for request in requests]
"""
PARAMETER = '\nparameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}\n'


def said(server: Server, model: str) -> str:
    return "".join(chr(int(code)) for code in server.post(model, [1.0]).data)


def config(path: Path | str) -> str:
    return CONFIG % 1 + PARAMETER.format(path)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


Launch = Callable[..., Server]


@contextlib.contextmanager
def launching(repository: Repository, logs: Path, cache: Path) -> Iterator[Launch]:
    """Starts servers that share a cache with the other tests; skips where packages cannot be had."""
    with serving(repository, logs) as start:

        def launch(*flags: str, **environ: str) -> Server:
            server = start(*flags, wait=False, environ={"TENSORBUS_CACHE": str(cache), **environ})
            eventually(lambda: server.process.poll() is not None or server.lines("Started Metrics"), LOADING_S)
            if server.lines("cannot be installed"):
                pytest.skip("packages cannot be had: " + server.lines("cannot be installed")[0])
            return server.wait_ready()

        yield launch


@pytest.fixture
def launch(repository: Repository, tmp_path: Path, cache: Path) -> Iterator[Launch]:
    with launching(repository, tmp_path, cache) as launch:
        yield launch


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    """Two models in an environment of each Python that there is: "python3.9" and so on says its version, "hostile3.9"
    is a folder full of our names."""
    directory = tmp_path_factory.mktemp("five")
    repository = Repository(directory / "models")
    for version in pythons.found():
        env = pythons.environment(directory / version, version)
        repository.add(f"python{version}", SAYS.format("sys.version"), config=config(env))
        write_model(repository.path / f"hostile{version}", 1, 7, HOSTILE)
        (repository.path / f"hostile{version}" / "config.pbtxt").write_text(config(env))
    with launching(repository, directory, cache) as launch:
        yield launch()


@pytest.mark.timeout(LOADING_S + 60)
@pytest.mark.parametrize("version", pythons.VERSIONS)
def test_five_models_in_five_pythons(five: Server, version: str) -> None:
    pythons.find(version)
    assert said(five, f"python{version}").startswith(f"{version}.")


@pytest.mark.timeout(LOADING_S + 60)
@pytest.mark.parametrize("version", pythons.VERSIONS)
def test_a_folder_full_of_our_names_is_all_the_users(five: Server, version: str) -> None:
    pythons.find(version)
    assert set(five.post(f"hostile{version}", [1.0]).data) == {7.0}


def test_an_environments_own_packages_are_never_replaced(
    repository: Repository, tmp_path: Path, launch: Launch
) -> None:
    with_numpy = pythons.environment(tmp_path / "numpy", "3.10", "numpy==1.26.4")
    with_both = pythons.environment(tmp_path / "both", "3.10", "numpy==1.26.4", "msgpack==1.0.8")
    modules = '[importlib.import_module(name) for name in ("numpy", "msgpack")]'
    says = SAYS.format(f'" ".join([*(module.__file__ for module in {modules}), np.__version__])')
    repository.add("one", says, config=config(with_numpy))
    repository.add("both", says, config=config(with_both))
    server = launch()
    numpy, msgpack, version = said(server, "one").split()
    assert Path(numpy).is_relative_to(with_numpy) and not Path(msgpack).is_relative_to(with_numpy)
    assert version == "1.26.4"
    numpy, msgpack, version = said(server, "both").split()
    assert Path(numpy).is_relative_to(with_both) and Path(msgpack).is_relative_to(with_both)
    assert version == "1.26.4"


@pytest.mark.parametrize("lc_all", ["INVALID", "C.UTF-8"])
def test_the_locale_is_the_one_that_the_server_was_given(
    repository: Repository, tmp_path: Path, launch: Launch, lc_all: str
) -> None:
    """Python up to 3.11 takes C.UTF-8 for one of en_US."""
    code = "import locale; print(locale.getlocale())"
    versions = [version for version in ("3.11", "3.12") if version in pythons.found()]
    for version in versions:
        env = pythons.environment(tmp_path / version, version)
        repository.add(f"python{version}", SAYS.format("locale.getlocale()"), config=config(env))
    server = launch(LC_ALL=lc_all)
    for version in versions:
        command = [pythons.find(version), "-c", code]
        own = subprocess.run(command, env={**os.environ, "LC_ALL": lc_all}, capture_output=True, text=True)
        assert said(server, f"python{version}") == own.stdout.strip()
        if lc_all == "INVALID":
            assert own.stdout.strip() == "(None, None)"
        elif version == "3.12":
            assert own.stdout.strip() == "('C', 'UTF-8')"


# --- archives -----------------------------------------------------------------------------------------------------


def test_an_archive_is_unpacked_once_and_again_after_it_has_changed(
    repository: Repository, tmp_path: Path, start: Start
) -> None:
    archive = pack(environment(tmp_path / "env"), repository.path / "env.tar.gz")
    for model in ("one", "two"):
        text = config("$$TRITON_MODEL_DIRECTORY/../env.tar.gz")
        repository.add(model, SAYS.format('os.environ["VIRTUAL_ENV"]'), config=text)
    server = start("--model-control-mode=explicit", "--load-model=one", "--load-model=two")
    first = said(server, "one")
    assert said(server, "two") == first and Path(first).is_relative_to(server.temporary)
    assert len(server.lines("Extracting Python execution env")) == 1
    os.utime(archive)
    (repository.path / "one" / "1" / "model.py").touch()
    assert server.call("POST", "/v2/repository/models/one/load").status == 200
    assert said(server, "one") != first
    assert len(server.lines("Extracting Python execution env")) == 2


def test_a_backend_may_bring_the_environment_of_its_models(
    repository: Repository, tmp_path: Path, start: Start
) -> None:
    backend = tmp_path / "backends" / "boxed"
    backend.mkdir(parents=True)
    pack(environment(tmp_path / "env"), backend / "pb_exec_env_model.py.tar.gz")
    says = SAYS.format('os.environ["VIRTUAL_ENV"]')
    (backend / "model.py").write_text((repository.add("own", says) / "model.py").read_text())
    repository.add("boxed", config=(CONFIG % 1).replace("python", "boxed"))
    server = start(f"--backend-directory={tmp_path / 'backends'}")
    assert Path(said(server, "boxed")).is_relative_to(server.temporary)


def test_a_configuration_is_completed_in_the_environment_too(
    repository: Repository, tmp_path: Path, start: Start
) -> None:
    code = """
    @staticmethod
    def auto_complete_config(config):
        print("completed in", os.environ["VIRTUAL_ENV"], flush=True)
        return config
    """
    env = environment(tmp_path / "env")
    repository.add("ident", code, config=config(env))
    assert start().lines(f"completed in {env}")


def test_a_killed_server_leaves_no_unpacked_archive(repository: Repository, tmp_path: Path, start: Start) -> None:
    archive = pack(environment(tmp_path / "env"), tmp_path / "env.tar.gz")
    repository.add("ident", config=config(archive))
    server = start()
    assert list(server.temporary.glob("*/environments/*"))
    server.signal(signal.SIGKILL)
    server.wait()
    eventually(lambda: not server.left())


@pytest.mark.parametrize("name, reason", [("../../evil", "Path contains '..'"), ("/tmp/evil", "Path is absolute")])
def test_an_archive_that_reaches_outside_is_refused(
    repository: Repository, tmp_path: Path, start: Start, name: str, reason: str
) -> None:
    archive = write(tmp_path / "env.tar.gz", member("bin/activate"), member(name))
    repository.add("bad", config=config(archive))
    server = start(wait=False)
    assert server.wait() == 1
    assert server.lines("failed to load 'bad' version 1", reason)
    assert not Path("/tmp/evil").exists() and not list(server.temporary.iterdir())


def test_a_model_without_its_environment_keeps_nobody_from_being_served(repository: Repository, start: Start) -> None:
    repository.add("ident")
    repository.add("bad", config=config("/nowhere/env.tar.gz"))
    server = start("--exit-on-error=false")
    assert server.post("ident", [1.0]).data == [1.0]
    reason = server.index()["bad:1"]["reason"]
    assert "Failed to get the canonical path for /nowhere/env.tar.gz." in reason
    assert "EXECUTION_ENV_PATH of model 'bad'" in reason


def test_a_stub_of_the_users_is_ignored_and_that_is_told(repository: Repository, start: Start) -> None:
    repository.add("ident")
    (repository.path / "ident" / "triton_python_backend_stub").write_text("#!/bin/false\n")
    server = start()
    assert server.post("ident", [1.0]).data == [1.0]
    assert server.lines("triton_python_backend_stub of model 'ident' is not used")


# --- requirements -------------------------------------------------------------------------------------------------


def wheel(path: Path) -> Path:
    """A package "tiny", of which ``tiny.answer`` is 42."""
    info = "tiny-1.0.dist-info"
    with zipfile.ZipFile(path / "tiny-1.0-py3-none-any.whl", "w") as file:
        file.writestr("tiny.py", "answer = 42\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path / "tiny-1.0-py3-none-any.whl"


def test_equal_requirements_are_installed_once(repository: Repository, tmp_path: Path, launch: Launch) -> None:
    for model in ("one", "two"):
        repository.add(model, SAYS.format('importlib.import_module("tiny").answer'))
        (repository.path / model / "requirements.txt").write_text(f"{wheel(tmp_path)}\n")
    server = launch()
    assert said(server, "one") == said(server, "two") == "42"
    assert len(server.lines("building the environment from requirements.txt of model")) == 1
    assert server.lines("tiny") and (server.lines('"uv: ') or server.lines('"pip: '))


def test_requirements_may_come_with_the_python_they_are_for(
    repository: Repository, tmp_path: Path, launch: Launch
) -> None:
    pythons.find("3.12")
    repository.add("other", SAYS.format("sys.version"))
    (repository.path / "other" / "requirements.txt").write_text(f"{wheel(tmp_path)}\n")
    (repository.path / "other" / ".python-version").write_text("3.12\n")
    path = f"{Path(pythons.find('3.12')).parent}{os.pathsep}{os.environ['PATH']}"
    assert said(launch(PATH=path), "other").startswith("3.12.")


def test_requirements_that_cannot_be_met_fail_their_model_alone(
    repository: Repository, tmp_path: Path, launch: Launch
) -> None:
    repository.add("ident")
    repository.add("bad")
    (repository.path / "bad" / "requirements.txt").write_text("./this-is-not-there.whl\n")
    server = launch("--exit-on-error=false")
    assert server.post("ident", [1.0]).data == [1.0]
    reason = server.index()["bad:1"]["reason"]
    assert "requirements.txt of model 'bad': the environment cannot be built" in reason
    assert "this-is-not-there.whl" in reason
    assert str(tmp_path) not in reason
    assert str(tmp_path) in server.text().split("an environment cannot be prepared")[1]


def test_the_server_ends_while_an_environment_is_being_built(
    repository: Repository, tmp_path: Path, start: Start
) -> None:
    (tmp_path / "tools").mkdir()
    uv = tmp_path / "tools" / "uv"
    uv.write_text("#!/bin/sh\necho resolving\nexec sleep 1000\n")
    uv.chmod(0o700)
    repository.add("slow")
    (repository.path / "slow" / "requirements.txt").write_text("tiny\n")
    environ = {"PATH": f"{uv.parent}{os.pathsep}{os.environ['PATH']}", "TENSORBUS_CACHE": str(tmp_path / "cache")}
    server = start(wait=False, environ=environ).wait_for_line("uv: resolving")
    assert server.terminate(10) == 0
    assert not list((tmp_path / "cache").glob("environments/*/"))
