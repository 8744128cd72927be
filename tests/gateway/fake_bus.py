"""A broker and its stubs in memory, for tests of the fronts: answers on the next turn of the loop."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping

from gateway.bus import Frames, ReplySink
from gateway.dataplane import DataPlane
from protocol.datatypes import BY_NAME
from protocol.errors import InvalidArgument, NotFound
from protocol.messages import Handle, Parameters, Request, Response, TensorRef
from protocol.signature import IndexEntry, Signature, TensorSpec
from protocol.statistics import BatchStatistics, Duration, InferStatistics, ModelStatistics
from shm.store import Block, Reader, Store

Tensor = tuple[str, str, tuple[int, ...], bytes]
Model = Callable[[dict[str, Tensor]], list[Tensor]]


def add_sub(inputs: dict[str, Tensor]) -> list[Tensor]:
    a, b = (array("f", inputs[name][3]) for name in ("INPUT0", "INPUT1"))
    shape = inputs["INPUT0"][2]
    added = array("f", [x + y for x, y in zip(a, b, strict=True)]).tobytes()
    subtracted = array("f", [x - y for x, y in zip(a, b, strict=True)]).tobytes()
    return [("OUTPUT0", "FP32", shape, added), ("OUTPUT1", "FP32", shape, subtracted)]


def identity(inputs: dict[str, Tensor]) -> list[Tensor]:
    return [(name.replace("INPUT", "OUTPUT"), *rest) for name, *rest in inputs.values()]  # type: ignore[misc]


def signature(
    name: str,
    inputs: Mapping[str, tuple[str, tuple[int, ...]]],
    max_batch_size: int = 0,
    decoupled: bool = False,
    optional: frozenset[str] = frozenset(),
) -> Signature:
    ins = tuple(TensorSpec(key, *spec, optional=key in optional) for key, spec in inputs.items())
    outs = tuple(TensorSpec(key.replace("INPUT", "OUTPUT"), *spec) for key, spec in inputs.items())
    return Signature(name, 1, "python", max_batch_size, decoupled, ins, outs, f'{{"name":"{name}"}}', b"")


def default_models() -> dict[str, tuple[Signature, Model]]:
    two = {"INPUT0": ("FP32", (16,)), "INPUT1": ("FP32", (16,))}
    pair = {"INPUT0": ("FP32", (2,)), "INPUT1": ("FP32", (2,))}
    models: dict[str, tuple[Signature, Model]] = {
        "add_sub": (signature("add_sub", two), add_sub),
        "add_sub_b": (signature("add_sub_b", two, max_batch_size=8), add_sub),
        "id_fp32_b": (signature("id_fp32_b", {"INPUT0": ("FP32", (-1, 2))}, max_batch_size=4), identity),
        "id_string1": (signature("id_string1", {"INPUT0": ("BYTES", (1,))}), identity),
        "opt": (signature("opt", pair, optional=frozenset({"INPUT1"})), identity),
        "dec": (signature("dec", {"INPUT0": ("FP32", (2,))}, decoupled=True), identity),
        "a b": (signature("a b", {"INPUT0": ("FP32", (2,))}), identity),
    }
    for row in BY_NAME.values():
        name = "id_" + row.config_name.removeprefix("TYPE_").lower()
        models[name] = (signature(name, {"INPUT0": (row.name, (-1,))}), identity)
    return models


class FakeBus:
    """``held`` keeps requests unanswered until ``answer`` is called; ``error`` is the answer to all requests."""

    def __init__(self, directory: str) -> None:
        self.gateway_store = Store(directory)
        self.stub_store = Store(directory)
        self.stub_reader = Reader(directory)
        self.models = default_models()
        self.requests: list[Request] = []
        self.cancelled: list[int] = []
        self.leases: dict[int, Block] = {}
        self.hold = False
        self.held: list[tuple[Request, Frames, ReplySink]] = []
        self.error: tuple[int, str] | None = None
        self.parameters: Parameters = {}
        self.is_live = self.is_ready = True
        self.plane = DataPlane(self, self.gateway_store, Reader(directory), "triton")

    def close(self) -> None:
        self.plane.reader.close()
        self.stub_reader.close()
        self.gateway_store.close()
        self.stub_store.close()

    # --- Bus ----------------------------------------------------------------------------------------------------

    def submit(self, request: Request, frames: Frames, sink: ReplySink) -> None:
        self.requests.append(request)
        if self.hold:
            self.held.append((request, frames, sink))
        else:
            asyncio.get_running_loop().call_soon(self.answer, request, frames, sink)

    def answer(self, request: Request, frames: Frames, sink: ReplySink) -> None:
        if self.error is not None:
            sink.on_response(Response(request.id, [], error=self.error), "stub", [])
            return
        inputs: dict[str, Tensor] = {}
        for name, datatype, shape, place in request.inputs:
            data = frames[place] if isinstance(place, int) else self.stub_reader.view(*place)
            inputs[name] = (name, datatype, shape, bytes(data))
        wanted = request.outputs
        outputs = [row for row in self.models[request.model][1](inputs) if not wanted or row[0] in wanted]
        refs, lease = self._placed(outputs, request.id)
        sink.on_response(Response(request.id, refs, lease, parameters=self.parameters), "stub", [])

    def _placed(self, outputs: list[Tensor], lease: int) -> tuple[list[TensorRef], int]:
        block = self.stub_store.allocate(sum(len(row[3]) + 64 for row in outputs) or 1)
        refs, position = [], 0
        for name, datatype, shape, data in outputs:
            block.view[position : position + len(data)] = data
            refs.append(TensorRef(name, datatype, shape, Handle(block.segment, block.offset + position, len(data))))
            position += (len(data) + 63) & ~63
        self.leases[lease] = block
        return refs, lease

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)

    def release(self, origin: str, lease: int) -> None:
        self.stub_store.free(self.leases.pop(lease))

    def signature(self, model: str, version: int) -> Signature:
        if model not in self.models:
            raise NotFound(f"Request for unknown model: '{model}' is not found")
        if version not in (-1, 1):
            raise NotFound(f"Request for unknown model: '{model}' version {version} is not found")
        return self.models[model][0]

    def versions(self, model: str) -> list[int]:
        self.signature(model, -1)
        return [1]

    def live(self) -> bool:
        return self.is_live

    def ready(self) -> bool:
        return self.is_ready

    def model_ready(self, model: str, version: int) -> bool:
        self.signature(model, version)
        return self.is_ready

    def statistics(self, model: str, version: int) -> list[ModelStatistics]:
        if model and model not in self.models:
            raise InvalidArgument(f"requested model '{model}' is not available")
        if version not in (-1, 1):
            raise InvalidArgument(f"requested model version is not available for model '{model}'")
        once = Duration(1, 10)
        figures = InferStatistics(once, once, once, once, once, once, Duration(0, 0), Duration(0, 0))
        batches = [BatchStatistics(1, once, once, once)]
        return [ModelStatistics(name, 1, 5, 1, 1, figures, batches) for name in ([model] if model else self.models)]

    def index(self, ready: bool) -> list[IndexEntry]:
        rows = [IndexEntry(name, 1, "READY") for name in sorted(self.models)]
        return rows if ready else [*rows, IndexEntry("bad", 1, "UNAVAILABLE", "Internal: x"), IndexEntry("cold", 0, "")]


def memory_in_use(store: Store) -> int:
    """Bytes of blocks not freed."""
    store.check()
    return sum(region.arena.nbytes - region.arena.free_bytes for region in store._regions)
