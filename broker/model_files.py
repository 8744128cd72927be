"""A model's directory made of files that came with the request to load it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping

from protocol.errors import InvalidArgument

PREFIX = "file:"


def write(files: Mapping[str, bytes], config: str | None, directory: str) -> str:
    """Makes the directory, which is the model's and must be new, and returns its path. ``files`` go by "file:<path>".

    Nothing is ever written outside. Raises InvalidArgument for a path that leads out, ValueError without a
    configuration or for a name that is none, OSError.
    """
    if config is None:
        raise ValueError("Load parameter 'config' must be specified for model file override")
    paths = {_inside(name): content for name, content in files.items()}
    os.mkdir(directory, 0o700)
    for path, content in paths.items():
        target = os.path.join(directory, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "xb") as file:
            file.write(content)
    return directory


def _inside(name: str) -> str:
    """The path below the directory, normalised."""
    path = posixpath.normpath(name.removeprefix(PREFIX).lstrip("/"))  # "file:/1/model.py" is below it, too
    if path in (".", "..") or path.startswith("../") or not name.startswith(PREFIX):
        raise InvalidArgument(
            f"Invalid file parameter '{name}' with normalized path '{path}' must stay within model directory."
        )
    return path


def read(directory: str) -> dict[str, bytes]:
    """All of them, by their paths in the directory. Raises OSError."""
    files = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                files[os.path.relpath(path, directory)] = file.read()
    return files
