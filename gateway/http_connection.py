"""One HTTP/1 connection: requests are served one at a time, in order; replies go out at once.

Small replies are copied into one write. The outputs of a large one are sent from the stub's segment, and
``Reply.release`` waits until the transport has let go of them. Of a stream each response goes out as it is made; one
whose predecessor the client has yet to take waits in the stub's segment. A client that leaves cancels its request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import lru_cache, partial
from typing import cast

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
from gateway.http_header import InferHeader
from gateway.http_infer import Buffer, read_request, write_reply
from gateway.http_reader import (
    LARGE_NBYTES,
    BadRequest,
    ForwardingReader,
    HttpRequest,
    RequestReader,
    header_size,
)
from gateway.http_routes import (
    ASKED,
    GENERATE,
    GENERATE_STREAM,
    INFER,
    NO_ROUTE,
    WRONG_METHOD,
    Endpoints,
    HttpResponse,
    Route,
    error_body,
    error_response,
    for_model,
)
from protocol.errors import STOPPING, InternalError, ServingError, Unavailable, Unsupported
from protocol.signature import Signature
from shm.store import Block

_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Not Allowed",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
}
_STATUS_LINES = {status: b"HTTP/1.1 %d %b\r\nContent-Type: " % (status, reason) for status, reason in _REASONS.items()}
_JSON_HEAD = _STATUS_LINES[200] + b"application/json\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CHUNKED, _LAST_CHUNK = b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"


class Connection(asyncio.BufferedProtocol):
    """Invariant: ``_request`` is the one being served, those in ``_queue`` came after it, ``_unread`` after those."""

    def __init__(
        self,
        dataplane: DataPlane,
        endpoints: Endpoints,
        receive_view: memoryview,
        worker: Executor,
        on_made: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        """``worker`` compresses what is large."""
        self._dataplane = dataplane
        self._endpoints = endpoints
        self._receive_view = receive_view  # shared: what is read into it is consumed before anyone else reads
        self._worker = worker
        self._on_made = on_made
        self._on_lost = on_lost
        self._queue: deque[HttpRequest] = deque()
        self._unread = b""  # bytes that came while a request was running
        self._owes_continue = False  # to the unfinished request, which others are served before
        self._failure: BadRequest | None = None  # what came after those in _queue
        self._request: HttpRequest | None = None
        self._header: InferHeader | None = None
        self._generated: Generated | None = None  # the answer to a request of generate or generate_stream
        self._call = 0  # id of the running inference
        self._inflating: asyncio.Future[bytearray] | None = None  # the body of the request
        self._surplus = 0  # responses before the final one
        self._blocked = False  # the transport holds bytes that the client has not taken
        self._held: Reply | None = None  # whose outputs the transport is sending
        self._advancing = False
        reader = RequestReader if endpoints.forwarding is None else ForwardingReader
        self._reader = reader(
            dataplane.store,
            endpoints.max_input_size,
            self._on_request,
            self._on_expect,
            self._refusal,
            dataplane.admission,
            self._take_row,
        )

    # --- asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # write at once, and tell when all is gone
        self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        reader = self._reader
        if reader.rest is not None:
            return reader.rest
        return self._receive_view[: reader.unwanted] if reader.unwanted else self._receive_view

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        if self._failure is not None:
            return  # received all the same, to notice when the client leaves
        if reader.rest is not None:
            reader.received(nbytes)
        elif reader.unwanted:
            reader.dropped(nbytes)
        elif self._request is not None or self._blocked:
            self._unread += self._receive_view[:nbytes]
            self._transport.pause_reading()
            return
        else:
            self._feed(self._receive_view[:nbytes])
        self._advance()

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._release_held()
        self._send_generated()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(self)
        if self._call:
            self._dataplane.cancel(self._call)
            self._call = 0
        if self._inflating is not None:
            self._inflating.cancel()
        if self._generated is not None:
            self._generated.close()
        self._release_held()
        self._reader.close()
        while self._queue:
            self._free(self._queue.popleft())

    # --- one request after the other ----------------------------------------------------------------------------

    def close_if_idle(self) -> None:
        if self._request is None and not self._blocked and not self._queue and self._reader.is_idle:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _on_request(self, request: HttpRequest) -> None:
        self._owes_continue = False
        self._queue.append(request)

    def _on_expect(self) -> None:
        self._owes_continue = True

    def _feed(self, data: memoryview | bytes) -> None:
        try:
            self._reader.feed(data)
        except BadRequest as error:
            self._failure = error

    def _advance(self) -> None:
        """Serve what waits until something has to be waited for."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._request is None and not self._blocked and not self._transport.is_closing():
                if self._queue:
                    self._serve(self._queue.popleft())
                elif self._failure is not None:
                    self._refuse_to_go_on(self._failure)
                elif self._unread:
                    data, self._unread = self._unread, b""
                    self._transport.resume_reading()
                    self._feed(data)
                elif self._owes_continue:
                    self._owes_continue = False
                    self._transport.write(_CONTINUE)
                else:
                    break
        finally:
            self._advancing = False

    def _refuse_to_go_on(self, error: BadRequest) -> None:
        body = error_body(str(error))
        head = _STATUS_LINES[400] + b"application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)
        self._transport.close()

    def _serve(self, request: HttpRequest) -> None:
        self._request = request
        route = request.head.route
        if route is None:
            self._respond(NO_ROUTE)
        elif request.head.method != route.method:
            self._respond(WRONG_METHOD)
        elif request.refusal is not None:
            self._dataplane.refused(route.model, "", request.refusal)
            self._respond(error_response(request.refusal))
        elif route.endpoint == INFER:
            self._infer(request, route)
        elif route.endpoint in (GENERATE, GENERATE_STREAM):
            self._generate(request, route)
        elif route.endpoint in ASKED:
            self._endpoints.ask(route, bytes(request.body), self._respond)
        else:
            self._respond(self._endpoints.answer(route, bytes(request.body)))

    # --- inference ----------------------------------------------------------------------------------------------

    def _infer(self, request: HttpRequest, route: Route, inflated: bytearray | None = None) -> None:
        call = None
        try:
            try:
                signature = self._single_response_signature(route)
                data: Buffer | bytearray | None = request.body if inflated is None else inflated
                if inflated is None and b"content-encoding" in request.head.headers:
                    data = self._plain(request, route)
                if data is None:
                    return
                call, self._header = read_request(
                    memoryview(data),
                    header_size(request.head.headers, len(request.json) + len(data)),
                    signature,
                    self._endpoints.max_input_size,
                    request.block,
                    request.offset,
                    request.json,
                )
                call.admitted = request.admitted
                if self._endpoints.forwarding is not None:
                    call.parameters = self._endpoints.forwarding.added(call.parameters, request.head.all_headers)
            except ServingError:
                self._free(request)
                raise
            self._call = self._dataplane.infer(call, self._on_reply)
        except UnsupportedEncoding as error:
            self._respond(error_response(error, b"Accept-Encoding: gzip, deflate\r\n"))
        except ServingError as error:
            self._refuse(route, call.request_id if call is not None else "", error)

    def _refuse(self, route: Route, request_id: str, error: ServingError) -> None:
        self._dataplane.refused(route.model, request_id, error)
        self._respond(error_response(error))

    def _signature(self, route: Route) -> Signature:
        if self._endpoints.exiting:
            raise Unavailable(STOPPING)
        return for_model(route, self._dataplane.signature)

    def _single_response_signature(self, route: Route) -> Signature:
        signature = self._signature(route)
        if signature.decoupled:
            raise Unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        return signature

    def _refusal(self, route: Route, nbytes: int) -> ServingError | None:
        try:
            signature = self._single_response_signature(route)
            self._dataplane.refuse_large(signature.model, signature.version, nbytes)
        except ServingError as error:
            return error
        return None

    def _take_row(self, route: Route, nbytes: int) -> Block | None:
        """For the tensor of a model with one input, beside those of other requests."""
        signature = self._signature(route)
        if not signature.batching or len(signature.inputs) != 1:
            return None
        slot = self._dataplane.slot(signature, (nbytes,))
        return None if slot is None else slot.block

    def _plain(self, request: HttpRequest, route: Route) -> Buffer | None:
        """The body as it was before it was compressed; None if that takes long, and ``_infer`` is called again then."""
        if not is_compressed(request.head.headers[b"content-encoding"]):
            return request.body
        limit = self._endpoints.max_input_size
        data = inflate_little(request.body, limit)
        if data is None:
            work = asyncio.get_running_loop().run_in_executor(self._worker, inflate, request.body, limit)
            self._inflating = work
            work.add_done_callback(partial(self._on_inflated, request, route))
        return data

    def _on_inflated(self, request: HttpRequest, route: Route, inflated: asyncio.Future[bytearray]) -> None:
        """No error is raised here: with it, what has been inflated would stay until cycles are looked for."""
        self._inflating = None
        if inflated.cancelled():  # the client has gone
            return
        error = inflated.exception()
        if error is None:
            self._infer(request, route, inflated.result())
        else:
            self._refuse(route, "", error if isinstance(error, ServingError) else InternalError(repr(error)))

    def _on_reply(self, reply: Reply) -> None:
        if not reply.final:
            reply.release()
            self._surplus += 1
            return
        self._call = 0
        if self._transport.is_closing():
            reply.release()
            return
        surplus, self._surplus = self._surplus, 0
        try:
            if surplus:
                raise InternalError(f"expected a single response, got {surplus + 1}")
            if reply.error is not None:
                raise reply.error
            self._send_outputs(reply)
        except ServingError as error:
            reply.release()
            self._respond(error_response(error))

    def _send_outputs(self, reply: Reply) -> None:
        assert self._request is not None and self._header is not None
        buffers, nbytes, json_nbytes = write_reply(reply, self._header)
        head = _binary_head(json_nbytes) if json_nbytes else _JSON_HEAD
        accepted = self._request.head.headers.get(b"accept-encoding")
        if accepted is not None:
            encoding = choose_encoding(accepted)
            if encoding != "identity":
                head += b"Content-Encoding: %b\r\n" % encoding.encode()
                self._deflate(head, buffers, nbytes, encoding, reply)
                return
        self._send(head, buffers, nbytes, reply)

    def _deflate(self, head: bytes, buffers: list[Buffer], nbytes: int, encoding: str, reply: Reply) -> None:
        if nbytes <= AT_ONCE_NBYTES:
            data = deflate(buffers, encoding)
            self._send(head, [data], len(data), reply)
        else:
            work = asyncio.get_running_loop().run_in_executor(self._worker, deflate, buffers, encoding)
            work.add_done_callback(partial(self._on_deflated, head, reply))

    def _on_deflated(self, head: bytes, reply: Reply, deflated: asyncio.Future[bytes]) -> None:
        """Whoever leaves meanwhile, the thread looks at the outputs until here."""
        reply.release()
        if deflated.cancelled() or self._transport.is_closing():
            return
        error = deflated.exception()
        if error is None:
            data = deflated.result()
            self._send(head, [data], len(data), None)
        else:
            self._respond(error_response(InternalError(repr(error))))

    # --- generate and generate_stream ---------------------------------------------------------------------------

    def _generate(self, request: HttpRequest, route: Route) -> None:
        call = None
        try:
            encoding = request.head.headers.get(b"content-encoding", b"identity")
            signature = self._signature(route)
            call = read_generate(encoding, bytes(request.body), signature, self._endpoints.max_input_size)
            self._call = self._dataplane.infer(call, self._on_generated)
            self._generated = Generated(streaming=route.endpoint == GENERATE_STREAM)
        except ServingError as error:
            self._refuse(route, call.request_id if call is not None else "", error)

    def _on_generated(self, reply: Reply) -> None:
        if reply.final:
            self._call = 0
        if self._generated is None or self._transport.is_closing():
            reply.release()
            return
        self._generated.add(reply)
        self._send_generated()

    def _send_generated(self) -> None:
        """As much of the answer as is there and the client takes."""
        answer = self._generated
        while answer is not None and answer.waiting and not self._blocked:
            begun = answer.begun
            piece = answer.next()
            if answer.begun:
                self._write_piece(answer, piece, first=not begun)
            if answer.ended:
                answer = self._generated = None
                self._end_generated()

    def _write_piece(self, answer: Generated, piece: bytes, first: bool) -> None:
        assert self._request is not None
        chunked = not self._request.head.http_1_0
        if chunked:
            piece = (b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b"") + (_LAST_CHUNK if answer.ended else b"")
        if first:
            head = _STATUS_LINES[answer.status] + answer.content_type + b"\r\n"
            head += _CHUNKED if chunked else b""
            form = self._request.head.headers.get(b"endpoint-load-metrics-format")
            head += b"" if form is None else self._endpoints.load_report(form)
            piece = self._ended_head(head, self._request, chunked and self._goes_on(self._request)) + piece
        self._transport.write(piece)

    def _end_generated(self) -> None:
        request, self._request = self._request, None
        assert request is not None
        if request.head.http_1_0 or not self._goes_on(request):
            self._transport.close()
        else:
            self._advance()

    # --- replies ------------------------------------------------------------------------------------------------

    def _respond(self, response: HttpResponse) -> None:
        if self._transport.is_closing():
            return
        assert self._request is not None
        head = _STATUS_LINES[response.status] + response.content_type + b"\r\n" + response.headers
        body = b"" if self._request.head.method == b"HEAD" else response.body
        self._send(head, [body], len(response.body), None)

    def _send(self, head: bytes, buffers: list[Buffer], nbytes: int, reply: Reply | None) -> None:
        """Answer the request being served; the next one may follow."""
        request, self._request, self._header = self._request, None, None
        assert request is not None
        goes_on = self._goes_on(request)
        head = self._ended_head(head + _content_length(nbytes), request, goes_on)
        if nbytes < LARGE_NBYTES:
            self._transport.write(b"".join((head, *buffers)))
            if reply is not None:
                reply.release()
        else:
            self._transport.writelines((head, *buffers))
            self._held = reply
            if not self._blocked:
                self._release_held()
        if not goes_on:
            self._transport.close()
        else:
            self._advance()

    def _goes_on(self, request: HttpRequest) -> bool:
        """Whether another one may follow on this connection."""
        return request.head.keep_alive and not self._endpoints.exiting

    @staticmethod
    def _ended_head(head: bytes, request: HttpRequest, goes_on: bool) -> bytes:
        if request.head.http_1_0:
            head = head.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        if not goes_on:
            return head + b"Connection: close\r\n\r\n"
        return head + (b"Connection: keep-alive\r\n\r\n" if request.head.http_1_0 else b"\r\n")

    def _release_held(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None

    def _free(self, request: HttpRequest) -> None:
        if request.block is not None:
            self._dataplane.store.free(request.block)
        if request.head.route is not None:
            self._dataplane.admission.give_back(request.head.route.model, request.admitted)


# Sizes recur from reply to reply.
@lru_cache(maxsize=1024)
def _binary_head(json_nbytes: int) -> bytes:
    return _STATUS_LINES[200] + b"application/octet-stream\r\nInference-Header-Content-Length: %d\r\n" % json_nbytes


@lru_cache(maxsize=1024)
def _content_length(nbytes: int) -> bytes:
    return b"Content-Length: %d\r\n" % nbytes
