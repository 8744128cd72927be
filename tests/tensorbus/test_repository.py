"""The repositories read in threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.events import Override
from protocol.errors import InternalError, InvalidArgument
from tensorbus.cloud import Cloud
from tensorbus.cloud_location import CloudSettings
from tensorbus.repository import Repositories

NOT_POLLED = "failed to load 'm', failed to poll from model repository"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "private").mkdir()
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "1" / "model.py").touch()
    return tmp_path


def run(root: Path, talk: Callable[[Repositories], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        cloud = Cloud([str(root / "models")], CloudSettings(), "")
        return await talk(Repositories(cloud, True, str(root / "private")))

    return asyncio.run(main())


def poll(root: Path, override: Override | None = None, model: str = "m") -> Any:
    return run(root, lambda repositories: repositories.poll(model, override))


def test_a_poll_finds_the_versions_to_load(root: Path) -> None:
    (source,) = poll(root)
    assert (source.model, source.version, source.directory) == ("m", 1, str(root / "models" / "m"))
    assert source.fingerprint and not source.private_directory and source.refusal is None


def test_files_that_are_brought_are_the_whole_model(root: Path) -> None:
    (source,) = poll(root, Override("{}", {"file:7/model.py": b"x"}))
    assert source.version == 7 and os.path.dirname(source.directory) == source.private_directory
    assert Path(source.model_file).read_bytes() == b"x"
    assert os.stat(source.private_directory).st_mode & 0o777 == 0o700
    run(root, lambda repositories: repositories.discard(source.private_directory))
    assert list((root / "private").iterdir()) == []


@pytest.mark.parametrize(
    ("override", "error"),
    [
        (Override("nonsense"), InternalError(NOT_POLLED)),
        (Override("nonsense", {"file:1/model.py": b""}), InternalError(NOT_POLLED)),
        (Override(None, {"file:1/model.py": b""}), InternalError(NOT_POLLED)),
        (Override("{}", {"file:" + "x" * 300: b""}), InternalError(NOT_POLLED)),
        (Override("{}", {"file:model.py": b""}), InternalError(NOT_POLLED)),
        (
            Override('{"backend":"python"}', {"file:model.py": b""}),
            InvalidArgument(
                "load failed for model 'm': at least one version must be available under the version policy of model "
                "'m'\n"
            ),
        ),
        (Override("{}", {"file:../x": b""}), InternalError(NOT_POLLED)),
    ],
)
def test_what_cannot_be_polled_leaves_nothing(root: Path, override: Override, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        poll(root, override)
    assert str(caught.value) == str(error)
    assert list((root / "private").iterdir()) == []


def test_what_is_not_there_is_not_polled(root: Path) -> None:
    for model in ("nope", "..", "."):
        with pytest.raises(InternalError, match=f"failed to load '{model}', failed to poll from model repository"):
            poll(root, model=model)
    assert run(root, lambda repositories: repositories.names()) == {"m": ""}
