"""What a request costs a real server, by how many models it has loaded.

    python -m benchmarks.server_scale [--requests 1000] [--rounds 12]

Every model is an add_sub with a process of its own; one client asks one of them, or each in turn, over one connection.
CPU time of the server's own process and of the whole tree per request, and the ratios to one model. That more stubs
take turns costs what it costs the machine to wake another process each time; the server's own part should not grow.
All servers are there from the first round to the last, since the machine may be faster in one minute than in the next.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
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


def cost(server: Server, models: list[str], requests: int) -> Cost:
    """Of a request."""
    ask(server, islice(cycle(models), max(100, len(models))))
    before = cpu(server)
    asked = ask(server, islice(cycle(models), requests))
    return Cost(*((now - then) / asked for now, then in zip(cpu(server), before, strict=True)))


def least(costs: list[Cost]) -> Cost:
    return Cost(*map(min, zip(*costs, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    names = [f"m{number}" for number in range(max(SIZES))]
    costs: dict[tuple[int, int], list[Cost]] = {(size, used): [] for size in SIZES for used in (1, size)}
    with ExitStack() as stack:
        servers = []
        for size in SIZES:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            repository = write(directory, tuple(Model(name, "add_sub") for name in names[:size]))
            servers.append((size, stack.enter_context(running(OURS, repository))))
            print(f"{size} models are loaded", flush=True)
        for number in range(options.rounds):
            for size, server in servers:
                for used in (1, size):
                    costs[size, used].append(cost(server, names[:used], options.requests))
            print(f"round {number + 1} of {options.rounds}", flush=True)
    base = least(costs[1, 1])
    print(f"{'models':>6}{'used':>6}" + "".join(f"{head:>22}" for head in ("server", "tree")))
    for (size, used), each in costs.items():
        pairs = zip(least(each), base, strict=True)
        print(f"{size:>6}{used:>6}" + "".join(f"{now:12.0f} us {now / first:5.2f}x" for now, first in pairs))


if __name__ == "__main__":
    main()
