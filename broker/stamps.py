"""The files of a model's directory by name, size and time: what tells whether any of them has changed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator

Stamp = tuple[int, int]  # size in bytes, time in nanoseconds


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


def fingerprint(directory: str) -> str:
    """Of all that lies below: another one when anything has changed."""
    digest = hashlib.blake2b(digest_size=16)
    for entry in stamps(directory):
        digest.update(repr(entry).encode())
    return digest.hexdigest()
