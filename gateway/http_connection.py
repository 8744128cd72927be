"""One HTTP/1 connection: requests are served one at a time, in order; replies go out at once.

Small replies are copied into one write. The outputs of a large one are sent from the stub's segment, and
``Reply.release`` waits until the transport has let go of them. A client that leaves cancels its request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from gateway.calls import Reply
from gateway.http_call import Generation, Inference, Service
from gateway.http_head import CHUNKED, CONTINUE, begin_head, chunk, content_length, end_head
from gateway.http_infer import Buffer
from gateway.http_reader import LARGE_NBYTES, BadRequest, ForwardingReader, HttpRequest, RequestReader
from gateway.http_routes import (
    ASKED,
    GENERATE,
    GENERATE_STREAM,
    INFER,
    NO_ROUTE,
    WRONG_METHOD,
    HttpResponse,
    error_body,
    error_response,
)


class Connection(asyncio.BufferedProtocol):
    """Invariant: ``_request`` is the one being served, those in ``_queue`` came after it, ``_unread`` after those."""

    def __init__(
        self,
        service: Service,
        receive_view: memoryview,
        on_made: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self._service = service
        self._endpoints = service.endpoints
        self._receive_view = receive_view  # shared: what is read into it is consumed before anyone else reads
        self._on_made = on_made
        self._on_lost = on_lost
        self._queue: deque[HttpRequest] = deque()
        self._unread = b""  # bytes that came while a request was running
        self._owes_continue = False  # to the unfinished request, which others are served before
        self._failure: BadRequest | None = None  # what came after those in _queue
        self._request: HttpRequest | None = None
        self._call: Inference | Generation | None = None  # of the request
        self.is_behind = False  # the transport holds bytes that the client has not taken
        self._held: Reply | None = None  # whose outputs the transport is sending
        self._advancing = False
        reader = RequestReader if self._endpoints.forwarding is None else ForwardingReader
        self._reader = reader(
            service.dataplane.store,
            self._endpoints.max_input_size,
            self._on_request,
            self._on_expect,
            service.refusal,
            service.dataplane.admission,
            service.take_row,
            service.heads,
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
        elif self._request is not None or self.is_behind:
            self._unread += self._receive_view[:nbytes]
            self._transport.pause_reading()
            return
        else:
            self._feed(self._receive_view[:nbytes])
        self._advance()

    def pause_writing(self) -> None:
        self.is_behind = True

    def resume_writing(self) -> None:
        self.is_behind = False
        self._release_held()
        if isinstance(self._call, Generation):
            self._call.resume()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(self)
        if self._call is not None:
            self._call.cancel()
            self._call = None  # it refers to us
        self._release_held()
        self._reader.close()
        while self._queue:
            self._service.free(self._queue.popleft())

    # --- one request after the other ----------------------------------------------------------------------------

    def close_if_idle(self) -> None:
        if self._request is None and not self.is_behind and not self._queue and self._reader.is_idle:
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
            while self._request is None and not self.is_behind and not self._transport.is_closing():
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
                    self._transport.write(CONTINUE)
                else:
                    break
        finally:
            self._advancing = False

    def _refuse_to_go_on(self, error: BadRequest) -> None:
        body = error_body(str(error))
        head = begin_head(400, b"application/json") + content_length(len(body))
        self._transport.write(end_head(head, http_1_0=False, goes_on=False) + body)
        self._transport.close()

    def _serve(self, request: HttpRequest) -> None:
        self._request = request
        route = request.head.route
        if route is None:
            self.respond(NO_ROUTE)
        elif request.head.method != route.method:
            self.respond(WRONG_METHOD)
        elif request.refusal is not None:
            self._service.dataplane.refused(route.model, "", request.refusal)
            self.respond(error_response(request.refusal))
        elif route.endpoint == INFER:
            self._call = Inference(self._service, self, request, route)
            self._call.start()
        elif route.endpoint in (GENERATE, GENERATE_STREAM):
            self._call = Generation(self._service, self, request, route)
            self._call.start()
        elif route.endpoint in ASKED:
            self._endpoints.ask(route, bytes(request.body), self.respond)
        else:
            self.respond(self._endpoints.answer(route, bytes(request.body)))

    # --- answers, as a call's Client ----------------------------------------------------------------------------

    @property
    def has_left(self) -> bool:
        return self._transport.is_closing()

    def respond(self, response: HttpResponse) -> None:
        assert self._request is not None
        head = begin_head(response.status, response.content_type) + response.headers
        body = b"" if self._request.head.method == b"HEAD" else response.body
        self.send(head, [body], len(response.body), None)

    def send(self, head: bytes, buffers: list[Buffer], nbytes: int, reply: Reply | None) -> None:
        if self._transport.is_closing():
            if reply is not None:
                reply.release()
            return
        request, self._request, self._call = self._request, None, None
        assert request is not None
        asked = request.head
        goes_on = asked.keep_alive and not self._endpoints.exiting
        head = end_head(head + content_length(nbytes), asked.http_1_0, goes_on)
        if nbytes < LARGE_NBYTES:
            self._transport.write(b"".join((head, *buffers)))
            if reply is not None:
                reply.release()
        else:
            self._transport.writelines((head, *buffers))
            self._held = reply
            if not self.is_behind:
                self._release_held()
        if goes_on:
            self._advance()
        else:
            self._transport.close()

    def send_piece(self, head: bytes, piece: bytes, last: bool) -> None:
        assert self._request is not None
        asked = self._request.head
        chunked = not asked.http_1_0  # else the connection's end is the answer's
        goes_on = chunked and asked.keep_alive and not self._endpoints.exiting
        if chunked:
            piece = chunk(piece, last)
        if head:
            piece = end_head(head + CHUNKED if chunked else head, asked.http_1_0, goes_on) + piece
        self._transport.write(piece)
        if last:
            self._request = self._call = None
            if goes_on:
                self._advance()
            else:
                self._transport.close()

    def _release_held(self) -> None:
        if self._held is not None:
            self._held.release()
            self._held = None
