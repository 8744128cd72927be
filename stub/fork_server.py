"""A clean process that has imported what every stub needs, and becomes a stub by forking.

Relies on being single-threaded and on never running a line of a user's code: a child begins with nothing but imported
modules, whose pages it shares. It is also the undertaker: parent of every stub, it reaps them, kills what they leave
running, sweeps their shared memory, and cleans up after the server itself.

It talks to the launcher by lines of JSON over a socket pair:

    ["spawn", key, title, interpreter]   start a stub; null: fork, else run that (protocol/interpreters.py)
                                         with it comes the descriptor that is to be its stdout and stderr
    ["kill", key]                        SIGKILL
    ["abort", key]                       SIGABRT, and no core file
    ["close"]                            kill all stubs and exit; the end of the socket says that the server died, too

    ["ready"]                       all is imported
    ["started", key, pid]
    ["exited", key, status]         exit code, or minus the signal; its segments are gone
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import selectors
import shutil
import signal
import socket
import sys
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, NoReturn, Optional

from .process import Assignment, set_title
from .shared import interpreters, sweep

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # Linux
_SERVER_EXIT_TIMEOUT_S = 5.0
_STUB_MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")


class ForkServer:
    """Invariant: ``_keys`` holds exactly the children that have not been reaped."""

    def __init__(self, fd: int, bus: str, run_dir: str, shm_directory: str) -> None:
        self._server = socket.socket(fileno=fd)
        self._server.set_inheritable(False)
        self._server_exit = _pidfd(os.getppid())
        self._bus = bus
        self._run_dir = run_dir
        self._shm_directory = shm_directory
        self._keys: Dict[int, str] = {}  # by pid
        self._unparsed = b""
        self._outputs: Deque[int] = deque()  # descriptors of the spawn orders that are not yet obeyed
        self._signals, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._signals, selectors.EVENT_READ)

    def serve(self) -> Optional[Assignment]:
        """Returns None when the server is gone; returns in a forked child too, with what that one is to run."""
        set_title("tensorbus fork server")
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans of a stub come here to be reaped
        self._catch_signals()
        # A collection in a child would write to the header of every object and so copy the pages it shares.
        gc.collect()
        gc.freeze()
        self._tell("ready")
        while True:
            self._selector.select()
            self._reap()
            for order in self._orders():
                if order[0] in ("close", "died"):
                    self._end(server_died=order[0] == "died")
                    return None
                assignment = self._obey(*order)
                if assignment is not None:
                    return assignment

    def _catch_signals(self) -> None:
        """Whoever ends the server by a signal to all its processes must not take the undertaker first."""
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, frame: None)

    def _orders(self) -> Iterator[List[Any]]:
        try:
            # Not socket.recv_fds, which forgets the flags that it is given.
            data, ancillary, _, _ = self._server.recvmsg(65536, 1024, socket.MSG_DONTWAIT | _CLOSE_ON_EXEC)
        except BlockingIOError:
            return
        except ConnectionError:
            data, ancillary = b"", []
        for _, _, descriptors in ancillary:
            self._outputs.extend(memoryview(descriptors).cast("i"))
        if not data:
            yield ["died"]
        *lines, self._unparsed = (self._unparsed + data).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def _obey(
        self, verb: str, key: str, title: str = "", interpreter: Optional[List[Any]] = None
    ) -> Optional[Assignment]:
        if verb == "spawn":
            return self._spawn(
                Assignment(self._bus, key, title), interpreters.Interpreter(*interpreter) if interpreter else None
            )
        for pid in [pid for pid, its_key in self._keys.items() if its_key == key]:
            if verb == "abort":
                _abort(pid)
            else:
                _kill(pid)
        return None

    def _spawn(self, assignment: Assignment, interpreter: Optional[interpreters.Interpreter]) -> Optional[Assignment]:
        parent = os.getpid()
        output = self._outputs.popleft()
        try:
            pid = os.fork()
        except OSError as error:
            print("tensorbus: cannot start {}: {}".format(assignment.title, error), file=sys.stderr, flush=True)
            self._tell("exited", assignment.key, os.EX_OSERR)
            os.close(output)
            return None
        if pid:
            os.close(output)
            with contextlib.suppress(OSError):  # the child does the same; whoever is first
                os.setpgid(pid, pid)
            self._keys[pid] = assignment.key
            self._tell("started", assignment.key, pid)
            return None
        self._leave(parent)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        if interpreter is not None:
            _exec(interpreter, assignment)
        return assignment

    def _leave(self, parent: int) -> None:
        """In the child: keep nothing of the fork server, and die with it."""
        os.setpgid(0, 0)  # a group of its own, so that what the model starts can be killed with it
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        for end in (self._server, self._wake, self._signals):
            end.close()
        for output in self._outputs:  # of others, whose end would not be seen
            os.close(output)
        if self._server_exit is not None:
            os.close(self._server_exit)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._signals.recv(4096, socket.MSG_DONTWAIT)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._keys:
                self._bury(pid, status)

    def _bury(self, pid: int, status: int) -> None:
        # The kernel gives no new process the number of a group that has members, so this hits only the stub's own.
        _kill_group(pid)
        sweep.sweep(self._shm_directory, pid)
        self._tell("exited", self._keys.pop(pid), os.waitstatus_to_exitcode(status))

    def _end(self, server_died: bool) -> None:
        for pid in self._keys:
            _kill(pid)
        for pid in list(self._keys):
            self._bury(*os.waitpid(pid, 0))
        if server_died:
            # Its sockets close before its exit is complete, and until then its segments count as in use.
            if self._server_exit is not None:
                select.select([self._server_exit], [], [], _SERVER_EXIT_TIMEOUT_S)
            sweep.sweep(self._shm_directory)
            shutil.rmtree(self._run_dir, ignore_errors=True)

    def _tell(self, *words: object) -> None:
        with contextlib.suppress(OSError):  # the end of a dead server's socket is read, not noticed here
            self._server.sendall(json.dumps(words).encode() + b"\n")


def _abort(pid: int) -> None:
    """Its streams lead to the log, and its handler of fatal signals writes the stacks there (streams.py)."""
    if sys.platform == "linux":
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, resource.prlimit(pid, resource.RLIMIT_CORE)[1]))
    os.kill(pid, signal.SIGABRT)


def _kill(pid: int) -> None:
    """SIGKILL a stub that has not been reaped, wherever its model has moved it, and what its model has started."""
    os.kill(pid, signal.SIGKILL)
    _kill_group(pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _exec(interpreter: interpreters.Interpreter, assignment: Assignment) -> NoReturn:
    """Become the stub in another interpreter."""
    python = interpreter.python
    arguments = [python, _STUB_MAIN, "--bus", assignment.bus, "--key", assignment.key, "--title", assignment.title]
    for directory in interpreter.packages:
        arguments += ["--packages", directory]
    try:
        os.execve(python, arguments, interpreters.activated(os.environ, interpreter.prefix))
    except OSError as error:
        print("tensorbus: cannot run {} for {}: {}".format(python, assignment.title, error.strerror), file=sys.stderr)
    sys.stderr.flush()
    os._exit(127)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _LIBC.prctl(option, value, 0, 0, 0)


def _pidfd(pid: int) -> Optional[int]:
    return os.pidfd_open(pid) if sys.platform == "linux" else None
