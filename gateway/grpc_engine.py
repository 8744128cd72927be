"""The service over grpcio: generic handlers of grpc.aio on the running loop, raw bytes both ways."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from gateway.grpc_service import INFER, STREAM, GrpcService
from gateway.grpc_stream import InferStream
from gateway.status import GRPC_CODE
from protocol.errors import InternalError, ServingError, Unavailable

_MAX_MESSAGE_NBYTES = 2**31 - 1
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_NBYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_NBYTES),
    ("grpc.so_reuseport", 0),  # else a second server on the port would steal half the connections
)
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_FLUSH_S = 1.0  # for the last answers to leave; less if they have left sooner

Unary = Callable[[bytes, Any], Awaitable[bytes]]


class GrpcEngine(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Owns the listening port. ``start``, then ``drain`` once; to be used on one loop."""

    def __init__(self, service: GrpcService, address: str, port: int) -> None:
        self.port = port  # the bound one after ``start``
        self._service = service
        self._address = address
        self._server: Any = None
        self._handlers: dict[str, grpc.RpcMethodHandler] = {
            method: grpc.unary_unary_rpc_method_handler(self._unary(method)) for method in service.methods
        }
        self._handlers[INFER] = grpc.stream_unary_rpc_method_handler(self._infer)
        self._handlers[STREAM] = grpc.stream_stream_rpc_method_handler(self._stream)

    async def start(self) -> None:
        """Raises Unavailable where the port is taken."""
        server = grpc.aio.server(handlers=(self,), options=_OPTIONS)
        host = f"[{self._address}]" if ":" in self._address else self._address
        try:
            self.port = server.add_insecure_port(f"{host}:{self.port}")
        except RuntimeError as error:
            raise Unavailable(
                f"failed to start GRPC service: Unavailable - Socket '{self._address}:{self.port}' already in use"
            ) from error
        await server.start()
        self._server = server

    async def drain(self, timeout_s: float) -> None:
        """Refuse new inferences, let those that run finish, close. What still runs at the deadline is cancelled."""
        all_answered = await self._service.drain(timeout_s)
        await self._server.stop(_FLUSH_S if all_answered else None)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """grpcio asks for the handler of a method; None makes it answer UNIMPLEMENTED."""
        return self._handlers.get(handler_call_details.method)

    def _unary(self, method: str) -> Unary:
        answer = self._service.unary

        async def handler(request: bytes, context: Any) -> bytes:
            try:
                return answer(method, request)
            except ServingError as error:
                return await _abort(context, error)

        return handler

    async def _infer(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """Declared as taking a stream: of a unary call grpcio itself holds the request until the answer has left."""
        request = await context.read()
        try:
            if request is grpc.aio.EOF:
                raise InternalError("Unable to parse request")
            answer = self._service.infer(request)
            del request  # 300 MB less while the model runs, if the request has 300 MB
            return await answer
        except ServingError as error:
            return await _abort(context, error)

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        stream = self._service.stream(context.invocation_metadata())
        feeding = asyncio.ensure_future(_feed(stream, requests))
        try:
            async for message in stream:
                await context.write(message)
        except ServingError as error:
            await _abort(context, error)
        finally:
            stream.cancel()
            feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feeding


async def _feed(stream: InferStream, requests: AsyncIterator[bytes]) -> None:
    try:
        async for request in requests:
            stream.feed(request)
    finally:
        stream.half_close()


async def _abort(context: Any, error: ServingError) -> bytes:
    """Raises, always: that is how grpc.aio ends a call with a status."""
    await context.abort(_CODES[GRPC_CODE[error.kind]], str(error))
    raise AssertionError("abort raises")
