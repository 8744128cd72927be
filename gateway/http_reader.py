"""Bytes of a connection to HttpRequests: HTTP/1 by httptools, and where a body is put. No socket here.

Bodies are collected from the caller's buffer, but a large body of an infer request goes to a block of shared memory;
``rest`` is then where the caller must receive the bytes that are still to come:

    block   | pad | JSON header | tensor | tensor |     pad: the tensors begin aligned
            0     offset

The lone tensor of a model that makes batches may have its place beside that of the last request. The header then lies
apart, and is received there first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httptools

from gateway.admission import Admission
from gateway.http_compression import is_compressed
from gateway.http_routes import INFER, Route, find_route
from gateway.known_heads import NO_HEAD, Head, KnownHead, KnownHeads
from metrics.pressure import Pressure
from protocol.errors import InvalidArgument, ServingError
from shm.arena import ALIGNMENT
from shm.errors import ShmFull
from shm.store import Block, Store

LARGE_NBYTES = 64 << 10  # from here on a body is worth a place of its own
_MAX_CHUNKS = 65536
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_INTEGER = re.compile(r"\s*([+-]?[0-9]+)")
_WANTED = frozenset(
    (
        b"content-length",
        b"inference-header-content-length",
        b"content-encoding",
        b"accept-encoding",
        b"expect",
        b"endpoint-load-metrics-format",
    )
)


# Memory is reserved for what a client announces only up to here at once; for more when a part of it has come.
_BELIEVED_NBYTES = 1 << 20
_EARNED = 16
_LONGEST_HEAD = 1 << 20  # the parser keeps an unfinished line, however long


@dataclass(slots=True)
class HttpRequest:
    """A request as it came. ``block`` (the owner frees it) holds the body at ``offset``, but for the JSON header if
    that is ``json``. With a ``refusal`` the body was thrown away."""

    head: Head
    body: bytes | memoryview
    block: Block | None = None
    offset: int = 0
    refusal: ServingError | None = None
    admitted: int = 0  # bytes, to be given back with the block
    json: bytes = b""


class BadRequest(Exception):
    """Nothing after this can be understood: answer ``str(error)`` with status 400 and close."""


class RequestReader:
    """``feed`` and ``received`` call ``on_request`` for each complete request, in order.

    ``refuse`` is asked before a large infer body is received; its error spares the memory, and of a client that waits
    for 100 Continue the body, too. The block of an unfinished request is freed by ``close``.
    """

    def __init__(
        self,
        store: Store,
        max_input_size: int,
        on_request: Callable[[HttpRequest], None],
        on_expect: Callable[[], None],
        refuse: Callable[[Route, int], ServingError | None],
        admission: Admission | None = None,
        take_row: Callable[[Route, int], Block | None] = lambda route, nbytes: None,
        heads: KnownHeads | None = None,
    ) -> None:
        """``refuse`` gets the size of the body, ``take_row`` that of what is behind its JSON header. ``heads`` are for
        all readers of the same kind and limits."""
        self._heads = KnownHeads() if heads is None else heads
        self._take_row = take_row
        self._admission = admission or Admission(Pressure())
        self._store = store
        self._max_input_size = max_input_size
        self._on_request = on_request
        self._on_expect = on_expect
        self._refuse = refuse
        self._failure = ""
        self.rest: memoryview | None = None  # the unfilled end of a large body
        self.unwanted = 0  # bytes of a refused body that are still to come
        self._parser = httptools.HttpRequestParser(self)
        self._head_is_known = False  # the parser is shown a head for the second time
        self._ended = False  # by a request that is the client's last
        self._last: HttpRequest | None = None  # that ended in what is being fed
        self._known: KnownHead | None = NO_HEAD  # of what was fed before, if that was a request alone and whole
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._route: Route | None = None
        self._headers: dict[bytes, bytes] = {}
        self._codings: list[bytes] = []  # values of Transfer-Encoding
        self._parts: list[bytes] = []
        self._nbytes = 0  # of the body, so far
        self._limit = self._max_input_size
        self._chunks = 0
        self._refusal: ServingError | None = None
        self._block: Block | None = None
        self._offset = 0
        self._in_head = True
        self._head_nbytes = 0  # of a head that did not come at once
        self._expected = 0  # bytes of a large body that no memory is reserved for yet
        self._admitted = 0
        self._length = 0  # of a large body, as announced
        self._header_nbytes = 0
        self._json = bytearray()  # the header, if it lies apart
        self._all_headers: Sequence[tuple[str, bytes]] = ()

    @property
    def is_idle(self) -> bool:
        """Nothing of a request has been seen."""
        return not self._url

    def feed(self, data: memoryview | bytes) -> None:
        """Raises BadRequest."""
        if self._ended or self._repeats(data):
            return
        whole, nbytes = data, len(data)
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserError as error:
            if self._ended:
                return
            raise BadRequest(self._failure or f"malformed HTTP request: {error}") from None
        if self._in_head:
            self._head_nbytes += nbytes
            if self._head_nbytes > _LONGEST_HEAD:
                raise BadRequest("the request line and headers are too long")
        last, self._last = self._last, None
        if self._refusal is not None:
            self.unwanted = self._length - self._nbytes
        elif self._block is not None and self._nbytes < self._block.nbytes - self._offset:
            self.rest = self._rest_of(self._block)
        elif last is not None:
            self._known = None if last.refusal is not None else self._heads.add(whole, last.head)

    def _repeats(self, data: memoryview | bytes) -> bool:
        """Whether it is what has come before, but for the body: then the parser, a tenth of a small request, is
        spared."""
        known = self._known
        if known is None:
            return False
        whole = bytes(data) if len(data) == known.nbytes else b""
        if not whole.startswith(known.text):
            known = self._known = self._heads.get(data)
            if known is None:
                return False
            whole = bytes(data)
            self._ended = not known.head.keep_alive
        self._on_request(HttpRequest(known.head, memoryview(whole)[len(known.text) :]))
        return True

    def received(self, nbytes: int) -> None:
        """So many bytes have been put at the start of ``rest``."""
        assert self.rest is not None
        self._nbytes += nbytes
        self.rest = self.rest[nbytes:]
        if not self.rest:
            assert self._block is not None
            self.rest = self._rest_of(self._block) or None
        if self.rest is None:
            self._parser = httptools.HttpRequestParser(self)  # the old one still waits for the body
            self._complete()

    def _rest_of(self, block: Block) -> memoryview:
        """Where the next bytes of the body go; the header's first, if that lies apart."""
        position = self._nbytes
        if position < len(self._json):
            return memoryview(self._json)[position:]
        return block.view[self._offset + position :]

    def dropped(self, nbytes: int) -> None:
        """So many bytes of those ``unwanted`` have been received, wherever."""
        self._nbytes += nbytes
        self.unwanted -= nbytes
        if not self.unwanted:
            self._parser = httptools.HttpRequestParser(self)
            self._complete()

    def close(self) -> None:
        if self._block is not None:
            self._store.free(self._block)
        if self._route is not None:
            self._admission.give_back(self._route.model, self._admitted)
        self.rest = None
        self._reset()

    def _parse(self, data: memoryview | bytes) -> memoryview | bytes:
        """What is left, where the parser stopped at an offer to upgrade. We stay with HTTP/1.1, which is allowed."""
        try:
            self._parser.feed_data(data)
            return b""
        except httptools.HttpParserUpgrade as upgrade:
            left = data[upgrade.args[0] :]
        self._parse_head_again()
        return left

    def _parse_head_again(self) -> None:
        """The parser takes what follows an offer for another protocol: a new one is told how the body is framed."""
        framing = [b"Transfer-Encoding: %b\r\n" % value for value in self._codings]
        length = self._headers.get(b"content-length")
        if length is not None:
            framing.append(b"Content-Length: %b\r\n" % length)
        if not self._keep_alive:
            framing.append(b"Connection: close\r\n")
        self._parser = httptools.HttpRequestParser(self)
        self._head_is_known = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))

    # --- called by the parser -----------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        if not self._head_is_known:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_is_known:
            return
        name = name.lower()
        if name in _WANTED:
            self._headers[name] = value
        elif name == b"transfer-encoding":
            self._codings.append(value)

    def on_headers_complete(self) -> None:
        if self._head_is_known:
            self._head_is_known = False
            return
        self._in_head = False
        parser = self._parser
        self._method: bytes = parser.get_method()
        self._keep_alive: bool = parser.should_keep_alive()
        self._http_1_0: bool = parser.get_http_version() == "1.0"
        self._route = find_route(self._url, self._method)
        length = self._headers.get(b"content-length", b"")
        if len(length) > 4:
            self._expect_body(length)
        if b"expect" in self._headers:
            self._on_expect()

    def on_chunk_header(self) -> None:
        self._chunks += 1
        infers = self._route is not None and self._route.endpoint == INFER
        if self._chunks == 1 and infers and b"inference-header-content-length" in self._headers:
            self._limit = 1 << 62  # tensors behind the header are not limited

    def on_body(self, data: bytes) -> None:
        if self._ended:
            return
        if self._chunks > _MAX_CHUNKS:
            self._fail(
                f"Chunked request body exceeds maximum of {_MAX_CHUNKS} non-empty chunks. Send fewer or larger HTTP "
                "chunks."
            )
        nbytes = self._nbytes + len(data)
        if self._block is not None:
            self._put(self._block, self._nbytes, data)
        elif nbytes <= self._limit:
            self._parts.append(data)
        else:
            self._parts.clear()
        self._nbytes = nbytes
        if self._expected and nbytes * _EARNED >= self._expected:
            self._reserve()

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade() and not self._ended:  # else only the head has come; or all, and more
            self._complete()

    # ------------------------------------------------------------------------------------------------------------

    def _fail(self, text: str) -> None:
        self._failure = text
        raise BadRequest(text)

    def _expect_body(self, length: bytes) -> None:
        """Decide where a body goes, by its announced size."""
        try:
            nbytes = int32("Content-Length", length)
        except InvalidArgument as error:
            self._fail(str(error))
        route = self._route
        if nbytes < LARGE_NBYTES or route is None or route.endpoint != INFER or self._method != route.method:
            return
        try:
            self._refusal = self._refuse(route, nbytes)
            header_nbytes = header_size(self._headers, nbytes)
            compressed = is_compressed(self._headers.get(b"content-encoding", b"identity"))
        except ServingError as error:
            self._refusal = self._refusal or error
        if self._refusal is not None:
            self._limit, self._length = 0, nbytes
            if b"expect" in self._headers:
                self._keep_alive = False  # it may send the body or not
                self._length = 0
                self._complete()
        elif not compressed and header_nbytes < nbytes and (header_nbytes or nbytes <= self._limit):
            self._limit = 1 << 62
            self._expected = nbytes
            self._header_nbytes = header_nbytes
            if nbytes <= _BELIEVED_NBYTES:
                self._reserve()

    def _reserve(self) -> None:
        """From here on the body is received into its block, unless shared memory is full."""
        nbytes, self._expected = self._expected, 0
        try:
            assert self._route is not None
            self._admission.admit(self._route.model, nbytes)
            self._admitted = nbytes
            self._block = self._place(self._route, nbytes)
        except ServingError as error:
            self._refusal, self._limit, self._length = error, 0, nbytes
            self._parts.clear()
            return
        except ShmFull:
            return
        begun = b"".join(self._parts)
        self._parts.clear()
        self._put(self._block, 0, begun)

    def _place(self, route: Route, nbytes: int) -> Block:
        """Raises ShmFull."""
        header_nbytes = self._header_nbytes
        row = self._take_row(route, nbytes - header_nbytes) if header_nbytes < LARGE_NBYTES else None
        if row is None:
            self._offset = -header_nbytes % ALIGNMENT
            return self._store.allocate(self._offset + nbytes)
        self._json = bytearray(header_nbytes)
        self._offset = -header_nbytes
        return row

    def _put(self, block: Block, position: int, data: bytes) -> None:
        """A part of the body."""
        apart = len(self._json) - position
        if apart > 0:
            self._json[position : position + min(apart, len(data))] = data[:apart]
            data = data[apart:]
            position += apart
        start = self._offset + position
        block.view[start : start + len(data)] = data

    def _complete(self) -> None:
        body: bytes | memoryview
        if self._block is not None:
            body = self._block.view[max(0, self._offset) :]
        else:
            parts = self._parts
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            if self._nbytes > self._limit and self._refusal is None:
                self._refusal = self._too_large()
        head = Head(self._route, self._method, self._headers, self._keep_alive, self._http_1_0, self._all_headers)
        offset = max(0, self._offset)
        request = HttpRequest(head, body, self._block, offset, self._refusal, self._admitted, bytes(self._json))
        self._ended = not self._keep_alive
        self._last = request if request.block is None else None
        self._reset()
        self._on_request(request)

    def _too_large(self) -> InvalidArgument:
        limit = (
            f"exceeds the maximum allowed {{}} of {self._max_input_size} bytes. Use --http-max-input-size to increase "
            "the limit."
        )
        if self._headers.get(b"content-encoding", b"identity") != b"identity":
            return InvalidArgument("Decompressed data size " + limit.format("value"))
        if self._headers.get(b"inference-header-content-length") == b"0":
            return InvalidArgument(f"Raw input has a byte_size ({self._nbytes} bytes) that " + limit.format("value"))
        return InvalidArgument(f"request JSON size of {self._nbytes} bytes " + limit.format("input size"))


