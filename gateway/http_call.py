"""The two kinds of requests that run a model, between a connection and the data plane. No socket.

A connection makes a call of such a request and starts it. The call answers its client, which is that connection, now or
later; ``cancel`` ends it when the client has left.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial
from typing import Protocol

from gateway.calls import Reply
from gateway.dataplane import DataPlane
from gateway.http_compression import (
    AT_ONCE_NBYTES,
    UnsupportedEncoding,
    choose_encoding,
    deflate,
    inflate,
    inflate_little,
    is_compressed,
)
from gateway.http_generate import Generated, read_generate
from gateway.http_head import JSON_HEAD, begin_head, binary_head
from gateway.http_infer import Buffer, read_request, write_reply
from gateway.http_reader import HttpRequest, header_size
from gateway.http_routes import GENERATE_STREAM, Endpoints, HttpResponse, Route, error_response, for_model
from gateway.known_heads import KnownHeads
from protocol.errors import STOPPING, InternalError, ServingError, Unavailable, Unsupported
from protocol.signature import Signature
from shm.store import Block


class Client(Protocol):
    """Who waits for the answer. What is sent to one that has left is dropped."""

    @property
    def has_left(self) -> bool: ...

    @property
    def is_behind(self) -> bool:
        """It has yet to take what was sent. ``Generation.resume`` is called when it has."""

    def respond(self, response: HttpResponse) -> None: ...

    def send(self, head: bytes, buffers: list[Buffer], nbytes: int, reply: Reply | None) -> None:
        """An answer with a body of ``nbytes``, which the ``head`` does not say yet. ``reply`` is released when the
        buffers have been sent."""

    def send_piece(self, head: bytes, piece: bytes, last: bool) -> None:
        """A part of an answer whose length is not known before its end. The first has a ``head``, others b""."""


class Service:
    """What the calls of a front have in common."""

    def __init__(self, dataplane: DataPlane, endpoints: Endpoints, worker: Executor) -> None:
        """``worker`` compresses what is large."""
        self.dataplane = dataplane
        self.endpoints = endpoints
        self.worker = worker
        self.heads = KnownHeads()  # by whatever connection they came

    def signature(self, route: Route, decoupled: bool = False) -> Signature:
        """Of a model that may be ``decoupled`` or not. Raises ServingError."""
        if self.endpoints.exiting:
            raise Unavailable(STOPPING)
        signature = for_model(route, self.dataplane.signature)
        if signature.decoupled and not decoupled:
            raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        return signature

    def refusal(self, route: Route, nbytes: int) -> ServingError | None:
        """Of an infer request with a body of ``nbytes`` that has yet to be received."""
        try:
            signature = self.signature(route)
            self.dataplane.refuse_large(signature.model, signature.version, nbytes)
        except ServingError as error:
            return error
        return None

    def take_row(self, route: Route, nbytes: int) -> Block | None:
        """For the tensor of a model with one input, beside those of other requests."""
        signature = self.signature(route)
        if not signature.batching or len(signature.inputs) != 1:
            return None
        slot = self.dataplane.slot(signature, (nbytes,))
        return None if slot is None else slot.block

    def free(self, request: HttpRequest) -> None:
        if request.block is not None:
            self.dataplane.store.free(request.block)
        if request.head.route is not None:
            self.dataplane.admission.give_back(request.head.route.model, request.admitted)


class Inference:
    """An infer request. A body that takes long to inflate, or an answer to deflate, does so in a thread.

    Invariant: the request's block is freed where ``start`` fails; else the data plane has it."""

    __slots__ = ("_call", "_client", "_header", "_inflating", "_request", "_route", "_service", "_surplus")

    def __init__(self, service: Service, client: Client, request: HttpRequest, route: Route) -> None:
        self._service = service
        self._client = client
        self._request = request
        self._route = route
        self._call = 0  # its id while it runs
        self._inflating: asyncio.Future[bytearray] | None = None  # the body
        self._surplus = 0  # responses before the final one

    def start(self, inflated: bytearray | None = None) -> None:
        service = self._service
        request = self._request
        call = None
        try:
            try:
                signature = service.signature(self._route)
                data: Buffer | bytearray | None = inflated
                if data is None:
                    data = request.body
                    if b"content-encoding" in request.head.headers:
                        data = self._plain()
                        if data is None:
                            return
                call, self._header = read_request(
                    memoryview(data),
                    header_size(request.head.headers, len(request.json) + len(data)),
                    signature,
                    service.endpoints.max_input_size,
                    request.block,
                    request.offset,
                    request.json,
                )
                call.admitted = request.admitted
                forwarding = service.endpoints.forwarding
                if forwarding is not None:
                    call.parameters = forwarding.added(call.parameters, request.head.all_headers)
            except ServingError:
                service.free(request)
                raise
            self._call = service.dataplane.infer(call, self._on_reply)
        except UnsupportedEncoding as error:
            self._client.respond(error_response(error, b"Accept-Encoding: gzip, deflate\r\n"))
        except ServingError as error:
            self._refuse(call.request_id if call is not None else "", error)

    def cancel(self) -> None:
        if self._call:
            self._service.dataplane.cancel(self._call)
        if self._inflating is not None:
            self._inflating.cancel()

    def _refuse(self, request_id: str, error: ServingError) -> None:
        self._service.dataplane.refused(self._route.model, request_id, error)
        self._client.respond(error_response(error))

    def _plain(self) -> Buffer | None:
        """The body as it was before it was compressed; None if that takes long, and ``start`` is called again then."""
        body, limit = self._request.body, self._service.endpoints.max_input_size
        if not is_compressed(self._request.head.headers[b"content-encoding"]):
            return body
        data = inflate_little(body, limit)
        if data is None:
            self._inflating = asyncio.get_running_loop().run_in_executor(self._service.worker, inflate, body, limit)
            self._inflating.add_done_callback(self._on_inflated)
        return data

    def _on_inflated(self, inflated: asyncio.Future[bytearray]) -> None:
        """No error is raised here: with it, what has been inflated would stay until cycles are looked for."""
        self._inflating = None
        if inflated.cancelled():  # the client has left
            return
        error = inflated.exception()
        if error is None:
            self.start(inflated.result())
        else:
            self._refuse("", error if isinstance(error, ServingError) else InternalError(repr(error)))

    def _on_reply(self, reply: Reply) -> None:
        if not reply.final:
            reply.release()
            self._surplus += 1
            return
        self._call = 0
        try:
            if self._surplus:
                raise InternalError(f"expected a single response, got {self._surplus + 1}")
            if reply.error is not None:
                raise reply.error
            self._send_outputs(reply)
        except ServingError as error:
            reply.release()
            self._client.respond(error_response(error))

    def _send_outputs(self, reply: Reply) -> None:
        buffers, nbytes, json_nbytes = write_reply(reply, self._header)
        head = binary_head(json_nbytes) if json_nbytes else JSON_HEAD
        accepted = self._request.head.headers.get(b"accept-encoding")
        if accepted is not None:
            encoding = choose_encoding(accepted)
            if encoding != "identity":
                head += b"Content-Encoding: %b\r\n" % encoding.encode()
                self._deflate(head, buffers, nbytes, encoding, reply)
                return
        self._client.send(head, buffers, nbytes, reply)

    def _deflate(self, head: bytes, buffers: list[Buffer], nbytes: int, encoding: str, reply: Reply) -> None:
        if nbytes <= AT_ONCE_NBYTES:
            data = deflate(buffers, encoding)
            self._client.send(head, [data], len(data), reply)
        else:
            work = asyncio.get_running_loop().run_in_executor(self._service.worker, deflate, buffers, encoding)
            work.add_done_callback(partial(self._on_deflated, head, reply))

    def _on_deflated(self, head: bytes, reply: Reply, deflated: asyncio.Future[bytes]) -> None:
        """Whoever leaves meanwhile, the thread looks at the outputs until here."""
        reply.release()
        if deflated.cancelled():
            return
        error = deflated.exception()
        if error is None:
            data = deflated.result()
            self._client.send(head, [data], len(data), None)
        else:
            self._client.respond(error_response(InternalError(repr(error))))


