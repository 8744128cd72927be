"""The service over grpcio's core: raw bytes both ways, answered on the running loop.

It drives the layer below grpc.Server and grpc.aio (``cygrpc``, on which both of them rest) itself. With the same
service behind it a call costs 0.13 ms of CPU at 32 clients so, 0.43 ms over grpc.aio (three tasks and four wake-ups a
call) and 0.35 ms over grpc.Server, which holds a thread for each request in flight besides.

    poller thread    completion queue -> (callback, event) -> deque, at most one wake-up of the loop outstanding
    loop             deque -> _UnaryCall / _StreamCall -> service; answers go to the core from here, no thread between

cygrpc is no public API: the calls used here are those of grpc/_server.py, unchanged from 1.60 to 1.85.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from threading import Thread
from typing import Any

from grpc._cython import cygrpc

from gateway.grpc_message import LargeMessage, Message
from gateway.grpc_service import INFER, STREAM, GrpcService
from gateway.grpc_stream import InferStream
from gateway.status import GRPC_CODE
from protocol.errors import InternalError, ServingError, Unavailable, Unsupported

_MAX_MESSAGE_NBYTES = 2**31 - 1
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_NBYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_NBYTES),
    ("grpc.so_reuseport", 0),  # else a second server on the port would steal half the connections
)
# Clients take 16 KiB of trailers by default, in which every byte but plain ASCII counts three times.
_LONGEST_DETAILS = 4000
_FLUSH_S = 1.0  # for the last answers to leave; less if they have left sooner
_OK = cygrpc.StatusCode.ok
_NO_FLAGS = 0
_NEW_CALL = "new call"

Event = Any
Callback = Callable[[Event], None]


class GrpcEngine:
    """Owns the port, the completion queue and the poller thread. ``start``, then ``drain``, on one loop."""

    def __init__(self, service: GrpcService, address: str, port: int) -> None:
        self.port = port  # the bound one after ``start``
        self._service = service
        self._methods = service.methods | {INFER}
        self._address = address
        self._events: deque[tuple[Callback, Event]] = deque()
        self._wake_up_sent = False
        self._closed = False
        self._writers: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises Unavailable where the port is taken."""
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._queue = cygrpc.CompletionQueue()
        self._server = cygrpc.Server(_OPTIONS, False)
        self._server.register_completion_queue(self._queue)
        self.port = self._bind()
        self._server.start()
        self._poller = Thread(target=self._poll, name="grpc-poller", daemon=True)
        self._poller.start()

    async def drain(self, timeout_s: float) -> None:
        """Refuse new inferences, let those that run finish, close. What still runs at the deadline is cancelled."""
        all_answered = await self._service.drain(timeout_s)
        if self._closed:
            return
        self._closed = True
        self._server.shutdown(self._queue, self._on_shutdown)
        if all_answered:
            await asyncio.wait((self._stopped,), timeout=_FLUSH_S)
        self._server.cancel_all_calls()
        await asyncio.wait((self._stopped, *self._writers), timeout=_FLUSH_S)
        if self._stopped.done():  # else the core still holds calls, and would wait for them without end
            self._queue.shutdown()
            await asyncio.to_thread(self._poller.join, _FLUSH_S)
            self._server.destroy()

    def _bind(self) -> int:
        host = f"[{self._address}]" if ":" in self._address else self._address
        bound = 0
        with contextlib.suppress(RuntimeError):
            bound = self._server.add_http2_port(f"{host}:{self.port}".encode())
        if not bound:
            raise Unavailable(f"Socket '{self._address}:{self.port}' already in use")
        return bound

    # --- the poller thread ----------------------------------------------------------------------------------------

    def _poll(self) -> None:
        queue = self._queue
        self._server.request_call(queue, queue, _NEW_CALL)
        while True:
            event = queue.poll()
            if event.completion_type == cygrpc.CompletionType.queue_shutdown:
                return
            if event.tag is not _NEW_CALL:
                self._hand_over(event.tag, event)
            elif event.success:
                with contextlib.suppress(ValueError):  # the server has been shut down meanwhile
                    self._server.request_call(queue, queue, _NEW_CALL)
                self._accept(event)
            del event  # the core's shutdown waits for the last reference to a call

    def _accept(self, event: Event) -> None:
        """Unary calls are set to receive at once: a turn through the loop for that would cost a wake-up."""
        method = event.call_details.method.decode("latin-1")
        if method in self._methods:
            call = _UnaryCall(self._service, self._loop, event.call, method)
            receive_message(event.call, call.on_message)
            receive_close(event.call, call.on_close)
        else:
            self._hand_over(self._open_stream if method == STREAM else _refuse, event)

    def _hand_over(self, callback: Callback, event: Event) -> None:
        self._events.append((callback, event))
        if not self._wake_up_sent:
            self._wake_up_sent = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(self._take_over)

    # --- the loop -------------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        self._wake_up_sent = False  # before the deque is read: what comes after that must wake us again
        events = self._events
        for _ in range(len(events)):  # no more: the loop has others to serve
            callback, event = events.popleft()
            try:
                callback(event)
            except Exception as error:
                self._loop.call_exception_handler({"message": "a gRPC event failed", "exception": error})
            del callback, event

    def _open_stream(self, event: Event) -> None:
        stream = self._service.stream(event.invocation_metadata, _nothing)
        writing = _StreamCall(stream, self._loop, event.call).writing
        if writing is not None:
            self._writers.add(writing)
            writing.add_done_callback(self._writers.discard)

    def _on_shutdown(self, event: Event) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)


