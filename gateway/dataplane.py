"""The transport-free data plane: both fronts hand it an InferCall and get Replies back.

It validates, puts the input tensors in shared memory, submits to the broker and gives outputs as views. It knows
neither HTTP nor gRPC. Everything runs on the gateway's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import structlog

from gateway.admission import Admission
from gateway.batch_rows import ROWS_FROM_NBYTES, BatchRows, Sizes, Slot
from gateway.bus import Bus, Done, Frames, OnIndex, OnStatistics
from gateway.calls import InferCall, OnReply, OutputTensor, Reply
from gateway.classification import top_classes
from gateway.log_settings import LogSettings
from gateway.model_metadata import ModelMetadata, model_metadata
from metrics.pressure import Pressure
from protocol.errors import InternalError, InvalidArgument, NotFound, ServingError, error_of
from protocol.messages import Handle, Request, Response, TensorPlace, TensorRef, new
from protocol.signature import Signature
from protocol.validation import Checker, client_shape
from shm.arena import ALIGNMENT
from shm.errors import BadHandle, BadSegment, ShmFull

if TYPE_CHECKING:
    from shm.store import Block, Reader, Store

LARGE_NBYTES = 64 << 20  # of a call's inputs, or of one of its outputs
SERVER_VERSION = "2.73.0"  # the Triton release whose behaviour we follow: clients parse major.minor
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class ServerMetadata(NamedTuple):
    name: str
    version: str
    extensions: tuple[str, ...]


class _ReplySink:
    """Of a submitted request: turns Responses into Replies and ends the input lease."""

    __slots__ = ("admitted", "blocks", "classes", "dataplane", "id", "on_reply", "request_id", "reshaped", "signature")

    def __init__(
        self, dataplane: DataPlane, id: int, blocks: list[Block], checker: Checker, call: InferCall, on_reply: OnReply
    ) -> None:
        self.dataplane = dataplane
        self.id = id
        self.admitted = call.admitted
        self.blocks = blocks
        self.signature = checker.signature
        self.reshaped = checker.reshaped
        self.request_id = call.request_id
        self.classes = call.classes
        self.on_reply: OnReply | None = on_reply  # None once cancelled

    def on_response(self, response: Response, origin: str, frames: Frames) -> None:
        """The client first: what is over can be put away while the answer travels."""
        dataplane = self.dataplane
        try:
            if self.on_reply is not None:
                self.on_reply(self._reply(response, origin, frames))
            elif response.lease:
                dataplane.bus.release(origin, response.lease)
        finally:
            if response.final:
                dataplane.pending.pop(self.id, None)
                if not response.retained:
                    self.on_inputs_released()

    def _reply(self, response: Response, origin: str, frames: Frames) -> Reply:
        _, tensors, lease, failure, parameters, final, _, flag_only = response
        outputs: list[OutputTensor] = []
        error: ServingError | None = None
        if failure is not None:
            error = error_of(*failure)
        else:
            try:
                outputs = self._outputs(tensors, frames)
            except InvalidArgument as refused:
                error = refused
            except (BadHandle, BadSegment, IndexError):
                error = InternalError(f"failed to read the outputs of model '{self.signature.model}'")
        return Reply(
            self.signature,
            self.request_id,
            outputs,
            parameters,
            error,
            final,
            flag_only,
            self.dataplane.bus,
            origin,
            lease,
        )

    def _outputs(self, tensors: list[TensorRef], frames: Frames) -> list[OutputTensor]:
        """Raises BadHandle, BadSegment or IndexError for what cannot be read, InvalidArgument for what has no order."""
        dataplane = self.dataplane
        view = dataplane.reader.view
        outputs = []
        for name, datatype, shape, place, _ in tensors:
            data: memoryview | bytes
            if isinstance(place, bytes):
                data = place
            elif isinstance(place, int):
                data = frames[place]
            else:
                data = view(*place)
            if len(data) > LARGE_NBYTES:
                dataplane.large_calls += 1
            outputs.append(new(OutputTensor, (name, datatype, shape, data)))
        if self.reshaped:
            outputs = [self._as_the_client_sees(output) for output in outputs]
        if self.classes:
            outputs = [self._classified(output) for output in outputs]
        return outputs

    def _as_the_client_sees(self, output: OutputTensor) -> OutputTensor:
        spec = self.reshaped.get(output.name)
        if spec is None:
            return output
        return output._replace(shape=client_shape(spec, self.signature.max_batch_size > 0, output.shape))

    def _classified(self, output: OutputTensor) -> OutputTensor:
        name, datatype, shape, data = output
        classes = self.classes.get(name)
        if classes is None:
            return output
        batching = self.signature.max_batch_size > 0 and len(shape) > 0
        labels = self.signature.labels.get(name, ())
        top, packed = top_classes(datatype, data, shape[0] if batching else 1, classes, labels)
        return OutputTensor(name, "BYTES", (shape[0], top) if batching else (top,), packed)

    def on_inputs_released(self) -> None:
        for block in self.blocks:
            self.dataplane.store.free(block)
        self.blocks = []
        self.dataplane.admission.give_back(self.signature.model, self.admitted)
        self.admitted = 0


class DataPlane:
    """Invariant: an input block is freed exactly once, when its request's lease ends or ``infer`` raises."""

    def __init__(
        self,
        bus: Bus,
        store: Store,
        reader: Reader,
        server_id: str,
        log_settings: LogSettings,
        admission: Admission | None = None,
        small_nbytes: int = 0,
    ) -> None:
        """Inputs of fewer than ``small_nbytes`` go with the message."""
        self.admission = admission or Admission(Pressure())
        self.bus = bus
        self.signature = bus.signature  # its ``config_json`` and ``config_proto`` are the config endpoints' bodies
        self.store = store
        self.reader = reader
        self.log_settings = log_settings  # the fronts read and change them
        self.pending: dict[int, _ReplySink] = {}  # of requests without a final response, by Request.id
        self.large_calls = 0  # so far: each may have left as much behind in the heap
        self._server_id = server_id
        self._small_nbytes = small_nbytes
        self._ids = count(1)  # of requests
        self._log = structlog.get_logger()
        self._checkers: dict[tuple[str, int], Checker] = {}
        self._batch_rows: dict[tuple[str, int], BatchRows] = {}

    def number_from(self, first: int) -> None:
        """Requests have ids above this one from now on."""
        self._ids = count(first + 1)

    # --- inference ----------------------------------------------------------------------------------------------

    def infer(self, call: InferCall, on_reply: OnReply) -> int:
        """Validate, place and submit; returns the id for ``cancel``. Raises ServingError. ``on_reply`` is never called
        before ``infer`` returns; it gets exactly one Reply with ``final`` set unless the request is cancelled."""
        blocks: list[Block] = [] if call.block is None else [call.block]
        try:
            signature = call.signature or self.bus.signature(call.model, call.version)
            checker = self.checker(signature)
            shapes = checker.check(call.request_id, call.inputs, call.outputs)
            if not call.admitted:
                nbytes = 0
                for _, _, _, data, _ in call.inputs:
                    nbytes += len(data)
                self.admission.admit(signature.model, nbytes, call.request_id)
                call.admitted = nbytes
            id = next(self._ids)
            frames: list[memoryview | bytes] = []
            fields = (
                id,
                signature.model,
                signature.version,
                self._place(call, signature, shapes, blocks, frames),
                call.request_id,
                call.outputs,
                call.parameters,
                call.correlation_id,
                call.flags,
                call.priority,
                call.timeout_us,
            )
            sink = _ReplySink(self, id, blocks, checker, call, on_reply)
            self.bus.submit(new(Request, fields), frames, sink)
        except ServingError:
            for block in blocks:
                self.store.free(block)
            self.admission.give_back(call.model, call.admitted)
            raise
        self.pending[id] = sink
        return id

    def refuse_large(self, model: str, version: int, nbytes: int) -> None:
        """Raises what ``infer`` would raise now of a model, whatever the tensors: before a large body is received."""
        self.admission.check(model, nbytes)
        self.bus.refuse_when_full(model, version)

    def cancel(self, id: int) -> None:
        """The client is gone. ``on_reply`` is not called again; memory is freed when the broker answers."""
        sink = self.pending.pop(id, None)
        if sink is not None:
            sink.on_reply = None
            self.bus.cancel(id)

    def checker(self, signature: Signature) -> Checker:
        """The validation of a model version, made once per signature."""
        key = (signature.model, signature.version)
        checker = self._checkers.get(key)
        if checker is None or checker.signature is not signature:
            checker = self._checkers[key] = Checker(signature)
        return checker

    def _place(
        self,
        call: InferCall,
        signature: Signature,
        shapes: list[tuple[int, ...]],
        blocks: list[Block],
        frames: list[memoryview | bytes],
    ) -> list[TensorRef]:
        """Inputs that are not in the call's block go with the message if they are small, else to one new block, each
        aligned; to frames if full. Those of requests that may make a batch go where the last one's are, row by row."""
        total, small_nbytes = 0, self._small_nbytes
        for _, _, _, data, offset in call.inputs:
            nbytes = len(data)
            if offset < 0 and nbytes >= small_nbytes:
                total += nbytes + -nbytes % ALIGNMENT
        if total > LARGE_NBYTES:
            self.large_calls += 1
        if total >= ROWS_FROM_NBYTES and call.block is None:
            slot = self.slot(signature, tuple([len(tensor.data) for tensor in call.inputs]))
            if slot is not None:
                blocks.append(slot.block)
                return _in_rows(call, shapes, slot)
        segment, start, into = "", 0, None
        if total:
            try:
                block = self.store.allocate(total)
                segment, start, _, into, _ = block
                blocks.append(block)
            except ShmFull:
                pass
        refs: list[TensorRef] = []
        position = 0
        place: TensorPlace
        for (name, datatype, _, data, offset), shape in zip(call.inputs, shapes, strict=True):
            nbytes = len(data)
            if offset >= 0 and call.block is not None:
                place = Handle(call.block.segment, call.block.offset + offset, nbytes)
            elif nbytes < small_nbytes:
                place = bytes(data)  # a view may be of a buffer that its front reuses
            elif into is not None:
                into[position : position + nbytes] = data
                place = Handle(segment, start + position, nbytes)
                position += nbytes + -nbytes % ALIGNMENT
            else:
                place = len(frames)
                frames.append(bytes(data))
            refs.append(new(TensorRef, (name, datatype, shape, place, False)))
        return refs

    def slot(self, signature: Signature, sizes: Sizes) -> Slot | None:
        """For the inputs of a request that may make one batch with others; its block is to be freed as any other."""
        if not signature.batching or any(spec.datatype == "BYTES" for spec in signature.inputs):
            return None
        key = (signature.model, signature.version)
        found = self._batch_rows.get(key)
        if found is None:
            found = self._batch_rows[key] = BatchRows(self.store, signature.max_batch_size)
        return found.take(sizes)

    def trim(self) -> None:
        """Every few seconds: gives back memory that waits for requests which do not come."""
        for key, rows in list(self._batch_rows.items()):
            if not rows.trim():
                del self._batch_rows[key]

    def refused(self, model: str, request_id: str, error: ServingError) -> None:
        """One line in the log for an inference that never reached its model; the fronts tell the client. A model that
        nobody knows is no field: there is no end to such names, and lines are limited by event and model."""
        known = {} if isinstance(error, NotFound) else {"model": model}
        self._log.warning("request refused", request_id=request_id, cause=str(error), **known)

    # --- everything else ----------------------------------------------------------------------------------------

    def server_live(self) -> bool:
        return self.bus.live()

    def server_ready(self, done: Callable[[bool], None]) -> None:
        """``done`` is called once, now or within some seconds."""
        self.bus.ready(done)

    def server_metadata(self) -> ServerMetadata:
        return ServerMetadata(self._server_id, SERVER_VERSION, EXTENSIONS)

    def model_ready(self, model: str, version: int, done: Callable[[bool], None]) -> None:
        """``done`` is called once, now or within some seconds. Raises NotFound."""
        self.bus.model_ready(model, version, done)

    def model_metadata(self, model: str, version: int) -> ModelMetadata:
        """Raises NotFound or Unavailable."""
        signature = self.bus.signature(model, version)
        return model_metadata(signature, [version] if version != -1 else self.bus.versions(model))

    def statistics(self, model: str, version: int, done: OnStatistics) -> None:
        """As ``Bus.statistics``."""
        self.bus.statistics(model, version, done)

    def index(self, ready: bool, done: OnIndex) -> None:
        """As ``Bus.index``."""
        self.bus.index(ready, done)

    def load(self, model: str, config: str | None, files: Mapping[str, bytes], done: Done) -> None:
        """As ``Bus.load``."""
        self.bus.load(model, config, files, done)

    def unload(self, model: str, unload_dependents: bool, done: Done) -> None:
        """As ``Bus.unload``."""
        self.bus.unload(model, unload_dependents, done)


def _in_rows(call: InferCall, shapes: list[tuple[int, ...]], slot: Slot) -> list[TensorRef]:
    segment = slot.block.segment
    refs = []
    for tensor, shape, (offset, row) in zip(call.inputs, shapes, slot.rows, strict=True):
        row[:] = tensor.data
        refs.append(TensorRef(tensor.name, tensor.datatype, shape, Handle(segment, offset, len(row))))
    return refs
