"""What one broker carries: a real one, hundreds of stub hosts and a gateway that are simulated, and what each phase of
their lives costs it.

python -m benchmarks.stub_hosts [--hosts N ...] [--models N] [--requests N] [--rounds N] [--idle SECONDS]

All hosts run all models, one instance each. What a request costs is shown for one request at a time, and for many at
once: with one host those leave in one message, with many hosts in one for each.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.repository import Model, write
from benchmarks.services import Service, Services, services
from benchmarks.simulated import Gateway, StubHost, new_context

WINDOWS = (1, 32)  # requests under way
_WAIT_S = 120.0


class Phase(NamedTuple):
    """How long something took, and what it cost the broker."""

    seconds: float
    cpu_s: float


class Figures(NamedTuple):
    hosts: int
    start: Phase  # from the first dial until all instances are up
    idle_share: float  # of a core, while all beat and nobody asks for anything
    pss_bytes: int
    open_files: int
    request_us: dict[int, float]  # CPU of the broker for a request, by how many are under way
    catalogues: int  # that the gateway was sent in all
    killed: Phase  # until half of the hosts, which hang up, are known to be gone
    broker: Phase  # another one: until all hosts that are left have joined, and been told what is to run
    leave: Phase  # until all are dismissed
    failed: int  # requests
    busy_hosts: int  # that have had a request


class Stand:
    def __init__(self, started: Services, repository: Path, hosts: int, models: list[str]) -> None:
        self._started = started
        self._flags = (f"--model-repository={repository}", "--metrics-port=0", "--disable-auto-complete-config")
        self._models = models
        self.broker = self._start("tcp://127.0.0.1:0")
        self._address = self.broker.address
        self._context = new_context(hosts + 1)
        self.gateway = Gateway(self._context, self._address, models)
        self.hosts: list[StubHost] = []

    def _start(self, bind: str) -> Service:
        return self._started.start("broker", f"--bind={bind}", *self._flags)

    def close(self) -> None:
        for peer in [self.gateway, *self.hosts]:
            peer.hang_up()
        self._context.term()

    async def phase(self, change: Callable[[], object], is_over: Callable[[], bool]) -> Phase:
        """Raises TimeoutError."""
        broker, began = self.broker, time.monotonic()
        before = broker.cpu_s()
        change()
        async with asyncio.timeout(_WAIT_S):
            while not is_over():
                await asyncio.sleep(0.01)
            await self.gateway.settle()
        if broker is not self.broker:
            before = 0.0
        return Phase(time.monotonic() - began, self.broker.cpu_s() - before)

    async def bring_up(self, count: int) -> Phase:
        def dial() -> None:
            self.hosts = [StubHost(self._context, self._address, number) for number in range(1, count + 1)]

        return await self.phase(dial, self._all_up)

    def _all_up(self) -> bool:
        """What the broker is to run, runs, and the gateway knows of it."""
        ready = all(self.gateway.states.get(model) == "READY" for model in self._models)
        known = len(self.gateway.hosts) == len(self.hosts)
        return ready and known and all(len(host.stubs) == len(self._models) for host in self.hosts)

    async def idle_share(self, seconds: float) -> float:
        before, began = self.broker.cpu_s(), time.monotonic()
        await asyncio.sleep(seconds)
        return (self.broker.cpu_s() - before) / (time.monotonic() - began)

    async def request_us(self, requests: int, window: int, rounds: int, idle_share: float) -> float:
        """Beyond what beats cost. The least of some rounds: what else runs on the machine only adds."""
        await self.gateway.infer(requests // 10 + 1, window)
        costs = []
        for _ in range(rounds):
            before, began = self.broker.cpu_s(), time.monotonic()
            await self.gateway.infer(requests, window)
            beats_s = idle_share * (time.monotonic() - began)
            costs.append((self.broker.cpu_s() - before - beats_s) / requests * 1e6)
        return min(costs)

    async def kill_half(self) -> Phase:
        killed, self.hosts = self.hosts[::2], self.hosts[1::2]

        def kill() -> None:
            for host in killed:
                host.hang_up()

        return await self.phase(kill, lambda: len(self.gateway.hosts) == len(self.hosts))

    async def replace_broker(self) -> Phase:
        """The hosts dial as soon as they are lost, and come while it starts."""

        def replace() -> None:
            self.broker.kill()
            self.broker = self._start(self._address)
            self.gateway.states.clear()
            for peer in [self.gateway, *self.hosts]:
                peer.redial()

        return await self.phase(replace, lambda: all(host.is_member for host in self.hosts) and self._all_up())

    async def leave(self) -> Phase:
        def say() -> None:
            for host in self.hosts:
                host.leave()

        return await self.phase(say, lambda: all(host.is_dismissed for host in self.hosts))


async def measure(hosts: int, models: int, requests: int, rounds: int, idle_s: float) -> Figures:
    names = [f"m{number}" for number in range(models)]
    with tempfile.TemporaryDirectory() as directory, services() as started:
        repository = write(Path(directory), tuple(Model(name, "add_sub") for name in names))
        stand = Stand(started, repository, hosts, names)
        start = await stand.bring_up(hosts)
        idle_share = await stand.idle_share(idle_s)
        request_us = {window: await stand.request_us(requests, window, rounds, idle_share) for window in WINDOWS}
        busy_hosts = sum(host.executed > 0 for host in stand.hosts)
        pss_bytes, open_files, catalogues = (
            stand.broker.pss_bytes(),
            stand.broker.open_files(),
            stand.gateway.catalogues,
        )
        killed = await stand.kill_half() if hosts > 1 else Phase(0, 0)
        await stand.gateway.infer(requests // 10 + 1, WINDOWS[-1])
        broker = await stand.replace_broker()
        await stand.gateway.infer(requests // 10 + 1, WINDOWS[-1])
        failed = len(stand.gateway.errors)
        leave = await stand.leave()
        stand.hosts.clear()
        stand.close()
    return Figures(
        hosts,
        start,
        idle_share,
        pss_bytes,
        open_files,
        request_us,
        catalogues,
        killed,
        broker,
        leave,
        failed,
        busy_hosts,
    )


HEAD = (
    f"{'hosts':>6}{'start s (CPU)':>16}{'idle':>8}{'PSS MiB':>9}{'files':>7}"
    + "".join(f"{f'us of {window} at once':>20}" for window in WINDOWS)
    + f"{'half killed':>16}{'broker anew':>16}{'leave':>16}{'catalogues':>11}"
)


def row(found: Figures, first: Figures) -> str:
    costs = [f"{found.request_us[one]:11.0f} {found.request_us[one] / first.request_us[one]:7.2f}x" for one in WINDOWS]
    phases = [f"{phase.seconds:8.2f} ({phase.cpu_s:5.2f})" for phase in (found.killed, found.broker, found.leave)]
    return (
        f"{found.hosts:>6}{found.start.seconds:8.2f} ({found.start.cpu_s:5.2f}){found.idle_share:8.1%}"
        f"{found.pss_bytes / 2**20:9.1f}{found.open_files:>7}{''.join(costs)}{''.join(phases)}{found.catalogues:>11}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stub_hosts", description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 50, 500])
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=5.0, metavar="SECONDS")
    options = parser.parse_args()
    print(HEAD)
    first: Figures | None = None
    for hosts in options.hosts:
        found = asyncio.run(measure(hosts, options.models, options.requests, options.rounds, options.idle))
        first = first or found
        print(row(found, first), flush=True)


if __name__ == "__main__":
    main()
