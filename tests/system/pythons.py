"""The Pythons of this machine that a model may want, and environments made of them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

VERSIONS = ["3.9", "3.10", "3.11", "3.12", "3.13"]


def find(version: str) -> str:
    """The executable. Skips the test where there is none."""
    path = _find(version)
    if path is None:
        pytest.skip(f"there is no Python {version} here")
    return path


@functools.cache
def _find(version: str) -> str | None:
    for path in _candidates(version):
        command = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    return None


def _candidates(version: str) -> Iterator[str]:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        yield sys.executable
    on_path = shutil.which(f"python{version}")
    if on_path:
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))
    uv = shutil.which("uv")
    if uv:
        yield subprocess.run(
            [uv, "python", "find", version], capture_output=True, text=True, check=False
        ).stdout.strip()


def environment(directory: Path, version: str, *requirements: str) -> Path:
    """A virtual environment with nothing in it but ``requirements``. Skips the test if they cannot be had."""
    subprocess.run([find(version), "-m", "venv", "--without-pip", directory], check=True)
    if requirements:
        install(directory, *requirements)
    return directory


def install(environment: Path, *requirements: str) -> None:
    """Skips the test if they cannot be had."""
    command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", str(environment / "bin" / "python")]
    done = subprocess.run([*command, "--only-binary", ":all:", *requirements], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot install {' '.join(requirements)}: {done.stderr[-300:]}")


def found() -> list[str]:
    """Of VERSIONS."""
    return [version for version in VERSIONS if _find(version)]
