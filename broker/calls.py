"""Requests that models make of other models (BLS): checked like a client's, answered to the stub that made them.

A call runs through the core like any request; only its beginning and its answers are here. Errors have Triton's texts
for models, where the name of the model called comes first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from broker.events import Action, InputsReleased, Send
from broker.model import ModelVersion
from broker.queue import Caller, Frames, Pending
from broker.registry import Registry
from protocol.errors import InternalError, NotFound, ServingError, Unavailable
from protocol.messages import ANSWERED, RETURNED, Answered, Call, Request, Response, Returned, TensorRef
from protocol.validation import CheckedInput, client_shape

Lease = tuple[str, int]  # the key of the stub that holds the outputs, and its number for them


class Calls:
    """Invariant: a call is in here from ``open`` to its final answer, a lease from an answer until it was read."""

    def __init__(self, registry: Registry, ids: Iterator[int]) -> None:
        """``ids`` are for requests that no gateway has made."""
        self._registry = registry
        self._ids = ids
        self._calls: dict[tuple[str, int], Pending] = {}
        self._of: dict[int, dict[int, Pending]] = {}  # by the caller's index, then by request id
        self._borrowed: dict[int, set[Lease]] = {}  # by the caller's index

    def open(self, message: Call, caller: Caller, frames: Frames, now: int) -> tuple[ModelVersion, Pending]:
        """The request to queue. Raises InternalError with the text for the calling model."""
        model = message.request.model
        try:
            version = self._target(message)
            pending = self._request(version, message, caller, frames, now)
        except ServingError as error:
            raise call_failed(model, error) from None
        self._calls[caller.key, caller.call] = pending
        self._of.setdefault(caller.instance, {})[pending.request.id] = pending
        return version, pending

    def _target(self, message: Call) -> ModelVersion:
        model = message.request.model
        try:
            version = self._registry.find(model, message.request.version)
        except Unavailable:
            raise not_ready(model) from None
        except NotFound:
            if message.request.version < 0 and self._registry.knows(model):
                raise not_ready(model) from None
            raise
        if version.plan is None and version.unserved() is not None:
            raise not_ready(model)
        if version.config.decoupled and not message.decoupled:
            raise InternalError(
                f"Model {model} is using the decoupled. The current BLS request call doesn't support models using the "
                "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' "
                "calls for decoupled models.'"
            )
        return version

    def _request(self, version: ModelVersion, message: Call, caller: Caller, frames: Frames, now: int) -> Pending:
        request = message.request
        shapes = model_shapes(version, request.request_id, request.inputs, request.outputs, frames)
        inputs = [
            tensor if tensor.shape == shape else tensor._replace(shape=shape)
            for tensor, shape in zip(request.inputs, shapes, strict=True)
        ]
        # Much quicker than _replace.
        request = Request(next(self._ids), request.model, version.version, inputs, *request[4:])
        return Pending(request, frames, None, version.batch_size(request), now, caller, waits=caller.waits)

    def find(self, key: str, call: int) -> Pending | None:
        return self._calls.get((key, call))

    def of(self, instance: int) -> list[Pending]:
        """The calls that an instance has made and that have no final answer yet."""
        return list(self._of.get(instance, {}).values())

    def waited_for(self) -> list[Pending]:
        """The open calls that an execution cannot end without."""
        return [one for one in self._calls.values() if one.waits]

    def answer(
        self, version: ModelVersion, pending: Pending, response: Response, origin: str, frames: Frames
    ) -> tuple[list[Action], bool]:
        """What to send to the caller, and whether the lease of the response's outputs is over with that."""
        caller = pending.caller
        assert caller is not None
        if response.final:
            self._calls.pop((caller.key, caller.call), None)
            self._of.get(caller.instance, {}).pop(pending.request.id, None)
        if not caller.key:
            return [], True
        if version.checker.reshaped and response.outputs:
            response = response._replace(outputs=[as_clients_see(version, tensor) for tensor in response.outputs])
        if not caller.shared:
            answered = Answered(ANSWERED, caller.call, response._replace(lease=0), origin)
            return [Send(caller.key, answered, frames, shared=False)], True
        if response.lease:
            self._borrowed.setdefault(caller.instance, set()).add((origin, response.lease))
        return [Send(caller.key, Answered(ANSWERED, caller.call, response, origin), frames)], False

    def read(self, instance: int, leases: Iterable[Lease]) -> list[Lease]:
        """Those of the leases that the instance has had; it has them no more."""
        borrowed = self._borrowed.get(instance, set())
        known = [lease for lease in map(tuple, leases) if lease in borrowed]
        borrowed.difference_update(known)
        return known

    def died(self, instance: int) -> tuple[list[Pending], list[Lease]]:
        """The process is dead: its open calls, which nobody waits for now, and the leases that it held."""
        calls = self.of(instance)
        for pending in calls:
            assert pending.caller is not None
            self._calls.pop((pending.caller.key, pending.caller.call), None)
            pending.caller = pending.caller._replace(key="")
        self._of.pop(instance, None)
        return calls, sorted(self._borrowed.pop(instance, ()))

    def borrows(self, lease: Lease) -> bool:
        """Whether a caller looks at these outputs."""
        return any(lease in leases for leases in self._borrowed.values())

    def lends(self, keys: Collection[str]) -> bool:
        """Whether callers look at outputs of these stubs."""
        return any(origin in keys for leases in self._borrowed.values() for origin, _ in leases)

    def check(self, living: set[int]) -> None:
        """``living`` are the ids of all requests that are not finally answered. Raises AssertionError."""
        open_calls = {pending.request.id for pending in self._calls.values()}
        assert open_calls == {id for calls in self._of.values() for id in calls}
        assert open_calls <= living, open_calls - living


def call_failed(model: str, cause: ServingError) -> InternalError:
    """What a calling model is told of a call that was not even queued."""
    return InternalError(f"Model {model} - Error when running inference: {cause}")


def not_ready(model: str) -> InternalError:
    return InternalError(f"Failed for execute the inference request. Model '{model}' is not ready.")


def model_shapes(
    version: ModelVersion, request_id: str, inputs: Sequence[TensorRef], outputs: Sequence[str], frames: Frames
) -> list[tuple[int, ...]]:
    """The shapes of the inputs as the model gets them. Raises InvalidArgument if they are none for it."""
    checked: list[CheckedInput] = []
    for name, datatype, shape, place, _ in inputs:
        data: memoryview | bytes | range
        if isinstance(place, int):
            data = frames[place]
        elif isinstance(place, bytes):
            data = place
        else:
            data = range(place.nbytes)  # its length is all that is known here
        checked.append((name, datatype, list(shape), data, None))
    return version.checker.check(request_id, checked, outputs)


def inputs_released(pending: Pending) -> Action:
    """The input lease of a request whose final response was ``retained`` is over."""
    caller = pending.caller
    if caller is None:
        return InputsReleased(pending)
    return Send(caller.key, Returned(RETURNED, [caller.call]))


def as_clients_see(version: ModelVersion, tensor: TensorRef) -> TensorRef:
    """An output with its reshape undone."""
    spec = version.checker.reshaped.get(tensor.name)
    if spec is None:
        return tensor
    return tensor._replace(shape=client_shape(spec, version.config.max_batch_size > 0, tensor.shape))
