"""Which programs make an environment or install a package: uv where it is found, else pip. Pure but for looking."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Sequence

Command = list[str]


class NoInstaller(Exception):
    """Neither will do; the text says what is missing."""


def find_uv() -> Command:
    """On the PATH or among the server's packages; empty if there is none."""
    path = shutil.which("uv")
    if path:
        return [path]
    return [sys.executable, "-m", "uv"] if importlib.util.find_spec("uv") else []


def install_apart(
    uv: Command, python: str, has_pip: bool, requirements: Sequence[str], directory: str, scratch: str
) -> Sequence[Command]:
    """Install packages, built already, for ``python`` into a directory of their own; the commands, one after the other.

    Where there is no pip the one that comes with that Python is put into ``scratch``: the server's may be too new.
    """
    options = ["--target", directory, "--no-deps", "--only-binary", ":all:", *requirements]
    if uv:
        return [[*uv, "pip", "install", "--python", python, *options]]
    if has_pip:
        return [[python, "-m", "pip", "install", *options]]
    return [[python, "-m", "venv", scratch], [f"{scratch}/bin/python", "-m", "pip", "install", *options]]


def make_environment(uv: Command, python: str, requirements: str, directory: str) -> Sequence[Command]:
    """The commands, one after the other. ``python`` is an executable, or with uv a version, too."""
    inside = f"{directory}/bin/python"
    if uv:
        return [
            [*uv, "venv", "--no-project", "--python", python, directory],
            [*uv, "pip", "install", "--python", inside, "-r", requirements],
        ]
    return [[python, "-m", "venv", directory], [inside, "-m", "pip", "install", "-r", requirements]]


def wished_version(text: str) -> str:
    """What a .python-version asks for: its first line that is no comment; "" for none."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    return next(filter(None, lines), "")


def find_python(version: str) -> str:
    """The executable of a version like 3.10 or 3.10.13, for those who have no uv. Raises NoInstaller."""
    found = re.fullmatch(r"(\d+\.\d+)(\.\d+)?", version)
    path = shutil.which(f"python{found[1]}") if found else None
    if path is None:
        raise NoInstaller(f"there is no python{found[1] if found else ''} for .python-version {version}, and no uv")
    return path
