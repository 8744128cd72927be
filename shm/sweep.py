"""Removes what dead processes have left. Told by the header, never by the name alone: pids are used again.

Whoever is of this pid namespace is looked for by pid, which is certain even while a process that its model has forked
lives on. Of one of another namespace on this host, such as another container, the lock tells (segment.py).
"""

from __future__ import annotations

import os
import time
from typing import List, Optional

from .errors import BadSegment
from .segment import HEADER_NBYTES, NAME, Owner, is_abandoned, parse_header, read_stat, this_owner

UNFINISHED_S = 60.0


def sweep(directory: str, pid: Optional[int] = None) -> List[str]:
    """Unlink the segments whose owner is certainly dead (only those of ``pid`` if given) and return their names.

    A process that has been killed still counts as alive until its exit is complete.
    """
    here = this_owner()
    prefix = "tensorbus-" if pid is None else "tensorbus-{}-".format(pid)
    swept = []
    for name in _names(directory):
        path = os.path.join(directory, name)
        if not name.startswith(prefix) or not NAME.fullmatch(name):
            continue
        if (_is_left_over(path, here) or _is_unfinished(path)) and _unlink(path):
            swept.append(name)
    return swept


def _names(directory: str) -> List[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _is_left_over(path: str, here: Owner) -> bool:
    """False whenever we cannot know: another boot (another machine that shares the folder), or no lock."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        header = os.read(fd, HEADER_NBYTES)
        owner = parse_header(header)
        if owner.boot_id != here.boot_id:
            return False
        if owner.pid_namespace != here.pid_namespace:
            return is_abandoned(fd, header)
        return _is_dead(owner)
    except (OSError, BadSegment):
        return False
    finally:
        os.close(fd)


def _is_unfinished(path: str) -> bool:
    """Where a file must have its name before its header, it has both within milliseconds; one without a header after a
    minute lost its maker in between."""
    try:
        with open(path, "rb") as file:
            header = file.read(HEADER_NBYTES)
        return not any(header) and time.time() - os.stat(path).st_mtime > UNFINISHED_S
    except OSError:
        return False


def _is_dead(owner: Owner) -> bool:
    """Of our own pid namespace."""
    try:
        state, start = read_stat(owner.pid)
    except OSError:
        return not _exists(owner.pid)
    return start != owner.start or state in "ZX"


def _exists(pid: int) -> bool:
    """For systems without /proc; a pid in use again counts as its old owner."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
