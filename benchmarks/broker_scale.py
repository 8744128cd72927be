"""What a request costs the broker, by how many models and instances there are and how many requests wait.

    python -m benchmarks.broker_scale [--requests 20000]

The core alone, driven as its shell drives it, with stubs that answer at once: CPU time per request in microseconds, and
the ratio to the first of each row. A ratio that grows with the number is a fault.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from itertools import count, cycle
from typing import NamedTuple

from broker.core import Core
from broker.events import (
    Action,
    Answer,
    ClientGone,
    Event,
    HostJoined,
    LoadModels,
    OutputsRead,
    Send,
    Spawn,
    StubSaid,
    Submitted,
)
from broker.model import VersionSource
from broker.model_config import ModelConfigMessage, from_message
from broker.settings import BrokerSettings
from metrics.recorder import Recorder
from protocol.messages import (
    HELLO,
    READY,
    RESULTS,
    VERSION,
    Execute,
    Executed,
    Handle,
    Hello,
    Ready,
    Request,
    Response,
    Results,
    TensorRef,
)

_NONCE = b"n" * 32
_INPUT = TensorRef("X", "FP32", (1, 4), Handle("g", 128, 16))
_OUTPUT = TensorRef("X", "FP32", (1, 4), Handle("s", 128, 16))


class _Sink:
    def on_response(self, response: Response, origin: str, frames: object) -> None: ...

    def on_inputs_released(self) -> None: ...


class Stand:
    """A core with models "0", "1" ... of one instance each, unless ``fields`` of their sources say otherwise. What the
    stubs get they keep until told to answer."""

    execute_ns = 100_000

    def __init__(self, models: int, ensemble: bool = False, hosts: int = 0, lends: bool = False, **fields: int) -> None:
        """``hosts`` are stub hosts; without any all runs on the server's own. With ``lends`` answers are on lease until
        ``read``."""
        settings = BrokerSettings("ipc://x", "/x", auto_complete=False, hosted=hosts > 0)
        self.core = Core(settings, Recorder(), Handle("s", 128, 32), _NONCE, 0)
        self.now = 10**9
        self.held: dict[str, list[Execute]] = {}  # by key of a stub
        self.keys: list[str] = []  # of the instances of each model in turn
        self.busy: dict[str, None] = {}  # stubs that hold something, in the order in which they got it
        self._last = self._hosts = self._up = 0
        self._lends = lends
        self._leases = count(1)
        self._unread: list[OutputsRead] = []
        self._sink = _Sink()
        sources = [_source(str(number), **fields) for number in range(models)]
        if ensemble:
            sources.append(_ensemble("e", models))
        self.handle(LoadModels(sources))
        self.turn()
        self._bring_up()
        for _ in range(hosts):
            self.add_host()

    def add_host(self) -> None:
        self._hosts += 1
        self.handle(HostJoined(str(self._hosts), ("*",)))
        self.turn()
        self._bring_up()

    def _bring_up(self) -> None:
        while self._up < len(self.keys):  # one that is up makes room for the next to load
            key = self.keys[self._up]
            self._up += 1
            self.handle(StubSaid(key, Hello(HELLO, VERSION, 1), ()))
            self.handle(StubSaid(key, Ready(READY, _NONCE, "segment"), ()))
        self.turn()

    def handle(self, event: Event) -> None:
        self._do(self.core.handle(event, self.now))

    def turn(self) -> None:
        """As the shell ends one."""
        self._do(self.core.dispatch(self.now))
        self.core.count()
        self.core.next_deadline()
        self.now += 1000

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if type(action) is Send and type(action.message) is Execute and action.message.batches:
                self.held[action.key].append(action.message)
                self.busy[action.key] = None
            elif type(action) is Answer and action.response.lease:
                self._unread.append(OutputsRead(action.origin, action.response.lease))
            elif type(action) is Spawn:
                self.keys.append(action.key)
                self.held[action.key] = []

    def submit(self, model: str) -> int:
        self._last += 1
        request = Request(self._last, model, -1, [_INPUT if model != "e" else _INPUT._replace(name="t0")])
        self.handle(Submitted(request, (), self._sink, self.now))
        return self._last

    def answer(self, key: str) -> int:
        """All that the stub holds; how many requests that was."""
        messages, self.held[key] = self.held[key], []
        self.busy.pop(key, None)
        if not messages:
            return 0
        executed = [
            Executed(batch.id, 1, self.execute_ns, 1, False, [self._response(one.id) for one in batch.requests])
            for message in messages
            for batch in message.batches
        ]
        self.handle(StubSaid(key, Results(RESULTS, executed, []), ()))
        return sum(len(one.responses) for one in executed)

    def _response(self, request: int) -> Response:
        return Response(request, [_OUTPUT], lease=next(self._leases) if self._lends else 0)

    def read(self) -> None:
        """The clients have read all that has been answered."""
        unread, self._unread = self._unread, []
        for event in unread:
            self.handle(event)


def _source(name: str, timeout_us: int = 0, delay_us: int = 0, batch: int = 0, instances: int = 1) -> VersionSource:
    message = ModelConfigMessage(name=name, backend="python", max_batch_size=batch or 1)
    if batch:
        message.dynamic_batching.max_queue_delay_microseconds = delay_us
        message.dynamic_batching.default_queue_policy.default_timeout_microseconds = timeout_us
    message.instance_group.add(count=instances, name=name)
    for io in (message.input.add(), message.output.add()):
        io.name, io.data_type, io.dims[:] = "X", 11, [4]
    return VersionSource(name, 1, f"/{name}", from_message(message))


def _ensemble(name: str, steps: int) -> VersionSource:
    message = ModelConfigMessage(name=name, platform="ensemble", max_batch_size=1)
    for io in (message.input.add(), message.output.add()):
        io.name, io.data_type, io.dims[:] = "X", 11, [4]
    message.input[0].name = "t0"
    message.output[0].name = f"t{steps}"
    for step in range(steps):
        message.ensemble_scheduling.step.add(
            model_name=str(step), model_version=-1, input_map={"X": f"t{step}"}, output_map={"X": f"t{step + 1}"}
        )
    return VersionSource(name, 1, f"/{name}", from_message(message))


# --- jobs: each gives the number of requests that it has seen through ---------------------------------------------


def one_model(models: int, requests: int) -> Iterator[int]:
    """Of many, one is used."""
    yield from _turns(Stand(models), cycle(["0"]), requests)


def every_model(models: int, requests: int) -> Iterator[int]:
    """In turn."""
    yield from _turns(Stand(models), cycle(map(str, range(models))), requests)


def every_model_delayed(models: int, requests: int) -> Iterator[int]:
    """Each has a batch that waits for its delay."""
    stand = Stand(models, batch=8, delay_us=10**9)
    for model in range(models):
        stand.submit(str(model))
    yield from _turns(stand, cycle(map(str, range(models))), requests)


def queue(depth: int, requests: int, **fields: int) -> Iterator[int]:
    """So many wait all the time."""
    stand = Stand(1, **fields)
    for _ in range(depth):
        stand.submit("0")
    yield from _turns(stand, cycle(["0"]), requests)


def batching(depth: int, requests: int) -> Iterator[int]:
    yield from queue(depth, requests, batch=8)


def time_outs(depth: int, requests: int) -> Iterator[int]:
    """All could expire, none does; those that are done have left a date behind."""
    yield from queue(depth, requests, batch=8, timeout_us=60_000_000)


def cancels(depth: int, requests: int) -> Iterator[int]:
    """Of four that come three go before their turn, the last come first."""
    stand = Stand(1)
    for _ in range(depth):
        stand.submit("0")
    stand.turn()
    yield 0
    seen = 0
    while seen < requests:
        answered = stand.answer(stand.keys[0])
        for id in [stand.submit("0") for _ in range(4 * answered)]:
            if id % 4:
                stand.handle(ClientGone(id))
        stand.turn()
        seen += 4 * answered
    yield seen


def cancelled_queue(depth: int, requests: int) -> Iterator[int]:
    """All that wait are cancelled, first the first, while a batch is being gathered; and again."""
    stand = Stand(1, batch=8, delay_us=10**9)
    stand.submit("0")
    stand.turn()
    yield 0
    seen = 0
    while seen < requests:
        ids = [stand.submit("0") for _ in range(depth)]
        for id in ids:
            stand.handle(ClientGone(id))
        for _ in range(4):
            stand.submit("0")
            stand.turn()
        stand.answer(stand.keys[0])
        stand.turn()
        seen += depth + 4
    yield seen


def flows(depth: int, requests: int) -> Iterator[int]:
    """Through an ensemble of two models."""
    stand = Stand(2, ensemble=True)
    for _ in range(depth):
        stand.submit("e")
    stand.turn()
    yield 0
    seen = 0
    while seen < requests:
        stand.answer(stand.keys[0])
        stand.turn()
        answered = stand.answer(stand.keys[1])
        for _ in range(answered):
            stand.submit("e")
        stand.turn()
        seen += answered
    yield seen


def idle_instances(count: int, requests: int, **fields: int) -> Iterator[int]:
    """Of one model, of which one has something to do."""
    yield from _one_by_one(Stand(1, instances=count, **fields), 1, requests)


def busy_instances(count: int, requests: int, **fields: int) -> Iterator[int]:
    """Of one model, which all have something to do while more waits; one after the other answers."""
    yield from _one_by_one(Stand(1, instances=count, **fields), count + 10, requests)


def busy_instances_batched(count: int, requests: int) -> Iterator[int]:
    yield from busy_instances(count, requests, batch=8)


def _one_by_one(stand: Stand, waiting: int, requests: int) -> Iterator[int]:
    for _ in range(waiting):
        stand.submit("0")
    stand.turn()
    yield 0
    seen = 0
    while seen < requests:
        answered = stand.answer(next(iter(stand.busy)))
        for _ in range(answered):
            stand.submit("0")
        stand.turn()
        seen += answered
    yield seen


def hosts(count: int, joins: int) -> Iterator[int]:
    """One more joins, again and again."""
    stand = Stand(2, hosts=count)
    yield 0
    for _ in range(max(1, joins // 200)):
        stand.add_host()
    yield max(1, joins // 200)


def _turns(stand: Stand, models: Iterator[str], requests: int) -> Iterator[int]:
    """One comes for each that is answered."""
    stand.turn()
    yield 0
    seen = 0
    while seen < requests:
        model = next(models)
        answered = stand.answer(stand.keys[int(model)])
        for _ in range(answered or 1):
            stand.submit(model)
        stand.turn()
        seen += answered or 1
    yield seen


class Axis(NamedTuple):
    what: str
    job: Callable[[int, int], Iterator[int]]
    sizes: tuple[int, ...]


MODELS, DEPTHS, INSTANCES = (1, 10, 100), (1, 1_000, 10_000), (2, 50, 500)
AXES = (
    Axis("models loaded, one used", one_model, MODELS),
    Axis("models loaded, all used", every_model, MODELS),
    Axis("models loaded, a batch of each delayed", every_model_delayed, MODELS),
    Axis("instances, one busy", idle_instances, INSTANCES),
    Axis("instances, all busy", busy_instances, INSTANCES),
    Axis("instances, all busy, batched", busy_instances_batched, INSTANCES),
    Axis("stub hosts, for each that joins", hosts, INSTANCES),
    Axis("requests waiting", queue, DEPTHS),
    Axis("requests waiting, batched", batching, DEPTHS),
    Axis("requests waiting, with time-outs", time_outs, DEPTHS),
    Axis("requests waiting, most that come are cancelled", cancels, DEPTHS),
    Axis("requests cancelled at once while a batch is gathered", cancelled_queue, DEPTHS),
    Axis("requests waiting, of an ensemble", flows, DEPTHS),
)


def cost_us(axis: Axis, size: int, requests: int) -> float:
    """CPU time of a request."""
    job = axis.job(size, requests)
    next(job)
    gc.collect()
    began = time.process_time_ns()
    seen = next(job)
    return (time.process_time_ns() - began) / seen / 1000


def measure(axis: Axis, requests: int, rounds: int) -> list[float]:
    """The least of some rounds by size: what else runs on the machine only adds."""
    costs = [[cost_us(axis, size, requests) for size in axis.sizes] for _ in range(rounds)]
    return [min(column) for column in zip(*costs, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'':54}{'microseconds of a request, and the ratio':>54}")
    for axis in AXES:
        costs = measure(axis, options.requests, options.rounds)
        cells = [
            f"{size:>6}: {cost:6.1f} {cost / costs[0]:4.2f}x" for size, cost in zip(axis.sizes, costs, strict=True)
        ]
        print(f"{axis.what:54}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
