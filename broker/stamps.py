"""The files of a model's directory by name, size and time: what tells whether any of them has changed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from typing import Any

Stamp = tuple[int, int]  # size in bytes, time in nanoseconds

_OTHERS = "/"  # no name of an entry


def stamps(directory: str) -> Iterator[tuple[str, Stamp | None]]:
    """All that lies below, by its path from there, in a fixed order; None is a directory, or what cannot be looked at.

    What Python leaves behind when it imports is no part of it. Links are followed, but not in circles."""
    seen: set[str] = set()
    for folder, folders, files in os.walk(directory, followlinks=True):
        here = os.path.realpath(folder)
        if here in seen:
            folders.clear()
            continue
        seen.add(here)
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in (*folders, *sorted(files)):
            path = os.path.join(folder, name)
            yield os.path.relpath(path, directory), _stamp(path)


def _stamp(path: str) -> Stamp | None:
    try:
        at = os.stat(path)
    except OSError:  # it has just gone, or a link leads nowhere
        return None
    return None if stat.S_ISDIR(at.st_mode) else (at.st_size, at.st_mtime_ns)


class Fingerprints:
    """Of a model's directory: another one when anything of what it stands for has changed."""

    def __init__(self, directory: str, config_names: Collection[str] = ()) -> None:
        """``config_names`` are the entries of the directory that hold its configuration."""
        self._digests: dict[str, Any] = {}
        for path, stamp in stamps(directory):
            entry = path.split(os.sep, 1)[0]
            self._add("", path, stamp)
            if entry not in config_names:
                self._add(entry if entry.isdecimal() else _OTHERS, path, stamp)

    def _add(self, part: str, path: str, stamp: Stamp | None) -> None:
        digest = self._digests.get(part)
        if digest is None:
            digest = self._digests[part] = hashlib.blake2b(digest_size=16)
        digest.update(repr((path, stamp)).encode())

    def _of(self, part: str) -> str:
        return self._digests[part].hexdigest() if part in self._digests else ""

    @property
    def all(self) -> str:
        return self._of("")

    def version(self, version: int) -> str:
        """What its process may have read: its own directory, and all but the configuration and the other versions."""
        return f"{self._of(str(version))} {self._of(_OTHERS)}"


def fingerprint(directory: str) -> str:
    """Of all that lies below."""
    return Fingerprints(directory).all
