"""A broker of plain functions for tests of the gateway: no process, real shared memory on both sides."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

from gateway.bus import Bus, Done, Frames, OnIndex, OnStatistics, ReplySink
from gateway.dataplane import DataPlane
from protocol.datatypes import BY_NAME
from protocol.errors import InvalidArgument, NotFound, ServingError, Unavailable
from protocol.kserve import generated
from protocol.messages import Handle, Parameters, Request, Response, TensorRef
from protocol.signature import IndexEntry, Signature, TensorSpec
from protocol.statistics import BatchStatistics, Duration, InferStatistics, ModelStatistics
from shm.arena import ALIGNMENT
from shm.store import Block, Reader, Store
from tests.gateway.bare_broker import Loopback

ModelConfig = generated("model_config_pb2").ModelConfig

PLAIN, REMOTE, REMOTE_FRAMES = "plain", "remote", "remote frames"

Tensor = tuple[str, str, tuple[int, ...], bytes]  # name, datatype, shape, data


def output_name(name: str) -> str:
    """OUT of IN, OUTPUT0 of INPUT0."""
    return name.replace("IN", "OUT", 1)


@dataclass(eq=False)
class Submitted:
    """A request inside the broker. Outputs go to the fake stub's shared memory."""

    bus: FakeBus
    request: Request
    frames: Frames
    sink: ReplySink
    cancelled: bool = False

    def inputs(self) -> list[Tensor]:
        return [(ref.name, ref.datatype, ref.shape, bytes(self._data(ref))) for ref in self.request.inputs]

    def _data(self, ref: TensorRef) -> memoryview | bytes:
        if isinstance(ref.place, bytes):
            return ref.place
        return self.frames[ref.place] if isinstance(ref.place, int) else self.bus.stub_reader.view(*ref.place)

    def run(self) -> None:
        """Let its model answer."""
        self.bus.models[self.request.model](self)

    def answer(
        self,
        outputs: list[Tensor] | None = None,
        error: ServingError | None = None,
        final: bool = True,
        parameters: Parameters | None = None,
    ) -> None:
        wanted = self.request.outputs
        lease, refs = self.bus.place([row for row in outputs or [] if not wanted or row[0] in wanted])
        failure = None if error is None else (int(error.kind), str(error))
        flag_only = outputs is None and error is None and parameters is None and final
        response = Response(self.request.id, refs, lease, failure, parameters or {}, final, False, flag_only)
        self.sink.on_response(response, "stub", ())

    def echo(self, final: bool = True, parameters: Parameters | None = None) -> None:
        outputs = [(output_name(name), *rest) for name, *rest in self.inputs()]
        self.answer(outputs, final=final, parameters=parameters)  # type: ignore[arg-type]


Model = Callable[[Submitted], None]


def add_sub(entry: Submitted) -> None:
    (_, _, shape, first), (_, _, _, second) = entry.inputs()
    pairs = list(zip(array("f", first), array("f", second), strict=True))
    added = array("f", [a + b for a, b in pairs]).tobytes()
    subtracted = array("f", [a - b for a, b in pairs]).tobytes()
    entry.answer([("OUTPUT0", "FP32", shape, added), ("OUTPUT1", "FP32", shape, subtracted)])


def signature(
    model: str,
    inputs: Mapping[str, tuple[str, tuple[int, ...]]] | None = None,
    max_batch_size: int = 0,
    decoupled: bool = False,
    optional: frozenset[str] = frozenset(),
) -> Signature:
    """An output for each input, of its type and shape. Without ``inputs`` one IN of INT32[-1]."""
    described = (inputs or {"IN": ("INT32", (-1,))}).items()
    return Signature(
        model,
        1,
        "python",
        max_batch_size,
        decoupled,
        tuple(TensorSpec(name, *spec, optional=name in optional) for name, spec in described),
        tuple(TensorSpec(output_name(name), *spec) for name, spec in described),
        f'{{"name":"{model}"}}',
        ModelConfig(name=model, backend="python", max_batch_size=max_batch_size).SerializeToString(),
    )


@dataclass
class Logging:
    log_file: str = "server.log"
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"


