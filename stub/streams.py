"""stdout and stderr of a stub process lead to the server's log (print_pipe.py)."""

from __future__ import annotations

import faulthandler
import sys
from typing import TextIO


def open_streams() -> None:
    """A line is in the log as soon as it is complete; so is the place of a crash, if there is one.

    New ones, since those that a forked stub has inherited may take the pipe for the file that they were made for.
    """
    sys.stdout = _stream(1)
    sys.stderr = _stream(2)
    faulthandler.enable(file=2)


def _stream(fd: int) -> TextIO:
    return open(fd, "w", 1, "utf-8", "backslashreplace", closefd=False)
