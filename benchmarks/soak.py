"""100,000 requests, then idle: shared memory, open files and memory must be what they were after the first 10,000.

python -m benchmarks.soak [--requests N]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from benchmarks import load, repository
from benchmarks.jobs import ADD_SUB, MIB
from benchmarks.repository import Model
from benchmarks.server import OURS, Server, running

SHM = Path("/dev/shm")
IDLE_S = 15.0  # longer than an empty segment is kept
GROWTH = 1.05
PENDING = re.compile(r"^nv_inference_pending_request_count\{.*\} (\S+)$", re.MULTILINE)

# Of each 100 requests: the front, the call, how many, by how many clients.
MIX = (
    ("http", ADD_SUB, 60, 32),
    ("grpc", ADD_SUB, 35, 8),
    ("http", MIB, 5, 4),
)


class Held(NamedTuple):
    """What the idle server holds."""

    segments: int
    shm_bytes: int
    open_files: int
    rss_bytes: int
    pending: float


def send(server: Server, requests: int) -> None:
    for front, call, share, clients in MIX:
        load.send_exactly(server.ports, call, front, requests * share // 100, clients)
        print(f"  {requests * share // 100:,} x {call.model} over {front}", file=sys.stderr, flush=True)


def segments_of(pids: set[int]) -> list[Path]:
    return [each for each in SHM.glob("tensorbus-*") if int(each.name.split("-")[1]) in pids]


def held(server: Server) -> Held:
    time.sleep(IDLE_S)
    tree = server.tree()
    segments = segments_of({process.pid for process in tree})
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports.metrics}/metrics", timeout=10) as response:
        pending = [float(number) for number in PENDING.findall(response.read().decode())]
    return Held(
        segments=len(segments),
        shm_bytes=sum(each.stat().st_blocks * 512 for each in segments),
        open_files=server.open_files(),
        rss_bytes=sum(process.memory_info().rss for process in tree),
        pending=sum(pending),
    )


def faults(early: Held, late: Held) -> list[str]:
    found = [
        f"{name} grew from {before:,} to {after:,}"
        for name, before, after, most in (
            ("segments", early.segments, late.segments, early.segments),
            ("shared memory", early.shm_bytes, late.shm_bytes, early.shm_bytes * GROWTH),
            ("open files", early.open_files, late.open_files, early.open_files),
            ("memory", early.rss_bytes, late.rss_bytes, early.rss_bytes * GROWTH),
        )
        if after > most
    ]
    return [*found, f"{late.pending:g} requests are pending"] if late.pending else found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    total = parser.parse_args().requests
    models = (Model("add_sub", "add_sub", 2), Model("identity", "identity"))
    with (
        tempfile.TemporaryDirectory() as directory,
        running(OURS, repository.write(Path(directory), models)) as server,
    ):
        for call in (ADD_SUB, MIB):
            load.check_answers(server.ports, call)
        send(server, total // 10)
        early = held(server)
        print(f"after {total // 10:,}: {early}", flush=True)
        send(server, total - total // 10)
        late = held(server)
        print(f"after {total:,}: {late}", flush=True)
        pids = {process.pid for process in server.tree()}
    left = segments_of(pids)
    found = faults(early, late) + ([f"{len(left)} segments are left behind"] if left else [])
    print("\n".join(found) or "no growth")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
