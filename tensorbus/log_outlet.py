"""A file descriptor for a log, which may lead to a pipe that nobody empties."""

from __future__ import annotations

import os
import select
import stat
import threading

_PATIENCE_MS = 500


class Outlet:
    """Writes whole lines and never waits for long: one that finds no room is dropped, and counted.

    A reader that has not made room in time is not waited for again before there is some.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.dropped = 0
        self._rest = b""  # of a line that was cut short; it goes before the next
        self._stuck = False
        self._lock = threading.RLock()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def takes_more(self) -> bool:
        """At once: it has room, or nobody reads and lines are dropped. A file always does."""
        return self._stuck or bool(self._poll.poll(0))

    def write(self, line: bytes) -> None:
        """A closed pipe or a full disk must not stop the server either, and there is nowhere to say so."""
        with self._lock:
            try:
                self._rest = self._put(self._rest)
                left = line if self._rest else self._put(line)
            except OSError:
                self._rest = b""
                return
            if len(left) == len(line):
                self.dropped += 1
            elif left:
                self._rest = left

    def _put(self, data: bytes) -> bytes:
        """What found no room."""
        while data and self._waited_for_room():
            data = data[os.write(self.fd, data[: self._most(data)]) :]
        return data

    def _waited_for_room(self) -> bool:
        self._stuck = not self._poll.poll(0 if self._stuck else _PATIENCE_MS)
        return not self._stuck

    def _most(self, data: bytes) -> int:
        """More than this at once may block in a pipe that has room; a file takes all, and lines do not mix."""
        if len(data) <= select.PIPE_BUF or stat.S_ISREG(os.fstat(self.fd).st_mode):
            return len(data)
        return select.PIPE_BUF
