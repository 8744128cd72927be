"""What it costs to run gateway, broker and stub host as services of their own, and what more of them bring.

python -m benchmarks.scaled_stack [serve] [gateways] [hosts] [curve] [--repeats N] [--seconds S]

All run on this host, and those that are compared take turns. Ratios are medians over the turns, and those of CPU per
request are of all processes, with that of the least of all turns in brackets; times are those of the least. A second
gateway gives more throughput only where there are cores for it; a second stub host does on any machine, if the model
sleeps. "curve" needs root.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import load
from benchmarks.jobs import ADD_SUB, BUSY, MIB, SETTLE_S
from benchmarks.load import Call
from benchmarks.repository import Model, write
from benchmarks.server import OURS, ROOT, Ports, Server, free_ports, running
from benchmarks.services import ALONE, START_S, Services, services

MODELS = ("add_sub", "identity", "sleep")
CLIENTS = (8, 32)


class Cost(NamedTuple):
    """Of a load: requests per second, and CPU of a request in microseconds, in all and by kind of service."""

    throughput: float
    cpu_us: float
    by_kind: dict[str, float] = {}


class Stack:
    """A broker, gateways and stub hosts, of which each has models of one instance; with ``keys`` encrypted."""

    def __init__(
        self, repository: Path, gateways: int, hosts: int, keys: Path | None = None, shares: bool = True
    ) -> None:
        """Unless ``shares``, stub hosts have a shared memory that gateways do not see, as on another host."""
        self._running = services()
        self._services: Services = self._running.__enter__()
        trusts: dict[str, list[str]] = {"broker": [], "other": []} if keys is None else _trust(keys)
        flags = [f"--model-repository={repository}", "--bind=tcp://127.0.0.1:0", "--metrics-port=0", *trusts["broker"]]
        broker = self._services.start("broker", *flags)
        dial = [f"--broker={broker.address}", *trusts["other"]]
        place = () if shares else ALONE
        self._hosts = [self._services.start("stub", *dial, "--metrics-port=0", place=place) for _ in range(hosts)]
        self.ports = [free_ports() for _ in range(gateways)]
        self._all = [broker, *self._hosts]
        for ports in self.ports:
            chosen = [f"--http-port={ports.http}", f"--grpc-port={ports.grpc}", f"--metrics-port={ports.metrics}"]
            self._all.append(self._services.start("gateway", *dial, *chosen))

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *raised: object) -> None:
        self._running.__exit__(None, None, None)

    def wait_until_up(self) -> None:
        """Every gateway has the models, and every host their instances."""
        for ports in self.ports:
            for model in MODELS:
                _wait_until(lambda ports=ports, model=model: _is_ready(ports, model))  # type: ignore[misc]
        _wait_until(lambda: all(host.stubs() >= len(MODELS) for host in self._hosts))
        time.sleep(SETTLE_S)

    def cpu_s(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for one in self._all:
            found[one.kind] = found.get(one.kind, 0.0) + one.tree_cpu_s()
        return found


def _trust(keys: Path) -> dict[str, list[str]]:
    subprocess.run([sys.executable, "-m", "tensorbus", "keys", str(keys)], cwd=ROOT, check=True, stdout=sys.stderr)
    return {
        "broker": [f"--curve-key={keys}/broker.key", f"--curve-authorized={keys}/service.pub"],
        "other": [f"--curve-key={keys}/service.key", f"--curve-broker-key={keys}/broker.pub"],
    }


def _is_ready(ports: Ports, model: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", ports.http, timeout=10)
    try:
        connection.request("GET", f"/v2/models/{model}/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + START_S
    while not is_so():
        if time.monotonic() > end:
            raise RuntimeError("the stack has not come up")
        time.sleep(0.05)


def put(ports: Sequence[Ports], call: Call, clients: int, seconds: float) -> tuple[int, float]:
    """The same load on each of the gateways at once, by wrk: requests, and requests per second."""
    loads: list[load.Load] = []
    threads = [
        threading.Thread(target=lambda one=one: loads.append(load.wrk(one, call, clients // len(ports), seconds)))
        for one in ports
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(loads) < len(ports):
        raise RuntimeError("a load generator has failed")
    return sum(one.requests for one in loads), sum(one.requests / one.duration_s for one in loads)


def of_stack(stack: Stack, gateways: int, call: Call, clients: int, seconds: float) -> Cost:
    put(stack.ports[:gateways], call, clients, 1)
    before = stack.cpu_s()
    requests, throughput = put(stack.ports[:gateways], call, clients, seconds)
    spent = {kind: (now - before[kind]) / requests * 1e6 for kind, now in stack.cpu_s().items()}
    return Cost(throughput, sum(spent.values()), spent)


def of_server(server: Server, call: Call, clients: int, seconds: float) -> Cost:
    put([server.ports], call, clients, 1)
    before = server.cpu_s()
    requests, throughput = put([server.ports], call, clients, seconds)
    return Cost(throughput, (server.cpu_s() - before) / requests * 1e6)


def compare(what: str, ours: Callable[[], Cost], theirs: Callable[[], Cost], repeats: int) -> None:
    pairs = [(ours(), theirs()) for _ in range(repeats)]
    least, other = (min(column, key=lambda cost: cost.cpu_us) for column in zip(*pairs, strict=True))
    speed = statistics.median(one.throughput / two.throughput for one, two in pairs)
    cost = statistics.median(one.cpu_us / two.cpu_us for one, two in pairs)
    print(f"{what}: CPU per request {cost:.2f}x ({least.cpu_us / other.cpu_us:.2f}x), throughput {speed:.2f}x")
    for one in (least, other):
        told = ", ".join(f"{kind} {us:.0f}" for kind, us in one.by_kind.items())
        print(f"    {one.cpu_us:.0f} us of CPU per request: {told}", flush=True)


def against_serve(repository: Path, repeats: int, seconds: float) -> None:
    """One of each service, with shared memory, and the whole server."""
    jobs = [(f"add_sub, {clients} clients", ADD_SUB, clients) for clients in CLIENTS]
    jobs.append(("identity of 1 MiB, 8 clients", MIB, 8))
    with Stack(repository, 1, 1) as stack, running(OURS, repository) as server:
        stack.wait_until_up()
        for name, call, clients in jobs:
            compare(
                f"services against serve, {name}",
                lambda call=call, clients=clients: of_stack(stack, 1, call, clients, seconds),  # type: ignore[misc]
                lambda call=call, clients=clients: of_server(server, call, clients, seconds),  # type: ignore[misc]
                repeats,
            )


def another_gateway(repository: Path, repeats: int, seconds: float) -> None:
    with Stack(repository, 2, 1) as stack:
        stack.wait_until_up()
        one, two = ((lambda n=n: of_stack(stack, n, ADD_SUB, 32, seconds)) for n in (1, 2))
        compare("two gateways against one, add_sub, 32 clients", two, one, repeats)


def another_host(repository: Path, repeats: int, seconds: float) -> None:
    call = BUSY[1]._replace(model="sleep")
    with Stack(repository, 1, 1) as one, Stack(repository, 1, 2) as two:
        for stack in (one, two):
            stack.wait_until_up()
        compare(
            "two stub hosts against one, a model that sleeps 5 ms, 16 clients",
            lambda: of_stack(two, 1, call, 16, seconds),
            lambda: of_stack(one, 1, call, 16, seconds),
            repeats,
        )


def encryption(repository: Path, repeats: int, seconds: float) -> None:
    """Between services that share no memory, so that the tensors cross the wire."""
    jobs = [("add_sub, 32 clients", ADD_SUB, 32)]
    jobs += [("identity of 1 MiB, 8 clients", MIB, 8)]
    with (
        tempfile.TemporaryDirectory() as keys,
        Stack(repository, 1, 1, shares=False) as plain,
        Stack(repository, 1, 1, Path(keys), shares=False) as curve,
    ):
        for stack in (plain, curve):
            stack.wait_until_up()
        for name, call, clients in jobs:
            compare(
                f"encrypted against plain, {name}",
                lambda call=call, clients=clients: of_stack(curve, 1, call, clients, seconds),  # type: ignore[misc]
                lambda call=call, clients=clients: of_stack(plain, 1, call, clients, seconds),  # type: ignore[misc]
                repeats,
            )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaled_stack", description=__doc__.splitlines()[0])
    parts = {"serve": against_serve, "gateways": another_gateway, "hosts": another_host, "curve": encryption}
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)}; all unless named")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        repository = write(Path(directory), tuple(Model(name, name) for name in MODELS))
        for part in options.parts or parts:
            parts[part](repository, options.repeats, options.seconds)


if __name__ == "__main__":
    main()
