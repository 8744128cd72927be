"""``tensorbus`` commands as forks of one process that has done the imports: those are half of what a start costs.

    python -m tests.system.forked FD

Arguments, environment, directory, output and exit code of each are its own; that of the interpreter (PYTHON*, LC_*)
has to be that of the tests. Between the two is a process that waits for the command, as its parent.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
_LARGEST = 1 << 17  # an order; the environment is in it


class Forked:
    """A running command: what ``subprocess.Popen`` offers of it. It is a zombie until it is asked for its end."""

    def __init__(
        self, argv: Sequence[str], output: IO[bytes], env: Mapping[str, str], start_new_session: bool = False
    ) -> None:
        """In the root of the tree; ``output`` is stdout and stderr."""
        self.returncode: int | None = None
        self._keeper, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            order = json.dumps([list(argv), dict(env), start_new_session]).encode()
            socket.send_fds(_parent(), [order], [output.fileno(), theirs.fileno()])
        self.pid = int(self._keeper.recv(64))

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(f"tensorbus, process {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._keeper], [], [], timeout_s)[0]:
            self.returncode = int(self._keeper.recv(64))
            self._keeper.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _parent() -> socket.socket:
    """Takes orders; it ends with this process, of which it is no child: some tests count those."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.system.forked", str(theirs.fileno())]
        subprocess.run(command, cwd=ROOT, pass_fds=[theirs.fileno()], check=True)
    return ours


def _obey(orders: socket.socket) -> list[str] | None:
    """Forks for each order. Returns in a child that is to be the command, with its arguments; None at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the keepers need not be waited for
    while True:
        order, (*descriptors,), _, _ = socket.recv_fds(orders, _LARGEST, 2)
        if not order:
            return None
        if os.fork() == 0:
            orders.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            output, tests = descriptors
            return _fork_and_keep(*json.loads(order), output, socket.socket(fileno=tests))
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_and_keep(
    argv: list[str], env: dict[str, str], new_session: bool, output: int, tests: socket.socket
) -> list[str]:
    pid = os.fork()
    if pid:
        tests.send(str(pid).encode())
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with contextlib.suppress(OSError):  # of tests that have ended
            tests.send(str(status).encode())
            tests.recv(1)
        os._exit(0)
    tests.close()
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    if new_session:
        os.setsid()
    os.environ.clear()
    os.environ.update(env)
    return argv


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    import uvloop  # noqa: F401

    from tensorbus import broker_service, gateway_service, serve, stub_service  # noqa: F401
    from tensorbus.__main__ import main

    gc.freeze()
    argv = _obey(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(0 if argv is None else main(argv))
