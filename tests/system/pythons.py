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


@functools.cache
def find(version: str) -> str:
    """The executable. Skips the test where there is none."""
    for path in _candidates(version):
        command = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    pytest.skip(f"there is no Python {version} here")


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
    pip = [] if requirements else ["--without-pip"]
    subprocess.run([find(version), "-m", "venv", *pip, directory], check=True)
    if requirements:
        command = [directory / "bin" / "python", "-m", "pip", "install", "-q", "--only-binary", ":all:", *requirements]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot install {' '.join(requirements)}: {done.stderr[-300:]}")
    return directory
