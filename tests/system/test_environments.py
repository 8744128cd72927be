"""Models in Pythons and environments of their own, on a server that is in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.stub.test_names_of_the_user import HOSTILE, write_model
from tests.system import pythons
from tests.system.conftest import CONFIG, Repository, Server, Start, serving

# Answers the characters of sys.version.
SAYS_VERSION = """
def execute(self, requests):
    told = np.array([ord(character) for character in sys.version], np.float32)
    return [respond(request, told) for request in requests]
"""
PARAMETER = '\nparameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{}" }} }}\n'


def config(path: Path | str) -> str:
    return CONFIG % 1 + PARAMETER.format(path)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def launch(repository: Repository, tmp_path: Path, cache: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers that share a cache with the other tests; skips where packages cannot be had."""
    with serving(repository, tmp_path) as start:

        def launch(*flags: str) -> Server:
            server = start(*flags, wait=False, environ={"TENSORBUS_CACHE": str(cache)})
            server.wait_for_line("Started Metrics Service", 90)
            return server

        yield launch


def test_five_models_in_five_pythons(repository: Repository, tmp_path: Path, launch: Start) -> None:
    for version in pythons.VERSIONS:
        env = pythons.environment(tmp_path / version, version)
        repository.add(f"python{version}", SAYS_VERSION, config=config(env))
    server = launch()
    for version in pythons.VERSIONS:
        told = "".join(chr(int(code)) for code in server.post(f"python{version}", [1.0]).data)
        assert told.startswith(f"{version}."), told


@pytest.mark.parametrize("version", pythons.VERSIONS)
def test_a_folder_full_of_our_names_is_all_the_users(
    repository: Repository, tmp_path: Path, launch: Start, version: str
) -> None:
    env = pythons.environment(tmp_path / "env", version)
    write_model(repository.path / "hostile", 1, 7, HOSTILE)
    (repository.path / "hostile" / "config.pbtxt").write_text(config(env))
    assert set(launch().post("hostile", [1.0]).data) == {7.0}
