"""Several hosts on one machine: each with a network, processes, IPC and a /dev/shm of its own, joined by a bridge.

Needs root, iproute2 and util-linux. Nothing of it is in the machine's own network, and no way leads out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

_NET = "198.18.91"
_TOOLS = ("ip", "unshare", "nsenter", "mount")


def why_not() -> str:
    """The reason for which there can be none here; "" if there can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    probe = f"tb-probe-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    if tried.returncode:
        return f"network namespaces cannot be made here: {tried.stderr.decode().strip()}"
    _run("ip", "netns", "del", probe)
    return ""


class Host:
    """``ip`` is its address; processes started by ``popen`` end with it."""

    def __init__(self, switch: str, number: int) -> None:
        self.ip = f"{_NET}.{number + 10}"
        self.name = f"{switch}-h{number}"
        self._switch = switch
        self._port = f"p{number}"
        self._init: subprocess.Popen[str] | None = None

    def up(self) -> None:
        _run("ip", "netns", "add", self.name)
        end = ("peer", "name", "eth0", "netns", self.name)
        _run("ip", "-n", self._switch, "link", "add", self._port, "type", "veth", *end)
        _run("ip", "-n", self._switch, "link", "set", self._port, "master", "br0", "up")
        _run("ip", "-n", self.name, "link", "set", "lo", "up")
        _run("ip", "-n", self.name, "addr", "add", f"{self.ip}/24", "dev", "eth0")
        _run("ip", "-n", self.name, "link", "set", "eth0", "up")
        self.boot()

    def boot(self) -> None:
        """A process that holds its namespaces; when it dies, all dies that was started here."""
        script = "mount -t tmpfs -o size=1g,mode=1777 tmpfs /dev/shm && echo up && exec sleep infinity"
        isolate = ["unshare", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._init = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *isolate, "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._init.stdout is not None
        assert self._init.stdout.readline().strip() == "up", f"{self.name} did not start"
        (self._pid,) = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()

    def argv(self, command: Sequence[str]) -> list[str]:
        """``command``, run here."""
        return ["nsenter", "--target", self._pid, "--mount", "--net", "--ipc", "--pid", "--", *command]

    def popen(self, command: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.argv(command), start_new_session=True, **options)  # type: ignore[call-overload,no-any-return]

    def shm(self) -> list[str]:
        """What lies in its shared memory."""
        listed = subprocess.run(self.argv(["ls", "/dev/shm"]), capture_output=True, text=True, check=True)
        return listed.stdout.split()

    def cut(self) -> None:
        """The cable is out."""
        _run("ip", "-n", self._switch, "link", "set", self._port, "down")

    def restore(self) -> None:
        _run("ip", "-n", self._switch, "link", "set", self._port, "up")

    def kill(self) -> None:
        """As when its power fails: all that runs here dies at once, and its memory is gone."""
        if self._init is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self._pid), signal.SIGKILL)
            self._init.wait(10)
            self._init = None

    def down(self) -> None:
        self.kill()
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)


@contextlib.contextmanager
def several_hosts(count: int) -> Iterator[list[Host]]:
    switch = f"tb{os.getpid()}"
    hosts = [Host(switch, number) for number in range(count)]
    try:
        _run("ip", "netns", "add", switch)
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        for host in hosts:
            host.up()
        yield hosts
    finally:
        for host in hosts:
            host.down()
        subprocess.run(["ip", "netns", "del", switch], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, f"{' '.join(command)}: {done.stderr.strip()}"
