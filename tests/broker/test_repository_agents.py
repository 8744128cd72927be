"""Files are compared with the digests that the configuration names."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from broker.model_config import ModelConfigMessage
from broker.repository import scan
from broker.repository_agents import run_agents
from protocol.errors import InvalidArgument, ServingError, Unsupported


def run(model: Path, key: str, value: str, agent: str = "checksum") -> None:
    message = ModelConfigMessage()
    message.model_repository_agents.agents.add(name=agent).parameters[key] = value
    run_agents(message, str(model))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "m"
    (path / "1").mkdir(parents=True)
    (path / "1" / "model.py").write_bytes(b"x")
    return path


@pytest.mark.parametrize("algorithm", ["MD5", "md5", "SHA1", "SHA256", "sha512"])
def test_a_file_must_have_its_digest(model: Path, algorithm: str) -> None:
    digest = hashlib.new(algorithm, b"x").hexdigest()
    run(model, f"{algorithm}:1/model.py", digest)
    with pytest.raises(InvalidArgument) as refused:
        run(model, f"{algorithm}:1/model.py", "invalid_checksum")
    assert str(refused.value) == (
        f"Mismatched {algorithm.upper()} hash for file 1/model.py, expect: invalid_checksum, got: {digest}"
    )


@pytest.mark.parametrize(
    ("key", "agent", "error"),
    [
        ("MD5", "checksum", InvalidArgument("failed to parse key: MD5")),
        ("CRC:1/model.py", "checksum", Unsupported("Unsupported checksum algorithm: CRC")),
        (
            "MD5:1/nope",
            "checksum",
            InvalidArgument("failed to open text file for read 1/nope: No such file or directory"),
        ),
        ("MD5:../other", "checksum", InvalidArgument("checksum of '../other', which is outside model directory")),
        (
            "MD5:pipe",
            "checksum",
            InvalidArgument("failed to open text file for read pipe: No such file or directory"),
        ),
        (
            "k",
            "relocation",
            InvalidArgument(
                "unable to find 'libtritonrepoagent_relocation.so' for repo agent 'relocation', searched: "
                "/opt/tritonserver/repoagents"
            ),
        ),
    ],
)
def test_what_cannot_be_checked_is_not_loaded(model: Path, key: str, agent: str, error: ServingError) -> None:
    (model.parent / "other").write_bytes(b"x")
    os.mkfifo(model / "pipe")
    with pytest.raises(type(error)) as refused:
        run(model, key, "x", agent)
    assert str(refused.value) == str(error)


def test_a_mismatch_is_a_failed_poll(model: Path) -> None:
    (model / "config.pbtxt").write_text(
        'backend: "python" model_repository_agents '
        '{ agents [{ name: "checksum", parameters [{ key: "MD5:1/model.py", value: "no" }] }] }'
    )
    (line,) = scan([str(model.parent)]).log
    assert line.text == (
        "Poll failed for model directory 'm': Mismatched MD5 hash for file 1/model.py, expect: no, got: "
        f"{hashlib.md5(b'x').hexdigest()}"
    )