class _UnaryCall:
    """One RPC with one answer. Everything but its creation happens on the loop."""

    __slots__ = ("_call", "_cancel", "_closed", "_loop", "_method", "_service")

    def __init__(self, service: GrpcService, loop: asyncio.AbstractEventLoop, call: Any, method: str) -> None:
        self._service = service
        self._loop = loop
        self._call = call
        self._method = method
        self._cancel = _nothing
        self._closed = False

    def on_message(self, event: Event) -> None:
        message = event.batch_operations[0].message()
        if self._closed:
            return
        try:
            if message is None:
                raise InternalError("Unable to parse request")
            if self._method == INFER:
                self._cancel = self._service.infer(message, self._send)
            else:
                self._service.unary(self._method, message, self._send)
        except ServingError as error:
            send_status(self._call, error)
        except Exception:
            send_status(self._call, InternalError("internal error"))
            raise

    def on_close(self, event: Event) -> None:
        """The call is over: answered, or given up by the client, by its deadline or by the end of a drain."""
        self._closed = True
        self._cancel()

    def _send(self, answer: Message | ServingError) -> None:
        if isinstance(answer, LargeMessage):
            data = b"".join(answer.pieces)
            answer.release()
            answer = data
        if self._closed:
            return
        if isinstance(answer, ServingError):
            send_status(self._call, answer)
        else:
            send_answer(self._call, answer)


class _StreamCall:
    """One ModelStreamInfer RPC: messages are read as they come, ``writing`` sends what the stream has to say."""

    def __init__(self, stream: InferStream, loop: asyncio.AbstractEventLoop, call: Any) -> None:
        self._stream = stream
        self._loop = loop
        self._call = call
        self._sent: asyncio.Future[bool] | None = None
        self._begun = False  # the initial metadata have left
        self.writing: asyncio.Task[None] | None = loop.create_task(self._write())
        receive_message(call, self._on_message)
        receive_close(call, self._on_close)

    def _on_message(self, event: Event) -> None:
        message = event.batch_operations[0].message()
        if message is None:
            self._stream.half_close()
        else:
            self._stream.feed(message)
            receive_message(self._call, self._on_message)

    def _on_close(self, event: Event) -> None:
        if event.batch_operations[0].cancelled():
            self._stream.cancel()
            if self.writing is not None:
                self.writing.cancel()

    async def _write(self) -> None:
        try:
            async for message in self._stream:
                if not await self._send(message):
                    return
            send_status(self._call, None, self._begun)
        except ServingError as error:
            send_status(self._call, error, self._begun)
        finally:
            self._stream.cancel()
            self.writing = None  # a cancelled task refers to this frame: the cycle would keep the core's call

    async def _send(self, message: bytes) -> bool:
        """False: the client is gone. One message at a time, so that a slow client holds up its own stream only."""
        operations = [cygrpc.SendMessageOperation(message, _NO_FLAGS)]
        if not self._begun:
            self._begun = True
            operations.insert(0, cygrpc.SendInitialMetadataOperation((), _NO_FLAGS))
        self._sent = self._loop.create_future()
        self._call.start_server_batch(operations, self._on_sent)
        return await self._sent

    def _on_sent(self, event: Event) -> None:
        if self._sent is not None and not self._sent.done():
            self._sent.set_result(event.success)


# --- batches of the core ------------------------------------------------------------------------------------------


def receive_message(call: Any, callback: Callback) -> None:
    """``callback``'s event brings a message, None at the end of the client's messages."""
    call.start_server_batch((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), callback)


def receive_close(call: Any, callback: Callback) -> None:
    """``callback``'s event comes when the call is over, however it ended."""
    call.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS),), callback)


def send_answer(call: Any, answer: bytes) -> None:
    """The only message and status OK."""
    operations = (
        cygrpc.SendInitialMetadataOperation((), _NO_FLAGS),
        cygrpc.SendMessageOperation(answer, _NO_FLAGS),
        cygrpc.SendStatusFromServerOperation((), _OK, b"", _NO_FLAGS),
    )
    call.start_server_batch(operations, _ignore)


def send_status(call: Any, error: BaseException | None, begun: bool = False) -> None:
    """The end of a call; ``begun`` when something has been sent before."""
    code, details = _OK, ""
    if error is not None:
        code = GRPC_CODE[error.kind] if isinstance(error, ServingError) else GRPC_CODE[InternalError.kind]
        details = str(error)[:_LONGEST_DETAILS]
    operations = [cygrpc.SendStatusFromServerOperation((), code, details.encode(), _NO_FLAGS)]
    if not begun:
        operations.insert(0, cygrpc.SendInitialMetadataOperation((), _NO_FLAGS))
    call.start_server_batch(operations, _ignore)


def _refuse(event: Event) -> None:
    send_status(event.call, Unsupported(""))


def _nothing() -> None:
    pass


def _ignore(event: Event) -> None:
    """The core has taken what was sent; a client that is gone says so by ``receive_close``."""
