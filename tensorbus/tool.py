"""Runs a program to its end, with its lines told as they come: uv, pip, a Python of an environment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence

_TAIL_LINES = 20  # of what a failed program said last; a resolver's explanation takes that many
_CHUNK = 1 << 16


class ToolFailed(Exception):
    """It could not be started, ended with an error or took too long; the text is what it said last, or why."""


async def run(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    timeout_s: float,
    told: Callable[[str], None] = lambda line: None,
    cwd: str | None = None,
    keep_open: Sequence[int] = (),
) -> str:
    """Its last line. Raises ToolFailed. ``keep_open`` are descriptors that it shall have, too.

    If the caller is cancelled the program is killed, and all it has started in its process group."""
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            env=environ,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=tuple(keep_open),
            start_new_session=True,
        )
    except OSError as error:
        raise ToolFailed(f"{arguments[0]} cannot be run: {error.strerror}") from None
    status = None
    try:
        async with asyncio.timeout(timeout_s):
            await _listen(process, tail, told)
            status = await process.wait()
    except TimeoutError:
        raise ToolFailed("\n".join([*tail, f"{arguments[0]} was ended after {timeout_s:.0f} s"])) from None
    finally:
        if status is None:  # it may have ended, and left others that hold its output
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if status:
        raise ToolFailed("\n".join(tail) or f"{arguments[0]} ended with status {status}")
    return tail[-1] if tail else ""


async def _listen(process: asyncio.subprocess.Process, tail: deque[str], told: Callable[[str], None]) -> None:
    """Chunks, since a StreamReader gives up on a line of more than 64 KiB."""
    assert process.stdout is not None
    rest = b""
    while chunk := await process.stdout.read(_CHUNK):
        *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            _hear(line, tail, told)
    _hear(rest, tail, told)


def _hear(line: bytes, tail: deque[str], told: Callable[[str], None]) -> None:
    text = line.decode(errors="replace").rstrip()
    if text:
        tail.append(text)
        told(text)
