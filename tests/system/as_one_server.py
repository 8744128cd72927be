"""A scaled stack that is started, ended and asked as one ``tensorbus serve``: the tests of that are tests of this, too.

    python -m tests.system.as_one_server shared|apart [flags of serve]

A broker, a stub host and a gateway, each with those of the flags that concern it. ``apart``: the stub host has a
/dev/shm of its own (needs root), so that all tensors go in frames. ``UP`` is said once models are up or failed. What
a test expects of the process that serves (that it ends if a model does not load, its table of options) it has not.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tensorbus.command_line import read
from tensorbus.flags import FLAGS
from tensorbus.service_settings import COMMANDS, FLAGS_OF

UP = "the stack is up"
_OWN_SHM = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=4g,mode=1777 tmpfs /dev/shm && exec "$@"', "sh"]
_EXIT_S = 120.0


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


def _log() -> str:
    return Path("/proc/self/fd/1").read_text(errors="replace")


def _start(
    command: str, given: Sequence[tuple[str, str]], *own: str, before: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    known = {flag.name: flag for flag in FLAGS_OF[COMMANDS[command]]}
    flags = [f"--{name}={text}" if known[name].read else f"--{name}" for name, text in given if name in known]
    return subprocess.Popen([*before, sys.executable, "-m", "tensorbus", command, *flags, *own])


def _is_up() -> bool:
    text = _log()
    if "Started HTTPService at " not in text:
        return False
    address = text.split("Started HTTPService at ")[1].split('"')[0]
    with contextlib.suppress(urllib.error.URLError, OSError):
        asked = urllib.request.Request(f"http://{address}/v2/repository/index", b"", method="POST")
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return all(row.get("state") not in ("LOADING", "UNLOADING") for row in json.loads(answer.read()))
    return False


def main(kind: str, argv: Sequence[str]) -> int:
    given = [(one.flag.name, one.text) for one in read(argv, FLAGS)]
    address = _free_address()
    services = [_start("broker", given, f"--bind={address}")]
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: told.append(number))
    waits = ("allow-metrics", "false") not in given
    while waits and "Started Metrics Service" not in _log() and services[0].poll() is None and not told:
        time.sleep(0.02)  # so that its address is the first one in the log
    before = _OWN_SHM if kind == "apart" else ()
    services.insert(0, _start("stub", given, f"--broker={address}", "--metrics-port=0", before=before))
    while _log().count("joined the broker") < 1 and all(one.poll() is None for one in services) and not told:
        time.sleep(0.02)
    services.insert(0, _start("gateway", given, f"--broker={address}", "--metrics-port=0"))
    is_up = False
    while not told and all(one.poll() is None for one in services):
        time.sleep(0.02)
        if not is_up and _is_up():
            is_up = True
            print(UP, flush=True)
    status = 0 if told else next((one.returncode for one in services if one.poll()), 0)  # whose end is that of all
    for one in services:  # the gateway first, the broker last
        if one.poll() is None:
            one.send_signal(signal.SIGTERM)
        status = status or one.wait(_EXIT_S)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
