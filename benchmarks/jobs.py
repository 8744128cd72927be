"""What is measured: loads on a running server, and what it costs to start one and to keep it idle."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import load, repository
from benchmarks.load import Call, Generator
from benchmarks.model_control import Cycle
from benchmarks.repository import CONTROLS, Ensemble, Model
from benchmarks.sequences import STEPS, sequences
from benchmarks.server import Contender, Server, running

SETTLE_S = 2.0  # until a server that has just started is idle
WARM_UP = 0.2  # of the measured time

Figures = dict[str, float]  # of one run, by metric


class Metric(NamedTuple):
    """``better`` tells whether the larger or the smaller of two servers wins."""

    name: str
    unit: str
    better: str


THROUGHPUT = Metric("throughput", "requests/s", "higher")
P50 = Metric("p50", "ms", "lower")
P99 = Metric("p99", "ms", "lower")
CPU = Metric("CPU of 1000 requests", "s", "lower")
MEMORY = Metric("memory (PSS)", "MB", "lower")
READY = Metric("start to ready", "s", "lower")
ANSWER = Metric("start to first answer", "s", "lower")
LOADED = Metric("load and unload, until both are answered", "ms", "lower")
UNLOADED = Metric("load and unload, until it is gone", "ms", "lower")
METRICS = {metric.name: metric for metric in (THROUGHPUT, P50, P99, CPU, MEMORY, READY, ANSWER, LOADED, UNLOADED)}


def _numbers(count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(count).random(count, dtype=np.float32)


def _add_sub() -> Call:
    left, right = _numbers(16), _numbers(16)[::-1].copy()
    return Call("add_sub", {"INPUT0": left, "INPUT1": right}, {"OUTPUT0": left + right, "OUTPUT1": left - right})


def _identity(model: str, nbytes: int) -> Call:
    array = _numbers(nbytes // 4)
    return Call(model, {"INPUT0": array}, {"OUTPUT0": array})


ADD_SUB = _add_sub()
MIB, MIB16 = _identity("identity", 1 << 20), _identity("identity", 16 << 20)
CHAIN3, CHAIN2 = _identity("chain_3", 64), _identity("chain_2", 16 << 20)
REPEAT = Call("repeat", {"INPUT0": np.array([1000], np.float32)}, {})
BATCHED = Call("batched", {"INPUT0": _numbers(16).reshape(1, 16)}, {"OUTPUT0": _numbers(16).reshape(1, 16)})
ENSEMBLE = Call("ensemble_3", {"INPUT0": _numbers(16)}, {"OUTPUT0": _numbers(16) + 1 + 1 + 1})
SUMS = {
    strategy: Call(
        f"accumulate_{strategy}",
        {"INPUT0": _numbers(16).reshape(1, 16)},
        {"OUTPUT0": STEPS * _numbers(16).reshape(1, 16)},
    )
    for strategy in ("direct", "oldest")
}
BUSY = {count: _identity(f"busy_{count}", 64) for count in (1, 2)}


class LoadJob(NamedTuple):
    name: str
    call: Call
    generator: Generator
    clients: int
    checks: bool = True  # before it is timed; else by the generator

    def run(self, server: Server, seconds: float) -> Figures:
        """The server's CPU is read right before and after, so that its rate covers the same requests."""
        if self.call.outputs and self.checks:
            load.check_answers(server.ports, self.call)
        self.generator(server.ports, self.call, self.clients, seconds * WARM_UP)
        before_s = server.cpu_s()
        result = self.generator(server.ports, self.call, self.clients, seconds)
        cpu_s = server.cpu_s() - before_s
        return {
            THROUGHPUT.name: result.requests / result.duration_s,
            P50.name: result.p50_ms,
            P99.name: result.p99_ms,
            CPU.name: cpu_s / result.requests * 1000,
        }


