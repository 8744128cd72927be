"""A broker of plain functions for the gRPC tests: no process, real shared memory on both sides."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy

from gateway.bus import Frames, ReplySink
from protocol.errors import InvalidArgument, NotFound, ServingError
from protocol.kserve import generated
from protocol.messages import Handle, Request, Response, TensorRef
from protocol.signature import IndexEntry, Signature, TensorSpec
from protocol.statistics import BatchStatistics, Duration, InferStatistics, ModelStatistics
from shm.store import Block, Reader, Store

ModelConfig = generated("model_config_pb2").ModelConfig

DATATYPES = {
    "BOOL": numpy.bool_,
    "UINT8": numpy.uint8,
    "UINT16": numpy.uint16,
    "UINT32": numpy.uint32,
    "UINT64": numpy.uint64,
    "INT8": numpy.int8,
    "INT16": numpy.int16,
    "INT32": numpy.int32,
    "INT64": numpy.int64,
    "FP16": numpy.float16,
    "FP32": numpy.float32,
    "FP64": numpy.float64,
    "BYTES": numpy.object_,
}


def signature(model: str, datatype: str = "INT32", decoupled: bool = False, max_batch_size: int = 0) -> Signature:
    """One input IN, one output OUT, both [-1]."""
    config = ModelConfig(name=model, platform="", backend="python", max_batch_size=max_batch_size)
    return Signature(
        model,
        1,
        "python",
        max_batch_size,
        decoupled,
        (TensorSpec("IN", datatype, (-1,)),),
        (TensorSpec("OUT", datatype, (-1,)),),
        "{}",
        config.SerializeToString(),
    )


@dataclass(eq=False)
class Submitted:
    """A request inside the broker; a test answers it. Outputs go to the fake stub's shared memory."""

    bus: GrpcBus
    request: Request
    frames: Frames
    sink: ReplySink
    cancelled: bool = False

    def inputs(self) -> list[bytes]:
        return [bytes(self.bus.data(ref, self.frames)) for ref in self.request.inputs]

    def answer(
        self,
        outputs: list[tuple[str, str, tuple[int, ...], bytes]] | None = None,
        error: ServingError | None = None,
        final: bool = True,
        parameters: dict[str, bool | int | float | str] | None = None,
    ) -> None:
        lease, refs = self.bus.place(outputs or [])
        failure = None if error is None else (int(error.kind), str(error))
        self.sink.on_response(Response(self.request.id, refs, lease, failure, parameters or {}, final), "stub", ())

    def echo(self, final: bool = True, parameters: dict[str, bool | int | float | str] | None = None) -> None:
        ref = self.request.inputs[0]
        self.answer([("OUT", ref.datatype, ref.shape, self.inputs()[0])], final=final, parameters=parameters)


Model = Callable[[Submitted], None]


@dataclass
class GrpcBus:
    """Models are functions that are called one loop turn after ``submit``; without one the test answers itself."""

    directory: str
    signatures: dict[str, Signature] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    submitted: list[Submitted] = field(default_factory=list)
    is_ready: bool = True

    def __post_init__(self) -> None:
        self.stub_store = Store(self.directory)
        self.reader = Reader(self.directory)
        self.leases: dict[int, Block] = {}
        self._lease: Iterator[int] = itertools.count(1)
        self.arrived = asyncio.Event()

    def add(self, signature: Signature, model: Model | None = None) -> None:
        self.signatures[signature.model] = signature
        if model is not None:
            self.models[signature.model] = model

    def data(self, ref: TensorRef, frames: Frames) -> memoryview:
        return memoryview(frames[ref.place]) if isinstance(ref.place, int) else self.reader.view(*ref.place)

    def place(self, outputs: list[tuple[str, str, tuple[int, ...], bytes]]) -> tuple[int, list[TensorRef]]:
        if not outputs:
            return 0, []
        lease = next(self._lease)
        block = self.leases[lease] = self.stub_store.allocate(sum(len(data) for *_, data in outputs) or 1)
        refs, position = [], 0
        for name, datatype, shape, data in outputs:
            block.view[position : position + len(data)] = data
            refs.append(TensorRef(name, datatype, shape, Handle(block.segment, block.offset + position, len(data))))
            position += len(data)
        return lease, refs

    # --- the Bus --------------------------------------------------------------------------------------------------

    def submit(self, request: Request, frames: Frames, sink: ReplySink) -> None:
        entry = Submitted(self, request, frames, sink)
        self.submitted.append(entry)
        self.arrived.set()
        model = self.models.get(request.model)
        if model is not None:
            asyncio.get_running_loop().call_soon(model, entry)

    def cancel(self, request_id: int) -> None:
        for entry in self.submitted:
            if entry.request.id == request_id:
                entry.cancelled = True
        self.arrived.set()

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
        return True

    def ready(self) -> bool:
        return self.is_ready

    def model_ready(self, model: str, version: int) -> bool:
        self.signature(model, version)
        return True

    def statistics(self, model: str, version: int) -> list[ModelStatistics]:
        if model and model not in self.signatures:
            raise InvalidArgument(f"requested model '{model}' is not available")
        numbers = (Duration(count, count * 10) for count in range(1, 12))
        stats = InferStatistics(*(next(numbers) for _ in range(8)))
        batches = [BatchStatistics(4, *(next(numbers) for _ in range(3)))]
        return [
            ModelStatistics(name, 1, 1234, 5, 6, stats, batches) for name in ([model] if model else self.signatures)
        ]

    def index(self, ready: bool) -> list[IndexEntry]:
        rows = [IndexEntry(name, 1, "READY") for name in sorted(self.signatures)]
        return rows if ready else [*rows, IndexEntry("zz", 0, "")]

    async def wait_for(self, count: int) -> list[Submitted]:
        """The first ``count`` requests, once they are here."""
        while len(self.submitted) < count:
            await self._something()
        return self.submitted[:count]

    async def wait_for_cancel(self, index: int) -> None:
        while not self.submitted[index].cancelled:
            await self._something()

    async def _something(self) -> None:
        self.arrived.clear()
        await asyncio.wait_for(self.arrived.wait(), 10)
