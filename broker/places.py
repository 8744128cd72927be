"""Where models lie: the directories that the repositories hold for each.

A model is known by its name, or with namespaces by an identifier: the repository it comes from, which is its namespace,
and its name. Without them a name may occur only once in all repositories.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from protocol.errors import InternalError, NotFound

DUPLICATE_REASON = "model appears in two or more repositories"
NOT_FOUND = "model not found in any model repository."


def identifier(namespace: str, name: str) -> str:
    """As the log shows it, too."""
    return f"{namespace}::{name}" if namespace else name


def candidates(name: str, namespaces: Sequence[str]) -> list[str]:
    """All that a name may mean."""
    return [identifier(namespace, name) for namespace in namespaces] or [name]


def find(repositories: Sequence[str], namespaces: Sequence[str] = ()) -> dict[str, list[str]]:
    """The directories of each model; ``namespaces`` are those of the repositories. Raises InternalError."""
    found: dict[str, list[str]] = {}
    for index, repository in enumerate(repositories):
        namespace = namespaces[index] if namespaces else ""
        for name in subdirectories(repository):
            found.setdefault(identifier(namespace, name), []).append(os.path.join(repository, name))
    return found


def names(repositories: Sequence[str], namespaces: Sequence[str] = ()) -> dict[str, str]:
    """What there is now, by model, with the reason of what can be none."""
    places = find(repositories, namespaces).items()
    return {shown(model): DUPLICATE_REASON if len(paths) > 1 else "" for model, paths in places}


def locate(model: str, repositories: Sequence[str], namespaces: Sequence[str] = ()) -> str:
    """The one directory of a model. Raises NotFound; a name that leads elsewhere is none."""
    paths = find(repositories, namespaces).get(model, [])
    if len(paths) != 1:
        raise NotFound(not_one(model, paths))
    return paths[0]


def not_one(model: str, paths: Sequence[str]) -> str:
    return f"failed to poll model '{model}': {'not unique across all model repositories' if paths else NOT_FOUND}"


def shown(path: str) -> str:
    """Itself if it is UTF-8; bytes that are not are told by their numbers."""
    return os.fsencode(path).decode(errors="backslashreplace")


def subdirectories(path: str) -> list[str]:
    """Sorted; links to directories count, those that lead nowhere do not."""
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if is_directory(entry))
    except OSError as error:
        raise InternalError(f"failed to open directory {path}") from error


def is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or through a directory that we may not enter
        return False
