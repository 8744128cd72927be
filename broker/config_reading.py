"""Reading the files of a model's configuration."""

from __future__ import annotations

import errno
import os
import stat


def read_file(path: str) -> bytes:
    """Raises OSError, also for what is no regular file: a pipe or a device might never end."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
