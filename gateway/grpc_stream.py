"""One ModelStreamInfer call: requests in, responses out, in the order Triton promises.

Responses of non-decoupled models leave in the order of their requests on this stream; those of decoupled models leave
at once. Errors travel in-band with the request's id and leave the stream open, unless the client asked for
``triton_grpc_error``: then the first error of an inference ends the stream with its status, after what is ready.

Knows no transport: an engine calls ``feed``, ``half_close`` and ``cancel``, and ``next`` after every ``on_ready`` until
that has no more to send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gateway.calls import Reply
from gateway.dataplane import DataPlane
from gateway.grpc_in_flight import InFlight
from gateway.grpc_message import Buffer, Message, message_of
from gateway.grpc_requests import decode_call, decode_parameters
from gateway.grpc_responses import encode_response
from gateway.grpc_wire import ParsedRequest, parse_request, varint
from gateway.proto import service_pb2
from protocol.errors import ServingError
from protocol.messages import Parameters
from protocol.versions import parse_version

FINAL_RESPONSE = "triton_final_response"
INFER_RESPONSE_TAG = b"\x12"  # ModelStreamInferResponse field 2, length-delimited

_ModelStreamInferResponse = service_pb2.ModelStreamInferResponse


class _Slot:
    """One request of the stream and, while an earlier one must answer first, what it has to send."""

    __slots__ = ("decoupled", "empty_final", "finished", "held", "id", "model", "request_id", "version")

    def __init__(self, message: Any) -> None:
        self.model: str = message.model_name
        self.version: str = message.model_version  # as the client wrote it: errors and empty finals echo it
        self.request_id: str = message.id
        self.id = 0  # the data plane's
        self.decoupled = False
        self.empty_final = False
        self.finished = False
        self.held: list[Reply | bytes] = []


class InferStream:
    """Invariant: a slot is in ``_running`` until its final reply; a non-decoupled one stays in ``_turns`` until all
    that was asked before it has left."""

    def __init__(
        self, dataplane: DataPlane, in_flight: InFlight, fail_on_error: bool, on_ready: Callable[[], None]
    ) -> None:
        self._dataplane = dataplane
        self._in_flight = in_flight
        self._fail_on_error = fail_on_error
        self._on_ready = on_ready
        self._running: dict[int, _Slot] = {}
        self._turns: deque[_Slot] = deque()
        self._ready: deque[tuple[_Slot, Reply | bytes]] = deque()
        self._half_closed = False
        self.error: ServingError | None = None
        self.forwarded: Callable[[Parameters], Parameters] | None = None  # adds what the stream's headers are

    # --- from the client ------------------------------------------------------------------------------------------

    def feed(self, data: Buffer) -> None:
        """One ModelInferRequest. Never raises: errors are answered in-band."""
        if self.error is not None:
            return
        try:
            parsed = parse_request(data)
        except ServingError as error:
            self.close(error)
            return
        slot = _Slot(parsed.message)
        try:
            self._submit(slot, parsed)
        except ServingError as error:
            self._dataplane.refused(slot.model, slot.request_id, error)
            slot.finished = True
            self._turns.extend(() if slot.decoupled else (slot,))
            message = _ModelStreamInferResponse(error_message=str(error))
            message.infer_response.id = slot.request_id
            self._deliver(slot, message.SerializeToString())

    def half_close(self) -> None:
        """The client sends no more; the stream ends when all its requests are answered."""
        self._half_closed = True
        self._on_ready()

    def cancel(self) -> None:
        """The client is gone: cancel what runs, drop what is queued. Harmless once the stream has ended."""
        self._half_closed = True
        self._abandon()
        _release(entry for _, entry in self._ready)
        self._ready.clear()
        self._on_ready()

    def close(self, error: ServingError) -> None:
        """End the stream with a status, once what is ready has left."""
        if self.error is None:
            self.error = error
            self._on_ready()

    def _submit(self, slot: _Slot, parsed: ParsedRequest) -> None:
        self._in_flight.refuse_while_draining()
        signature = self._dataplane.signature(slot.model, parse_version(slot.version))
        slot.decoupled = signature.decoupled
        parameters = decode_parameters(parsed.message)
        slot.empty_final = parameters.empty_final
        call = decode_call(parsed, signature, parameters)
        if self.forwarded is not None:
            call.parameters = self.forwarded(call.parameters)
        slot.id = self._dataplane.infer(call, partial(self._on_reply, slot))
        self._running[slot.id] = slot
        self._turns.extend(() if slot.decoupled else (slot,))
        self._in_flight.started()

    # --- from the data plane --------------------------------------------------------------------------------------

    def _on_reply(self, slot: _Slot, reply: Reply) -> None:
        if reply.final:
            slot.finished = True
            del self._running[slot.id]
            self._in_flight.finished()
        if reply.error is not None and self._fail_on_error:
            reply.release()
            self._abandon()
            self.close(reply.error)
        elif reply.flag_only and not slot.empty_final:
            reply.release()
            self._on_ready()  # it may have been what the end of the stream waited for
        else:
            self._deliver(slot, reply)

    def _deliver(self, slot: _Slot, entry: Reply | bytes) -> None:
        if slot.decoupled:
            self._ready.append((slot, entry))
        else:
            slot.held.append(entry)
            self._let_turns_go()
        self._on_ready()

    def _let_turns_go(self) -> None:
        """The first in turn sends as it answers; the others wait until it has finished."""
        turns = self._turns
        while turns:
            first = turns[0]
            self._ready.extend((first, entry) for entry in first.held)
            first.held.clear()
            if not first.finished:
                return
            turns.popleft()

    def _abandon(self) -> None:
        """Cancel what runs, and what has answered before its turn."""
        for id in self._running:
            self._dataplane.cancel(id)
            self._in_flight.finished()
        self._running.clear()
        for slot in self._turns:
            _release(slot.held)
        self._turns.clear()

    # --- to the client --------------------------------------------------------------------------------------------

    def next(self) -> Message | None:
        """The next message; None if there is none, for now or for good. It is rendered only here, so that the replies
        that a slow client leaves waiting take no memory of ours."""
        if not self._ready:
            return None
        slot, entry = self._ready.popleft()
        return entry if isinstance(entry, bytes) else _rendered(slot, entry)

    @property
    def ended(self) -> bool:
        """There will be no more messages; ``error`` is then what ended the stream, None for its regular end."""
        return not self._ready and (self.error is not None or (self._half_closed and not self._running))


def _release(entries: Iterable[Reply | bytes]) -> None:
    for entry in entries:
        if isinstance(entry, Reply):
            entry.release()


def _rendered(slot: _Slot, reply: Reply) -> Message:
    """A ModelStreamInferResponse. A decoupled model's final without outputs echoes the version as it was asked."""
    error = reply.error
    if error is None:
        signature = reply.signature
        version = slot.version if reply.flag_only else str(signature.version)
        parameters = {**reply.parameters, FINAL_RESPONSE: reply.final}
        try:
            pieces = encode_response(signature.model, version, reply.request_id, parameters, reply.outputs)
        except ServingError as too_large:
            error = too_large
        else:
            head = INFER_RESPONSE_TAG + varint(sum(map(len, pieces)))
            return message_of([head, *pieces], reply.release)
    reply.release()
    message = _ModelStreamInferResponse(error_message=str(error))
    response = message.infer_response
    response.model_name = slot.model
    response.model_version = slot.version
    response.id = slot.request_id
    response.parameters[FINAL_RESPONSE].bool_param = reply.final
    data: bytes = message.SerializeToString()
    return data