class ForwardingReader(RequestReader):
    """Keeps all headers of each request."""

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_is_known:
            self._all_headers = (*self._all_headers, (name.decode("latin-1"), value))
        super().on_header(name, value)


def int32(name: str, value: bytes) -> int:
    """A header's number, read as C++ does: what follows the digits does not matter. Raises InvalidArgument."""
    if value.isdigit() and len(value) < 10:
        return int(value)
    text = value.decode("latin-1")
    found = _INTEGER.match(text)
    if not found:
        raise InvalidArgument(f"Unable to parse {name}, got: {text}")
    number = int(found[1][:21])
    if not _INT32_MIN <= number <= _INT32_MAX:
        raise InvalidArgument(
            f"Unable to parse {name}, value is out of range [ {_INT32_MIN}, {_INT32_MAX} ], got: {text}"
        )
    return number


def header_size(headers: dict[bytes, bytes], nbytes: int) -> int:
    """Size of the JSON header of an infer body of ``nbytes``: all of it without the HTTP header that tells, 0 for a
    raw request. Raises InvalidArgument."""
    value = headers.get(b"inference-header-content-length")
    if value is None:
        return nbytes
    size = int32("Inference-Header-Content-Length", value)
    if not 0 <= size <= nbytes:
        raise InvalidArgument(f"inference header size should be in range (0, {nbytes}), got: {size}")
    return size
