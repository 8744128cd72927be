"""Directories that are built once and kept, for all servers that share the cache.

A directory counts only with the file that is written in it last; one without is a build that was given up, and goes.
The lock of a directory is also held by the programs that build it: they may outlive a server that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator

import structlog

log = structlog.get_logger()

_COMPLETE = ".tensorbus-complete"
_LOOK_AGAIN_S = 0.1

Build = Callable[[str, int], Awaitable[None]]


class BuildCache:
    """``directory`` is made at the first need, for its owner alone."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    async def get(self, name: str, build: Build) -> str:
        """The path of the directory ``name``. If it is not there ``build(path, lock)`` makes it, with the descriptor
        that the programs it starts keep open. Raises OSError, and what ``build`` raises."""
        path = os.path.join(self._directory, name)
        if not _is_complete(path):
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with _lock_file(f"{path}.lock") as lock:
                await _acquire(lock, name)
                if not _is_complete(path):
                    await self._build(path, lock, build)
        return path

    @staticmethod
    async def _build(path: str, lock: int, build: Build) -> None:
        try:
            await _remove(path)
            await build(path, lock)
            with open(os.path.join(path, _COMPLETE), "x"):
                pass
        except BaseException:
            await _remove(path)
            raise


def _is_complete(path: str) -> bool:
    """The Python that a virtual environment leads to may have been removed since."""
    python = os.path.join(path, "bin", "python")
    return os.path.exists(os.path.join(path, _COMPLETE)) and os.path.lexists(python) == os.path.exists(python)


async def _remove(path: str) -> None:
    await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)


@contextlib.contextmanager
def _lock_file(path: str) -> Iterator[int]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield lock
    finally:
        os.close(lock)


async def _acquire(lock: int, name: str) -> None:
    """Tries again and again: a wait for the lock would hold a thread for as long as another server builds."""
    waited = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not waited:
                log.info("waiting for what is being built already", directory=name)
            waited = True
            await asyncio.sleep(_LOOK_AGAIN_S)
