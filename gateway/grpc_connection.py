"""One connection of a gRPC client: HTTP/2's core below, calls above, the socket here.

All that one turn of the loop brings leaves in one write. What a client does not take waits where it is cheapest: as
replies in the stubs' segments, until the windows and the socket have room. A large request is received straight into
its message's memory, a large response sent straight from the stub's.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import NamedTuple, cast

from gateway.grpc_call import Call, StreamCall, UnaryCall
from gateway.grpc_head import (
    DEADLINE_EXCEEDED,
    RESPONSE,
    GrpcError,
    Head,
    http_refusal,
    read_head,
    trailers,
    trailers_only,
)
from gateway.grpc_inflating import Held, Inflaters, Inflating
from gateway.grpc_message import Buffer, MessageMemory
from gateway.grpc_outgoing import Outgoing, Release
from gateway.grpc_service import INFER, STREAM, GrpcService
from gateway.http2.connection import Http2Connection
from gateway.http2.events import Data, Event, Request
from gateway.http2.frames import HEAD_NBYTES, ErrorCode
from protocol.errors import InternalError, ServingError, Unsupported

_DIRECT_NBYTES = 64 << 10  # from here on the rest of a payload is worth a read of its own
_JOINED_NBYTES = 64 << 10  # up to here one write of a copy is cheaper than several buffers
_TURN_NBYTES = 1 << 20  # of one call; then the others are asked
_UNSENT_NBYTES = 256 << 10  # of answers to pings and the like that a client may leave us with


class Shared(NamedTuple):
    """What the connections of a front have in common."""

    service: GrpcService
    memory: MessageMemory
    inflaters: Inflaters
    receive_view: memoryview  # what is read into it is consumed before anyone else reads


class _Open:
    """A call that is open, what it sends, and its deadline."""

    __slots__ = ("begun", "call", "held", "outgoing", "timer")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.outgoing = Outgoing(call)
        self.begun = False  # the response's headers have left
        self.timer: asyncio.TimerHandle | None = None
        self.held: Held | None = None


class GrpcConnection(asyncio.BufferedProtocol):
    """Invariants: a stream of ``_http2`` that has not ended for us has its call in ``_calls``; those in ``_waiting``
    are among them and may have something to send."""

    def __init__(
        self, shared: Shared, on_made: Callable[[GrpcConnection], None], on_lost: Callable[[GrpcConnection], None]
    ) -> None:
        self._service, self._memory, self._inflaters, self._receive_view = shared
        self._on_made = on_made
        self._on_lost = on_lost
        self._http2 = Http2Connection(read_head)
        self._calls: dict[int, _Open] = {}
        self._waiting: dict[int, _Open] = {}
        self._direct: tuple[memoryview, _Open] | None = None
        self._releases: list[Release] = []  # of what the transport is sending
        self._blocked = False  # the transport holds bytes that the client has not taken
        self._paused = False
        self._flush_is_due = False
        self._closing = False  # once the last call has ended

    # --- asyncio --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # write at once, and tell when all is gone
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._on_made(self)
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        self._direct = self._find_direct()
        return self._receive_view if self._direct is None else self._direct[0]

    def _find_direct(self) -> tuple[memoryview, _Open] | None:
        """Where the rest of a large payload belongs, and the head of the next frame behind it, which the following
        payload then covers."""
        http2 = self._http2
        if http2.rest < _DIRECT_NBYTES:
            return None
        open = self._calls.get(http2.payload_of)
        room = open.call.incoming.room if open is not None else None
        if open is None or room is None or len(room) < _DIRECT_NBYTES:
            return None
        return room[: http2.rest + HEAD_NBYTES], open

    def buffer_updated(self, nbytes: int) -> None:
        if self._direct is None:
            self._on_events(self._http2.receive(self._receive_view[:nbytes], monotonic()))
        else:
            (room, open), self._direct = self._direct, None
            self._received_directly(room, open, nbytes)
        if self._http2.waiting_nbytes > _UNSENT_NBYTES and self._blocked:
            self._paused = True
            self._transport.pause_reading()
        if self._waiting or self._http2.waiting_nbytes:
            self._flush()

    def _received_directly(self, room: memoryview, open: _Open, nbytes: int) -> None:
        http2 = self._http2
        stream, taken = http2.payload_of, min(nbytes, http2.rest)
        behind = bytes(room[taken:nbytes])
        self._feed(stream, open, open.call.incoming.filled(taken), ended=False)
        self._on_events(http2.received(taken))
        if behind:
            self._on_events(http2.receive(behind, monotonic()))

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._release()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(self)
        for id in list(self._calls):
            self._forget(id)
        self._release()

    # --- requests -------------------------------------------------------------------------------------------------

    def _on_events(self, events: list[Event]) -> None:
        for event in events:
            if type(event) is Data:
                self._on_data(event)
            elif type(event) is Request:
                self._on_request(event)
            else:
                self._forget(event.stream)

    def _on_request(self, request: Request) -> None:
        id = request.stream
        head: Head = request.head
        if head.http_status:
            self._http2.send_trailers(id, http_refusal(head.http_status))
            return
        call = self._make(head, partial(self._on_ready, id))
        if call is None:
            self._http2.send_trailers(id, trailers_only(Unsupported("")))
            return
        open = self._calls[id] = _Open(call)
        if head.timeout_s is not None:
            open.timer = self._loop.call_later(head.timeout_s, self._on_deadline, id)
        if request.ended:
            self._feed(id, open, (), ended=True)

    def _make(self, head: Head, on_ready: Callable[[], None]) -> Call | None:
        if head.path == STREAM:
            return StreamCall(self._service, head, self._memory, on_ready)
        if head.path == INFER or head.path in self._service.methods:
            return UnaryCall(self._service, head, self._memory, on_ready)
        return None

    def _on_data(self, event: Data) -> None:
        open = self._calls.get(event.stream)
        if open is not None and (event.ended or not open.call.incoming.put(event.data)):
            messages = open.call.incoming.feed(event.data) if len(event.data) else ()
            self._feed(event.stream, open, messages, event.ended)

    def _feed(self, id: int, open: _Open, messages: Iterable[Buffer | Inflating], ended: bool) -> None:
        try:
            for message in messages:
                if open.held is not None:
                    open.held.add(message)
                elif isinstance(message, Inflating):
                    open.held = Held(self._inflaters.finish(message))
                    open.held.inflated.add_done_callback(partial(self._on_inflated, id, open))
                else:
                    open.call.receive(message)
            if ended and open.held is not None:
                open.held.ended = True
            elif ended:
                open.call.half_close()
        except (ServingError, GrpcError) as error:
            self._end(id, error)
        except Exception as error:
            self._end(id, InternalError("internal error"))
            self._loop.call_exception_handler({"message": "a gRPC call failed", "exception": error})

    def _on_inflated(self, id: int, open: _Open, inflated: asyncio.Future[memoryview]) -> None:
        held, open.held = open.held, None
        if held is not None and not inflated.cancelled():
            self._feed(id, open, held, held.ended)

    # --- responses ------------------------------------------------------------------------------------------------

    def _on_ready(self, id: int) -> None:
        open = self._calls.get(id)
        if open is not None:
            self._waiting[id] = open
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._transport.is_closing() or self._blocked:
            return
        if self._waiting:
            for id, open in list(self._waiting.items()):
                self._write(id, open)
        self._send(self._http2.take())
        if not self._blocked:
            self._release()
        if self._http2.failed or (self._closing and not self._calls):
            self._transport.close()

    def _write(self, id: int, open: _Open) -> None:
        """Of one call as much as its client takes, and as leaves room for the others."""
        http2, outgoing = self._http2, open.outgoing
        room = min(http2.capacity(id), _TURN_NBYTES)
        buffers, nbytes = outgoing.fill(room, self._releases)
        if nbytes:
            if not open.begun:
                open.begun = True
                http2.send_headers(id, RESPONSE)
            http2.send_data(id, buffers, nbytes)
        if outgoing.ended:
            error = open.call.error
            http2.send_trailers(id, trailers(error) if open.begun else trailers_only(error))
            self._forget(id)
        elif nbytes < room:
            del self._waiting[id]  # until it is ready again
        elif http2.capacity(id):
            self._flush_soon()

    def _send(self, buffers: list[bytes | memoryview]) -> None:
        if not buffers:
            return
        if sum(map(len, buffers)) <= _JOINED_NBYTES:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)

    def _release(self) -> None:
        releases, self._releases = self._releases, []
        for release in releases:
            release()

    # --- ends -----------------------------------------------------------------------------------------------------

    def _on_deadline(self, id: int) -> None:
        self._end(id, GrpcError(DEADLINE_EXCEEDED, "Deadline Exceeded"))

    def _end(self, id: int, error: ServingError | GrpcError) -> None:
        """Now, whatever the call still has to send. A message cannot end in its middle otherwise than by a reset."""
        open = self._calls.get(id)
        if open is None:
            return
        if open.outgoing.in_message:
            self._http2.reset(id, ErrorCode.CANCEL)
        else:
            self._http2.send_trailers(id, trailers(error) if open.begun else trailers_only(error))
        self._forget(id)
        self._flush_soon()

    def _forget(self, id: int) -> None:
        open = self._calls.pop(id, None)
        if open is not None:
            self._waiting.pop(id, None)
            if open.timer is not None:
                open.timer.cancel()
            if open.held is not None:
                open.held.inflated.cancel()
                open.held = None
            open.call.cancel()
            open.outgoing.close(self._releases)
            if self._releases:
                self._flush_soon()

    def close(self) -> None:
        """When the calls that are open have ended; no new ones."""
        self._closing = True
        self._http2.go_away()
        self._flush_soon()

    def end_calls(self, error: ServingError) -> None:
        for id in list(self._calls):
            self._end(id, error)

    def abort(self) -> None:
        self._transport.abort()
