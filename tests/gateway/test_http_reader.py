"""HTTP/1 bytes to Requests, cut at every place; no socket."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import pytest

from gateway.admission import Admission
from gateway.batch_rows import BatchRows
from gateway.http_reader import LARGE_NBYTES, BadRequest, HttpRequest, RequestReader
from gateway.http_routes import Route
from gateway.known_heads import KnownHeads
from metrics.pressure import Pressure
from protocol.errors import InvalidArgument, NotFound, ServingError, Unavailable
from shm.store import Block, Store
from tests.gateway.fake_bus import memory_in_use

INFER = b"POST /v2/models/m/infer HTTP/1.1\r\n"
CHUNKED = INFER + b"Transfer-Encoding: chunked\r\n\r\n"
LARGE = bytes(range(256)) * (LARGE_NBYTES // 256 + 1)


class Received:
    """A reader and what came out of it."""

    def __init__(
        self,
        store: Store,
        max_input_size: int = 1 << 20,
        admission: Admission | None = None,
        rows: BatchRows | None = None,
        heads: KnownHeads | None = None,
    ) -> None:
        self.requests: list[HttpRequest] = []
        self.rows = rows
        self.expected = 0
        self.refusal: ServingError | None = None
        self.reader = RequestReader(
            store, max_input_size, self.requests.append, self._expect, self._refuse, admission, self._take_row, heads
        )

    def _expect(self) -> None:
        self.expected += 1

    def _refuse(self, route: Route, nbytes: int) -> ServingError | None:
        return self.refusal

    def _take_row(self, route: Route, nbytes: int) -> Block | None:
        slot = None if self.rows is None else self.rows.take((nbytes,))
        return None if slot is None else slot.block

    def feed(self, data: bytes, step: int = 1 << 18) -> list[HttpRequest]:
        """As a socket would: into ``rest`` while there is one, and nowhere what is unwanted."""
        position = 0
        while position < len(data):
            rest = self.reader.rest
            if self.reader.unwanted:
                nbytes = min(step, self.reader.unwanted, len(data) - position)
                self.reader.dropped(nbytes)
                position += nbytes
            elif rest is None:
                self.reader.feed(memoryview(data)[position : position + step])
                position += step
            else:
                part = data[position : position + min(step, len(rest))]
                rest[: len(part)] = part
                self.reader.received(len(part))
                position += len(part)
        return self.requests


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(str(tmp_path))
    yield store
    store.close()


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_request_may_come_in_any_pieces(store: Store, step: int) -> None:
    head = INFER + b"host: x\r\nINFERENCE-header-content-length: 3\r\nContent-Length: 5\r\n\r\n"
    [request] = Received(store).feed(head + b"abcde", step)
    assert request.head.route == Route("infer", b"POST", "m")
    assert request.head.method == b"POST" and request.head.keep_alive and not request.head.http_1_0
    assert request.head.headers == {b"inference-header-content-length": b"3", b"content-length": b"5"}
    assert request.body == b"abcde" and request.block is None


def test_requests_come_in_order(store: Store) -> None:
    requests = Received(store).feed(b"GET /v2 HTTP/1.1\r\n\r\nGET /x HTTP/1.0\r\n\r\n")
    assert [request.head.route for request in requests] == [Route("server_metadata", b"GET"), None]
    assert requests[0].head.keep_alive and not requests[1].head.keep_alive
    assert requests[1].head.http_1_0


def post(body: bytes, headers: bytes = b"", path: bytes = b"m") -> bytes:
    head = b"POST /v2/models/%b/infer HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (path, headers, len(body))
    return head + body


PIECES = (
    post(b"ab"),
    post(b"cd"),
    post(b"\r\n\r\n"),
    post(b"ab", b"Expect: 100-continue\r\n"),
    post(b"ab", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"),
    post(b"ab", b"Connection: close\r\n"),
    post(b"ab") + post(b"cd"),
    post(b"ab")[:-1],
    post(b"ab", b"\r\n"),  # the length is behind the head
    CHUNKED + b"2\r\nab\r\n0\r\n\r\n",
    b"P",
    b"\r\n",
)


@pytest.mark.parametrize("first", PIECES)
def test_a_head_that_comes_again_is_read_as_if_it_were_new(store: Store, first: bytes) -> None:
    """As by a reader that gets all of it at once, where none comes again. Of the others each knows what came before."""
    heads = KnownHeads()
    for pieces in product([first], PIECES, PIECES):
        piecewise, at_once = Received(store, heads=heads), Received(store)
        refused = [False, False]
        for number, (received, parts) in enumerate(((piecewise, pieces), (at_once, [b"".join(pieces)]))):
            try:
                for part in parts:
                    received.feed(part)
            except BadRequest:
                refused[number] = True
        assert refused[0] == refused[1], pieces
        assert piecewise.requests == at_once.requests, pieces
        assert piecewise.expected == at_once.expected, pieces


def test_the_parser_is_spared_what_it_has_read_before(store: Store) -> None:
    received = Received(store)
    received.feed(post(b"ab"))
    known = received.requests[0].head.headers
    received.feed(post(b"cd"))
    received.feed(post(b"c"))
    received.feed(post(b"ef"))
    assert [request.body for request in received.requests] == [b"ab", b"cd", b"c", b"ef"]
    assert [request.head.headers is known for request in received.requests] == [True, True, False, True]


def test_what_one_connection_has_read_no_other_reads_again(store: Store) -> None:
    heads = KnownHeads()
    first, second = Received(store, heads=heads), Received(store, heads=heads)
    for received in (first, second):
        for model in (b"a", b"b", b"a"):
            received.feed(post(b"x", path=model))
    assert len({id(request.head) for received in (first, second) for request in received.requests}) == 2
    assert [request.head.route.model for request in second.requests if request.head.route] == ["a", "b", "a"]


def test_no_more_than_so_many_heads_are_remembered(store: Store) -> None:
    heads = KnownHeads()
    received = Received(store, heads=heads)
    for number in range(3000):
        received.feed(post(b"x", b"X: %d\r\n" % number))
    assert len(received.requests) == 3000 and 0 < len(heads) <= 1024


@pytest.mark.parametrize("step", [1000, 1 << 18])
def test_a_large_body_lands_in_a_block_with_its_tensors_aligned(store: Store, step: int) -> None:
    received = Received(store)
    head = INFER + b"Inference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    [request, after] = received.feed(head + LARGE + b"GET /v2 HTTP/1.1\r\n\r\n", step)[:2]
    assert request.block is not None and request.body == LARGE
    assert (request.offset + 100) % 64 == 0
    assert request.block.view[request.offset :] == LARGE
    assert after.head.route is not None and after.head.route.endpoint == "server_metadata"
    store.free(request.block)
    assert memory_in_use(store) == 0


@pytest.mark.parametrize("step", [1, 99, 100, 101, 7777, 1 << 20])
@pytest.mark.parametrize("header_nbytes", [0, 100])
@pytest.mark.parametrize("nbytes", [LARGE_NBYTES, 5 << 18])
def test_tensors_of_requests_that_may_make_a_batch_land_side_by_side(
    store: Store, step: int, header_nbytes: int, nbytes: int
) -> None:
    if step == 1 and nbytes > LARGE_NBYTES:
        return
    received = Received(store, 4 << 20, rows=BatchRows(store, 8))
    head = INFER + b"Inference-Header-Content-Length: %d\r\n" % header_nbytes
    for mark in b"abc":
        header, tensor = bytes(range(header_nbytes)), bytes([mark]) * nbytes
        received.feed(head + b"Content-Length: %d\r\n\r\n" % (header_nbytes + nbytes) + header + tensor, step)
    received.feed(b"GET /v2 HTTP/1.1\r\n\r\n")
    *requests, after = received.requests
    assert after.head.route is not None and after.head.route.endpoint == "server_metadata"
    blocks = [request.block for request in requests if request.block is not None]
    for request, mark in zip(requests, b"abc", strict=True):
        assert request.json == bytes(range(header_nbytes))
        assert request.body == bytes([mark]) * nbytes
        assert request.offset == 0
    assert [b.offset - a.offset for a, b in pairwise(blocks)] == [nbytes, nbytes]
    for block in blocks:
        assert block.offset % 64 == 0
        store.free(block)


def test_a_tensor_that_comes_to_no_end_gives_its_place_back(store: Store) -> None:
    rows = BatchRows(store, 8)
    received = Received(store, rows=rows)
    head = INFER + b"Inference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n" % (100 + LARGE_NBYTES)
    for length in (0, 50, 100, 5000):
        received.feed(head + b"x" * length)
        received.reader.close()
        received = Received(store, rows=rows)
    assert not rows.trim() or not rows.trim()
    assert memory_in_use(store) == 0


def test_a_large_raw_body_lands_in_a_block_too(store: Store) -> None:
    head = INFER + b"Inference-Header-Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    [request] = Received(store).feed(head + LARGE)
    assert request.block is not None and request.offset == 0 and request.body == LARGE


def test_without_shared_memory_a_large_body_is_collected(tmp_path: Path) -> None:
    head = INFER + b"Inference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    [request] = Received(Store(str(tmp_path), limit=0)).feed(head + LARGE, 1000)
    assert request.block is None and request.body == LARGE


def test_a_large_json_body_needs_no_block(store: Store) -> None:
    [request] = Received(store).feed(INFER + b"Content-Length: %d\r\n\r\n" % len(LARGE) + LARGE)
    assert request.block is None and request.body == LARGE


def test_a_refused_body_is_thrown_away(store: Store) -> None:
    received = Received(store)
    received.refusal = NotFound("no such model")
    head = INFER + b"Inference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    [request] = received.feed(head + LARGE, 1000)
    assert request.refusal is received.refusal and not request.body and request.block is None


def test_what_follows_a_refused_body_is_served(store: Store) -> None:
    received = Received(store)
    received.refusal = Unavailable("full")
    head = INFER + b"Inference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    received.feed(head, 1000)
    assert not received.requests and received.reader.unwanted == len(LARGE)
    refused, after = received.feed(LARGE + b"GET /v2 HTTP/1.1\r\n\r\n", 1000)
    assert refused.refusal is received.refusal and refused.head.keep_alive
    assert after.head.route is not None and after.head.route.endpoint == "server_metadata"


def test_a_client_that_asks_first_is_refused_before_it_sends_its_body(store: Store) -> None:
    received = Received(store)
    received.refusal = Unavailable("full")
    head = INFER + b"Expect: 100-continue\r\nInference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n"
    [request] = received.feed(head % len(LARGE))
    assert request.refusal is received.refusal and not request.head.keep_alive
    assert received.expected == 0
    assert received.feed(LARGE + b"GET /v2 HTTP/1.1\r\n\r\n", 1000) == [request], "whatever it sends all the same"


def test_bytes_count_from_their_reservation_to_the_end_of_a_connection_that_breaks_off(store: Store) -> None:
    pressure = Pressure()
    admission = Admission(pressure, 3 << 20)
    received = Received(store, admission=admission)
    head = INFER + b"Inference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n" % (2 << 20)
    received.feed(head)
    assert pressure.nbytes == 0, "what is announced is not believed"
    received.feed(bytes(1 << 20), 1 << 18)
    assert pressure.nbytes == 2 << 20
    other = Received(store, admission=admission)
    [request] = other.feed(head + bytes(2 << 20))
    assert isinstance(request.refusal, Unavailable) and request.block is None and request.admitted == 0
    assert "model 'm'" in str(request.refusal) and "--max-queued-bytes=3145728" in str(request.refusal)
    received.reader.close()
    assert pressure.nbytes == 0 and memory_in_use(store) == 0


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        (b"", "request JSON size of {} bytes exceeds the maximum allowed input size of 1000 bytes. Use {}"),
        (
            b"Inference-Header-Content-Length: 0\r\n",
            "Raw input has a byte_size ({} bytes) that exceeds the maximum allowed value of 1000 bytes. Use {}",
        ),
        (
            b"Content-Encoding: gzip\r\n",
            "Decompressed data size exceeds the maximum allowed value of 1000 bytes. Use {1}",
        ),
    ],
)
def test_a_body_past_the_limit_is_thrown_away(store: Store, headers: bytes, text: str) -> None:
    head = INFER + headers + b"Content-Length: %d\r\n\r\n" % len(LARGE)
    [request] = Received(store, max_input_size=1000).feed(head + LARGE, 1000)
    assert isinstance(request.refusal, InvalidArgument) and not request.body
    assert str(request.refusal) == text.format(len(LARGE), "--http-max-input-size to increase the limit.")


def test_binary_tensors_are_not_limited(store: Store) -> None:
    head = INFER + b"Inference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    [request] = Received(store, max_input_size=1000).feed(head + LARGE, 1000)
    assert request.refusal is None and request.body == LARGE
    chunks = INFER + b"Inference-Header-Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + bytes(2000)
    [request] = Received(store, max_input_size=1000).feed(chunks + b"\r\n0\r\n\r\n", 100)
    assert request.refusal is None and len(request.body) == 2000


def test_a_body_may_come_in_chunks_of_one_byte(store: Store) -> None:
    [request] = Received(store).feed(CHUNKED + b"1\r\nx\r\n" * 65536 + b"0\r\n\r\n", 5000)
    assert request.body == b"x" * 65536


def test_too_many_chunks_are_refused(store: Store) -> None:
    with pytest.raises(
        BadRequest, match=r"^Chunked request body exceeds maximum of 65536 non-empty chunks\. Send fewer"
    ):
        Received(store).feed(CHUNKED + b"1\r\nx\r\n" * 65537 + b"0\r\n\r\n", 5000)


@pytest.mark.parametrize("length", [b"2147483648", b"99999999999"])
def test_a_content_length_past_32_bits_is_refused(store: Store, length: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        Received(store).feed(INFER + b"Content-Length: " + length + b"\r\n\r\n")
    assert str(caught.value) == (
        "Unable to parse Content-Length, value is out of range [ -2147483648, 2147483647 ], got: " + length.decode()
    )


@pytest.mark.parametrize("data", [b"hello\r\n\r\n", b"GET /a b HTTP/1.1\r\n\r\n", CHUNKED + b"zz\r\n"])
def test_what_is_not_http_is_refused(store: Store, data: bytes) -> None:
    with pytest.raises(BadRequest):
        Received(store).feed(data)


def test_expect_is_reported_before_the_body(store: Store) -> None:
    received = Received(store)
    received.feed(INFER + b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\n")
    assert received.expected == 1 and not received.requests and not received.reader.is_idle


def test_an_offer_to_upgrade_is_ignored(store: Store) -> None:
    offer = b"GET /v2 HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n"
    requests = Received(store).feed(offer + b"GET /v2/health/live HTTP/1.1\r\n\r\n")
    assert [request.head.route and request.head.route.endpoint for request in requests] == ["server_metadata", "live"]


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
BODIES = [
    (b"Content-Length: 5\r\n", b"abcde", b"abcde"),
    (b"Transfer-Encoding: chunked\r\n", b"2\r\nab\r\n3\r\ncde\r\n0\r\nX: y\r\n\r\n", b"abcde"),
    (b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", b"1\r\na\r\n0\r\n\r\n", b"a"),
    (b"Content-Length: 0\r\n", b"", b""),
    (b"", b"", b""),
]


@pytest.mark.parametrize(("framing", "sent", "body"), BODIES)
def test_the_body_behind_an_offer_to_upgrade_is_read_however_it_comes(
    store: Store, framing: bytes, sent: bytes, body: bytes
) -> None:
    data = (INFER + OFFER + framing + b"\r\n" + sent) * 2 + b"GET /v2 HTTP/1.1\r\n\r\n"
    for cut in range(len(data) + 1):
        received = Received(store)
        received.feed(data[:cut])
        requests = received.feed(data[cut:])
        assert [request.body for request in requests] == [body, body, b""]
        assert [request.head.route and request.head.route.endpoint for request in requests] == [
            "infer",
            "infer",
            "server_metadata",
        ]
    assert len(Received(store).feed(data, 1)) == 3


def test_a_large_body_behind_an_offer_to_upgrade_lands_in_a_block(store: Store) -> None:
    received = Received(store)
    head = INFER + OFFER + b"Inference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n" % len(LARGE)
    [request, after] = received.feed(head + LARGE + b"GET /v2 HTTP/1.1\r\n\r\n", 1000)
    assert request.block is not None and request.body == LARGE
    assert after.head.route is not None and after.head.route.endpoint == "server_metadata"


@pytest.mark.parametrize(
    "framing",
    [
        b"Transfer-Encoding: gzip\r\n",
        b"Transfer-Encoding:\r\n",
        b"Transfer-Encoding: chunked, gzip\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 1\r\nContent-Length: 1\r\n",
        b"Content-Length: +1\r\n",
        b"Content-Length:\r\n",
    ],
)
@pytest.mark.parametrize("offer", [b"", OFFER])
def test_a_body_without_a_clear_end_is_refused(store: Store, offer: bytes, framing: bytes) -> None:
    with pytest.raises(BadRequest):
        Received(store).feed(INFER + offer + framing + b"\r\n0\r\n\r\n")


def test_thousands_of_offers_may_come_at_once(store: Store) -> None:
    assert len(Received(store).feed((b"GET /v2 HTTP/1.1\r\n" + OFFER + b"\r\n") * 2000)) == 2000


def test_a_connect_is_a_request_like_others(store: Store) -> None:
    requests = Received(store).feed(b"CONNECT a:80 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET /v2 HTTP/1.1\r\n\r\n")
    assert [(request.head.method, request.body) for request in requests] == [(b"CONNECT", b"abc"), (b"GET", b"")]


@pytest.mark.parametrize("offer", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
def test_nothing_is_read_after_a_clients_last_request(store: Store, offer: bytes) -> None:
    received = Received(store)
    received.feed(INFER + b"Connection: close\r\n" + offer + b"Content-Length: 1\r\n\r\naGET /v2 HTTP/1.1\r\n\r\n")
    [request] = received.feed(b"GET /v2 HTTP/1.1\r\n\r\n")
    assert request.body == b"a" and not request.head.keep_alive


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"-1", "inference header size should be in range (0, {}), got: -1"),
        (b"99999999", "inference header size should be in range (0, {}), got: 99999999"),
        (b"abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        (
            b"99999999999",
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
            "99999999999",
        ),
    ],
)
def test_a_bad_header_length_spares_the_memory(store: Store, value: bytes, text: str) -> None:
    head = INFER + b"Inference-Header-Content-Length: %b\r\nContent-Length: %d\r\n\r\n" % (value, len(LARGE))
    [request] = Received(store).feed(head + LARGE)
    assert str(request.refusal) == text.format(len(LARGE)) and not request.body


def test_closing_frees_the_block_of_an_unfinished_request(store: Store) -> None:
    received = Received(store)
    received.feed(INFER + b"Inference-Header-Content-Length: 10\r\nContent-Length: %d\r\n\r\nabc" % len(LARGE))
    assert memory_in_use(store) > 0
    received.reader.close()
    assert memory_in_use(store) == 0
