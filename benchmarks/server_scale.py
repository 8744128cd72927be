"""What a request costs a real server, by how many models it has loaded.

    python -m benchmarks.server_scale [--requests 4000]

Every model is an add_sub with a process of its own; one client asks one of them, or each in turn, over one connection.
CPU time of the server's own process and of the whole tree per request, and the ratios to one model. That more stubs
take turns costs what it costs the machine to wake another process each time; the server's own part should not grow.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
from collections.abc import Iterable
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from benchmarks.repository import Model, write
from benchmarks.server import OURS, Server, running

SIZES = (1, 10, 100)
_INPUTS = [{"name": f"INPUT{n}", "datatype": "FP32", "shape": [16], "data": [1.0] * 16} for n in (0, 1)]
_BODY = json.dumps({"inputs": _INPUTS}).encode()


def ask(server: Server, models: Iterable[str]) -> int:
    """How many requests that were."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports.http, timeout=60)
    asked = 0
    for model in models:
        connection.request("POST", f"/v2/models/{model}/infer", _BODY)
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"{model}: {response.status} {text!r}")
        asked += 1
    connection.close()
    return asked


class Cost(NamedTuple):
    """CPU time in microseconds."""

    server: float
    tree: float


def cpu(server: Server) -> Cost:
    times = server.tree()[0].cpu_times()
    return Cost((times.user + times.system) * 1e6, server.cpu_s() * 1e6)


def cost(server: Server, models: list[str], requests: int, rounds: int) -> Cost:
    """Of a request, the least of some rounds."""
    ask(server, islice(cycle(models), max(200, len(models))))
    costs = []
    for _ in range(rounds):
        before = cpu(server)
        asked = ask(server, islice(cycle(models), requests))
        costs.append([(now - then) / asked for now, then in zip(cpu(server), before, strict=True)])
    return Cost(*map(min, zip(*costs, strict=True)))


def measure(size: int, requests: int, rounds: int) -> tuple[Cost, Cost]:
    """One model used, all models used."""
    names = [f"m{number}" for number in range(size)]
    with tempfile.TemporaryDirectory() as directory:
        repository = write(Path(directory), tuple(Model(name, "add_sub") for name in names))
        with running(OURS, repository) as server:
            return cost(server, names[:1], requests, rounds), cost(server, names, requests, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    base: tuple[Cost, Cost] | None = None
    print(
        f"{'models':>6}" + "".join(f"{head:>24}" for head in ("one used: server", "tree", "all used: server", "tree"))
    )
    for size in SIZES:
        costs = measure(size, options.requests, options.rounds)
        base = base or costs
        pairs = zip([*costs[0], *costs[1]], [*base[0], *base[1]], strict=True)
        print(f"{size:>6}" + "".join(f"{now:14.0f} us {now / first:5.2f}x" for now, first in pairs), flush=True)


if __name__ == "__main__":
    main()
