"""The server's own directory, which holds the bus's socket. Its lock tells the next server whether the owner lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator

_PREFIX = "tensorbus-"
_LOCK = "lock"
_LONGEST_PARENT = 80  # a socket's path has 104 bytes on macOS, 108 on Linux: room for tensorbus-XXXXXXXX/bus


@contextlib.contextmanager
def run_directory(parent: str = "") -> Iterator[str]:
    """A new one, of mode 0700, removed at the end; those of dead servers are removed, too. Raises OSError."""
    parent = parent or _parent()
    _sweep(parent)
    path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    try:
        with _locked(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _parent() -> str:
    """The first that a socket's path has room for."""
    for path in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if len(os.fsencode(path)) <= _LONGEST_PARENT and _is_utf8(path) and os.access(path, os.W_OK | os.X_OK):
            return path
    raise OSError("the path of the temporary directory is too long for a socket; set TMPDIR to a shorter one")


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """The lock gets its name only once it is held, so that nobody takes a directory just made for a dead one's."""
    unnamed, named = os.path.join(path, "new"), os.path.join(path, _LOCK)
    with open(unnamed, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.rename(unnamed, named)
        yield


def _sweep(parent: str) -> None:
    with os.scandir(parent) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in paths:
        if _is_dead(path):
            shutil.rmtree(path, ignore_errors=True)


def _is_dead(path: str) -> bool:
    try:
        if os.lstat(path).st_uid != os.getuid():
            return False
        lock = os.open(os.path.join(path, _LOCK), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