STRATEGIES = {"direct": "direct {}", "oldest": "oldest { max_candidate_sequences: 32 }"}
LOAD_MODELS = (
    Model("add_sub", "add_sub"),
    Model("identity", "identity"),
    *(Model(f"busy_{count}", "busy", count) for count in BUSY),
    Model("chain_3", "chain"),
    Model("chain_2", "chain"),
    Model("repeat", "repeat", decoupled=True),
    Model("batched", "batched", max_batch_size=64),
    *(Model(f"increment_{number}", "increment") for number in range(3)),
    Ensemble("ensemble_3", tuple(f"increment_{number}" for number in range(3))),
    *(
        Model(
            call.model,
            "accumulate",
            max_batch_size=32,
            scheduling=f"sequence_batching {{ {STRATEGIES[strategy]} {CONTROLS} }}",
        )
        for strategy, call in SUMS.items()
    ),
)
LOADS = (
    *(LoadJob(f"add_sub-http-{clients}", ADD_SUB, load.wrk, clients) for clients in (1, 8, 32)),
    *(LoadJob(f"add_sub-grpc-{clients}", ADD_SUB, load.h2load, clients) for clients in (1, 8, 32)),
    LoadJob("identity-1MiB-http", MIB, load.wrk, 1),
    LoadJob("identity-16MiB-http", MIB16, load.wrk, 1),
    LoadJob("identity-16MiB-grpc", MIB16, load.h2load, 1),
    *(LoadJob(f"busy-5ms-{count}-instances", call, load.wrk, 8) for count, call in BUSY.items()),
    LoadJob("tritonclient-add_sub-http", ADD_SUB, load.tritonclient_http, 1),
    LoadJob("tritonclient-add_sub-grpc", ADD_SUB, load.tritonclient_grpc, 1),
    LoadJob("tritonclient-identity-16MiB-http", MIB16, load.tritonclient_http, 1),
    *(LoadJob(f"bls-chain-{clients}", CHAIN3, load.wrk, clients) for clients in (1, 8)),
    LoadJob("bls-16MiB", CHAIN2, load.wrk, 1),
    LoadJob("decoupled-stream", REPEAT, load.stream, 1),
    LoadJob("batched-64", BATCHED, load.wrk, 64),
    *(LoadJob(f"ensemble-3-{clients}", ENSEMBLE, load.wrk, clients) for clients in (1, 8, 32)),
    *(LoadJob(f"sequences-{strategy}", call, sequences, 32, checks=False) for strategy, call in SUMS.items()),
)


def start_up(contender: Contender, models: int) -> Figures:
    """From the command to ready, and to the first right answer."""
    names = tuple(Model("add_sub" if i == 0 else f"add_sub_{i}", "add_sub") for i in range(models))
    with _served(contender, names) as server:
        load.check_answers(server.ports, ADD_SUB)
        answered_s = (time.monotonic_ns() - server.started_ns) / 1e9
    return {READY.name: server.ready_s, ANSWER.name: answered_s}


def memory_per_instance(contender: Contender) -> Figures:
    """What seven instances more add to an idle server, each."""
    pss = {}
    for instances in (1, 8):
        with _served(contender, (Model("add_sub", "add_sub", instances),)) as server:
            load.check_answers(server.ports, ADD_SUB)
            time.sleep(SETTLE_S)
            pss[instances] = server.pss_bytes()
    return {MEMORY.name: (pss[8] - pss[1]) / 7 / 1e6}


def idle_memory(contender: Contender) -> Figures:
    with _served(contender, (Model("add_sub", "add_sub"),)) as server:
        load.check_answers(server.ports, ADD_SUB)
        time.sleep(SETTLE_S)
        return {MEMORY.name: server.pss_bytes() / 1e6}


def load_unload(contender: Contender) -> Figures:
    """Of a trivial model, again and again: medians of so many turns."""
    with _served(contender, (Model("add_sub", "add_sub"),), ("--model-control-mode=explicit",)) as server:
        cycle = Cycle(server.ports.http, "add_sub")
        answered_ms, gone_ms = cycle.medians_ms(lambda: load.check_answers(server.ports, ADD_SUB))
    return {LOADED.name: answered_ms, UNLOADED.name: gone_ms}


STARTS = {
    "load-unload": load_unload,
    "start-up-1-model": lambda contender: start_up(contender, 1),
    "start-up-8-models": lambda contender: start_up(contender, 8),
    "idle-1-instance": idle_memory,
    "idle-per-added-instance": memory_per_instance,
}
NAMES = [*(job.name for job in LOADS), *STARTS]


def run_once(contender: Contender, names: list[str], seconds: float) -> Iterator[tuple[str, Figures]]:
    """Each job once, on one server where they share it."""
    loads = [job for job in LOADS if job.name in names]
    if loads:
        with _served(contender, LOAD_MODELS) as server:
            for job in loads:
                yield job.name, job.run(server, seconds)
    for name, measure in STARTS.items():
        if name in names:
            yield name, measure(contender)


@contextmanager
def _served(
    contender: Contender, models: tuple[Model | Ensemble, ...], flags: tuple[str, ...] = ()
) -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as directory,
        running(contender, repository.write(Path(directory), models), flags) as server,
    ):
        yield server