class FakeBus:
    """Models are functions that are called one turn of the loop after ``submit``. With ``hold``, and for what has no
    function, requests wait in ``held`` until the test answers them.

    ``way`` is how the gateway reaches it: by plain calls, or as a broker in another process, whose models share its
    memory or not."""

    def __init__(self, directory: str, way: str = PLAIN, small_nbytes: int = 0) -> None:
        self.full = False
        self.gateway_store = Store(directory)
        self.stub_store = Store(directory)
        self.stub_reader = Reader(directory)
        self.loopback = None if way == PLAIN else Loopback(self, self.gateway_store, shares=way == REMOTE)
        bus: Bus = self if self.loopback is None else self.loopback.remote
        reader = Reader(directory)
        self.dataplane = DataPlane(bus, self.gateway_store, reader, "triton", Logging(), small_nbytes=small_nbytes)
        self.signatures: dict[str, Signature] = {}
        self.models: dict[str, Model] = {}
        self.submitted: list[Submitted] = []
        self.held: list[Submitted] = []
        self.hold = False
        self.controlled: list[tuple[object, ...]] = []  # loads and unloads
        self.control_error: ServingError | None = None  # their answer
        self.is_live = self.is_ready = True
        self.leases: dict[int, Block] = {}
        self._lease = count(1)
        self._news = asyncio.Event()
        if self.loopback is not None:
            self.loopback.join()

    def add(self, signature: Signature, model: Model | None = None) -> None:
        self.signatures[signature.model] = signature
        if model is not None:
            self.models[signature.model] = model
        if self.loopback is not None:
            self.loopback.broker.tell_models(Loopback.SERVICE, signature.model)

    def close(self) -> None:
        self.dataplane.reader.close()
        self.stub_reader.close()
        self.gateway_store.close()
        self.stub_store.close()

    def place(self, outputs: list[Tensor]) -> tuple[int, list[TensorRef]]:
        if not outputs:
            return 0, []
        lease = next(self._lease)
        block = self.leases[lease] = self.stub_store.allocate(sum(len(row[3]) + 64 for row in outputs))
        refs, position = [], 0
        for name, datatype, shape, data in outputs:
            block.view[position : position + len(data)] = data
            refs.append(TensorRef(name, datatype, shape, Handle(block.segment, block.offset + position, len(data))))
            position += len(data) + -len(data) % ALIGNMENT
        return lease, refs

    # --- the Bus --------------------------------------------------------------------------------------------------

    def submit(self, request: Request, frames: Frames, sink: ReplySink) -> None:
        entry = Submitted(self, request, frames, sink)
        self.submitted.append(entry)
        if self.hold or request.model not in self.models:
            self.held.append(entry)
        else:
            asyncio.get_running_loop().call_soon(entry.run)
        self._news.set()

    def refuse_when_full(self, model: str, version: int) -> None:
        if self.full:
            raise Unavailable(f"too many for {model}")

    def cancel(self, request_id: int) -> None:
        for entry in self.submitted:
            if entry.request.id == request_id:
                entry.cancelled = True
        self._news.set()

    def release(self, origin: str, lease: int) -> None:
        self.stub_store.free(self.leases.pop(lease))

    def signature(self, model: str, version: int) -> Signature:
        found = self.signatures.get(model)
        if found is None:
            raise NotFound(f"Request for unknown model: '{model}' is not found")
        if version not in (-1, found.version):
            raise NotFound(f"Request for unknown model: '{model}' version {version} is not found")
        return found

    def versions(self, model: str) -> list[int]:
        return [self.signature(model, -1).version]

    def live(self) -> bool:
        return self.is_live

    def ready(self, done: Callable[[bool], None]) -> None:
        done(self.is_ready)

    def model_ready(self, model: str, version: int, done: Callable[[bool], None]) -> None:
        self.signature(model, version)
        done(self.is_ready)

    def statistics(self, model: str, version: int, done: OnStatistics) -> None:
        """Durations are numbered, in the order of the fields."""
        if model and model not in self.signatures:
            done(InvalidArgument(f"requested model '{model}' is not available"))
            return
        durations = (Duration(number, number * 10) for number in count(1))
        figures = InferStatistics(*(next(durations) for _ in range(8)))
        batches = [BatchStatistics(4, *(next(durations) for _ in range(3)))]
        names = [model] if model else self.signatures
        done([ModelStatistics(name, 1, 1234, 5, 6, figures, batches, []) for name in names])

    def index(self, ready: bool, done: OnIndex) -> None:
        done(self._index(ready))

    def load(self, model: str, config: str | None, files: Mapping[str, bytes], done: Done) -> None:
        self._controlled(("load", model, config, dict(files)), done)

    def unload(self, model: str, unload_dependents: bool, done: Done) -> None:
        self._controlled(("unload", model, unload_dependents), done)

    def _controlled(self, what: tuple[object, ...], done: Done) -> None:
        self.controlled.append(what)
        done(self.control_error)

    def _index(self, ready: bool) -> list[IndexEntry]:
        rows = [IndexEntry(name, 1, "READY") for name in sorted(self.signatures)]
        return (
            rows if ready else [*rows, IndexEntry("bad", 1, "UNAVAILABLE", "Internal: x"), IndexEntry("cold", -1, "")]
        )

    # --- waiting --------------------------------------------------------------------------------------------------

    async def wait_for(self, number: int) -> list[Submitted]:
        """The first requests, once so many are here."""
        await self._until(lambda: len(self.submitted) >= number)
        return self.submitted[:number]

    async def wait_for_cancel(self, index: int) -> None:
        await self._until(lambda: self.submitted[index].cancelled)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 10)


def add_models(bus: FakeBus) -> None:
    """add_sub, identities of every datatype, and others."""
    two, one = {"INPUT0": ("FP32", (16,)), "INPUT1": ("FP32", (16,))}, {"INPUT0": ("FP32", (2,))}
    bus.add(signature("add_sub", two), add_sub)
    bus.add(signature("add_sub_b", two, max_batch_size=8), add_sub)
    bus.add(signature("id_fp32_b", {"INPUT0": ("FP32", (-1, 2))}, max_batch_size=4), Submitted.echo)
    bus.add(signature("id_string1", {"INPUT0": ("BYTES", (1,))}), Submitted.echo)
    bus.add(signature("opt", {**one, "INPUT1": ("FP32", (2,))}, optional=frozenset({"INPUT1"})), Submitted.echo)
    bus.add(signature("dec", one, decoupled=True), Submitted.echo)
    bus.add(signature("a b", one), Submitted.echo)
    for row in BY_NAME.values():
        name = "id_" + row.config_name.removeprefix("TYPE_").lower()
        bus.add(signature(name, {"INPUT0": (row.name, (-1,))}), Submitted.echo)


def memory_in_use(store: Store) -> int:
    """Bytes of blocks not freed."""
    store.check()
    return sum(region.arena.nbytes - region.arena.free_bytes for region in store._regions)
