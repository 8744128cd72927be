"""What a stub process writes to its stdout and stderr, as lines for the server's log; runs on the server's event loop.

One pipe for both streams of one process, so they keep their order. It is also what holds a model back that prints
faster than the log takes: a turn of the loop reads one piece of bounded size, and the model waits in ``print``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator

# Whose lines, and the lines, maybe none; returns whether the log takes more at once.
Printed = Callable[[str, list[str]], bool]

LONGEST_LINE = 65536
_PIECE = 16384  # bytes; as lines of ten bytes they cost the loop 8 ms
_PAUSE_S = 0.02  # when the log has no room
_MOST_PAUSES = 25  # in a row; a log that has no room for so long has no reader
_LEFT_PIECES = 64  # of a dead process: 1 MiB, the most that a pipe holds by default of the kernel


class Lines:
    """Puts lines together from pieces. Pure. Longer ones than LONGEST_LINE come in parts."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        *whole, rest = (self._rest + data).split(b"\n")
        *parts, self._rest = _parts(rest)
        return list(map(_text, [*(part for line in whole for part in _parts(line)), *parts]))

    def end(self) -> list[str]:
        """The last line, if no newline ended it."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


def _parts(line: bytes) -> Iterator[bytes]:
    while len(line) > LONGEST_LINE:
        cut = LONGEST_LINE
        while cut > LONGEST_LINE - 3 and line[cut] & 0xC0 == 0x80:  # within a character of UTF-8
            cut -= 1
        yield line[:cut]
        line = line[cut:]
    yield line


def _text(line: bytes) -> str:
    return line.decode(errors="backslashreplace")


class PrintPipe:
    """Reads until the last process that holds the other end has closed it, or ``close``."""

    def __init__(self, fd: int, source: str, printed: Printed) -> None:
        """Takes over ``fd``, the end to read from. Call it on the running loop."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._source = source
        self._printed = printed
        self._lines = Lines()
        self._loop = asyncio.get_running_loop()
        self._resume: asyncio.TimerHandle | None = None
        self._pauses = 0
        self.is_open = True
        self._listen()

    def drain(self) -> None:
        """Reads what is there. Of a dead process that is all it has said, unless others of its model still live."""
        for _ in range(_LEFT_PIECES):
            if self.is_open and not self._read():
                break

    def close(self) -> None:
        """Whoever still writes is told that nobody reads."""
        if self.is_open:
            self.is_open = False
            self._stop_listening()
            os.close(self._fd)
            self._say(self._lines.end())

    def _listen(self) -> None:
        self._resume = None
        if self._pauses and not self._printed(self._source, []) and self._pauses < _MOST_PAUSES:
            self._pause()
            return
        self._pauses = 0
        self._loop.add_reader(self._fd, self._read)

    def _pause(self) -> None:
        self._stop_listening()
        self._pauses += 1
        self._resume = self._loop.call_later(_PAUSE_S, self._listen)

    def _stop_listening(self) -> None:
        self._loop.remove_reader(self._fd)
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None

    def _read(self) -> bool:
        """Whether there was something."""
        try:
            data = os.read(self._fd, _PIECE)
        except BlockingIOError:
            return False
        if not data:
            self.close()
        elif not self._say(self._lines.feed(data)) and self._resume is None:
            self._pause()
        return bool(data)

    def _say(self, lines: list[str]) -> bool:
        return not lines or self._printed(self._source, lines)
