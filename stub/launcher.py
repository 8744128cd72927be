"""Starts, watches and kills the stub processes of this host; runs on the server's event loop.

Relies on a fork server (fork_server.py, which also describes the lines that go between) being their parent: it is
started here, and again if it dies. Nothing here waits for a process except ``close``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import structlog

from .print_pipe import Printed, PrintPipe
from .shared import interpreters, sweep

_MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
_CLOSE_TIMEOUT_S = 10.0

_log = structlog.get_logger()


class Launcher:
    """Invariant: ``_pids`` has every stub for which ``on_exit`` is still to be called."""

    def __init__(
        self, bus: str, run_dir: str, shm_directory: str, on_exit: Callable[[str, int], None], printed: Printed
    ) -> None:
        """``on_exit(key, status)`` is called on the loop once a stub is dead and its segments are gone, but not after
        ``close``; the status is an exit code, or minus the signal that killed it. It may call ``spawn``.
        ``printed(title, lines)`` is told what stubs write to stdout and stderr, before it is told that they are dead.
        """
        self._arguments = ["--bus", bus, "--run-dir", run_dir, "--shm-directory", shm_directory]
        self._shm_directory = shm_directory
        self._on_exit = on_exit
        self._printed = printed
        self._print_pipes: dict[str, PrintPipe] = {}  # by key
        self._pids: dict[str, int] = {}  # by key; 0 until the fork server has told it
        self._fork_server: _ForkServer | None = None
        self._closing = False
        self._all_gone = asyncio.Event()

    async def start(self) -> None:
        """Starts the fork server, which does its imports while the caller goes on."""
        self._running_fork_server()

    def spawn(self, key: str, title: str, interpreter: interpreters.Interpreter | None = None) -> None:
        """Start a stub, in another interpreter than the server's if given. A failure is told by ``on_exit``, as a death
        is.

        Raises ValueError for a key that is in use, RuntimeError after ``close``."""
        if key in self._pids:
            raise ValueError(f"there is a stub with the key {key} already")
        if self._closing:
            raise RuntimeError("the launcher is closed")
        self._pids[key] = 0
        try:
            with self._print_pipe(key, title) as output:
                self._running_fork_server().order("spawn", key, title, interpreter, fd=output)
        except OSError as error:  # no descriptors are left
            _log.error("cannot start a stub", instance=title, cause=str(error))
            self._exited(key, os.EX_OSERR)

    def kill(self, key: str) -> None:
        """SIGKILL for a stub and all that its model has started; no error if it is dead already."""
        if self._fork_server is not None:
            self._fork_server.order("kill", key)

    def abort(self, key: str) -> None:
        """SIGABRT for a stub, which has it write down where its threads are, and die."""
        if self._fork_server is not None:
            self._fork_server.order("abort", key)

    async def close(self) -> None:
        """Kills what is left and returns when all of it is dead and swept. The run directory stays the server's."""
        self._closing = True
        if self._fork_server is not None:
            self._fork_server.order("close")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), _CLOSE_TIMEOUT_S)
            self._drop_fork_server()
            sweep.sweep(self._shm_directory)
        for pipe in self._print_pipes.values():
            pipe.drain()
            pipe.close()

    @contextlib.contextmanager
    def _print_pipe(self, key: str, title: str) -> Iterator[int]:
        """The end that the new stub writes to, for as long as it takes to hand it over."""
        self._print_pipes = {of: pipe for of, pipe in self._print_pipes.items() if pipe.is_open}
        ours, theirs = os.pipe()
        self._print_pipes[key] = PrintPipe(ours, title, self._printed)
        try:
            yield theirs
        finally:
            os.close(theirs)

    def _running_fork_server(self) -> _ForkServer:
        if self._fork_server is None:
            self._fork_server = _ForkServer(self._arguments)
            asyncio.get_running_loop().add_reader(self._fork_server.fileno(), self._read_reports)
        return self._fork_server

    def _drop_fork_server(self) -> bool:
        """Returns whether it had come to life."""
        fork_server, self._fork_server = self._fork_server, None
        if fork_server is None:
            return False
        asyncio.get_running_loop().remove_reader(fork_server.fileno())
        fork_server.close()
        return fork_server.is_ready

    def _read_reports(self) -> None:
        assert self._fork_server is not None
        reports = self._fork_server.reports()
        if reports is None:
            self._fork_server_lost()
            return
        for what, key, number in reports:
            if what == "started":
                self._pids[key] = number
            else:
                self._exited(key, number)

    def _exited(self, key: str, status: int) -> None:
        del self._pids[key]
        if key in self._print_pipes:
            self._print_pipes[key].drain()
        if not self._closing:
            # Not called from here: should it raise, the reports behind this one must not be lost.
            asyncio.get_running_loop().call_soon(self._on_exit, key, status)

    def _fork_server_lost(self) -> None:
        """The kernel kills its stubs with it; see each of them dead before saying so."""
        was_ready = self._drop_fork_server()
        if not self._closing:
            _log.error("fork server died", stubs=len(self._pids), restarted=was_ready)
        for key, pid in list(self._pids.items()):
            self._when_dead(pid, key)
        if self._closing:
            self._all_gone.set()
        elif was_ready:  # one that cannot even start is tried again at the next spawn, not over and over
            self._running_fork_server()

    def _when_dead(self, pid: int, key: str) -> None:
        _kill_group(pid)
        try:
            pidfd = os.pidfd_open(pid) if pid and sys.platform == "linux" else -1
        except ProcessLookupError:
            pidfd = -1
        if pidfd < 0:
            self._orphan_died(pid, key)
            return
        loop = asyncio.get_running_loop()

        def dead() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self._orphan_died(pid, key)

        loop.add_reader(pidfd, dead)

    def _orphan_died(self, pid: int, key: str) -> None:
        if pid:
            with contextlib.suppress(ChildProcessError):  # ours to reap if we are process 1 of a container
                os.waitpid(pid, os.WNOHANG)
            sweep.sweep(self._shm_directory, pid)
        self._exited(key, -signal.SIGKILL)


class _ForkServer:
    """The running fork server: its process and our end of the socket."""

    def __init__(self, arguments: list[str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, _MAIN, "--fork-server", str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a signal to the server's process group is for the server to act upon
            )
        self._unparsed = b""
        self.is_ready = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def order(self, *words: str | interpreters.Interpreter | None, fd: int | None = None) -> None:
        """An ``fd`` goes with the order's first byte."""
        data = json.dumps(words).encode() + b"\n"
        with contextlib.suppress(OSError):  # its death is noticed by reading
            if fd is not None:
                data = data[socket.send_fds(self._socket, [data], [fd]) :]
            self._socket.sendall(data)

    def reports(self) -> list[tuple[str, str, int]] | None:
        """The stubs that have started (with their pid) or exited (with their status) since; None at the end."""
        try:
            data = self._socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            return None
        *lines, self._unparsed = (self._unparsed + data).split(b"\n")
        reports = [json.loads(line) for line in lines]
        self.is_ready = self.is_ready or ["ready"] in reports
        return [(what, *of_stub) for what, *of_stub in reports if of_stub]

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _kill_group(pid: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