class Generation:
    """A request of generate or generate_stream. What there is of the answer goes out as it is made; while the client is
    behind, replies wait in the stub's segment."""

    def __init__(self, service: Service, client: Client, request: HttpRequest, route: Route) -> None:
        self._service = service
        self._client = client
        self._request = request
        self._route = route
        self._call = 0  # its id while it runs
        self._answer = Generated(streaming=route.endpoint == GENERATE_STREAM)

    def start(self) -> None:
        service, request, call = self._service, self._request, None
        try:
            encoding = request.head.headers.get(b"content-encoding", b"identity")
            signature = service.signature(self._route, decoupled=True)
            call = read_generate(encoding, bytes(request.body), signature, service.endpoints.max_input_size)
            self._call = service.dataplane.infer(call, self._on_reply)
        except ServingError as error:
            service.dataplane.refused(self._route.model, call.request_id if call is not None else "", error)
            self._client.respond(error_response(error))

    def cancel(self) -> None:
        if self._call:
            self._service.dataplane.cancel(self._call)
        self._answer.close()

    def _on_reply(self, reply: Reply) -> None:
        if reply.final:
            self._call = 0
        if self._client.has_left:
            reply.release()
            return
        self._answer.add(reply)
        self.resume()

    def resume(self) -> None:
        """As much of the answer as is there and the client takes."""
        answer = self._answer
        while answer.waiting and not self._client.is_behind:
            begun = answer.begun
            piece = answer.next()
            if answer.begun:
                self._client.send_piece(b"" if begun else self._head(), piece, answer.ended)

    def _head(self) -> bytes:
        head = begin_head(self._answer.status, self._answer.content_type)
        form = self._request.head.headers.get(b"endpoint-load-metrics-format")
        return head if form is None else head + self._service.endpoints.load_report(form)
