"""HTTP/2 as a client sees it: conversations frame by frame, then random ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http2 import frames
from gateway.http2.connection import CONNECTION_WINDOW, STREAM_WINDOW, Http2Connection
from gateway.http2.events import Data, Request, Reset
from gateway.http2.frame_reader import MAX_FRAME_NBYTES
from gateway.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    ErrorCode,
    frame,
)
from gateway.http2.headers import encode
from gateway.http2.sender import parts

REQUEST = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b"te", b"trailers"))
BLOCK = encode(REQUEST)
RESPONSE, TRAILERS = b"\x88", encode(((b"grpc-status", b"0"),))
HELLO = PREFACE + frames.settings({})

Frame = tuple[int, int, int, bytes]  # type, flags, stream, payload


def headers(stream: int, block: bytes = BLOCK, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, block)


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    return frame(DATA, flags, stream, payload)


def split(sent: bytes) -> list[Frame]:
    found = []
    while sent:
        high, low, kind, flags, stream = HEAD.unpack_from(sent)
        end = HEAD.size + (high << 16 | low)
        found.append((kind, flags, stream, sent[HEAD.size : end]))
        sent = sent[end:]
    return found


class Peer:
    """The client's end of a connection."""

    def __init__(self, hello: bytes = HELLO) -> None:
        self.core = Http2Connection(lambda headers: tuple(headers))
        self.seen: list[Any] = []
        self.now = 0.0
        self.greeting = self.sent()
        self.say(hello)
        self.sent()

    def say(self, *frames: bytes) -> list[Any]:
        events = [
            event._replace(data=bytes(event.data)) if isinstance(event, Data) else event
            for event in self.core.receive(b"".join(frames), self.now)
        ]
        self.core.check()
        self.seen += events
        return events

    def sent(self) -> list[Frame]:
        return split(b"".join(self.core.take()))

    def fails(self, *frames: bytes) -> ErrorCode:
        self.say(*frames)
        assert self.core.failed
        kind, _, stream, payload = self.sent()[-1]
        assert (kind, stream) == (GOAWAY, 0)
        return ErrorCode(int.from_bytes(payload[4:8], "big"))

    def resets(self, stream: int, *frames: bytes) -> ErrorCode:
        self.say(*frames)
        assert not self.core.failed
        kind, _, reset, payload = self.sent()[-1]
        assert (kind, reset) == (RST_STREAM, stream)
        return ErrorCode(int.from_bytes(payload, "big"))


@pytest.fixture
def peer() -> Peer:
    return Peer()


# --- a call ---------------------------------------------------------------------------------------------------------


def test_a_request_is_told_as_it_comes(peer: Peer) -> None:
    assert peer.say(headers(1)) == [Request(1, REQUEST, False)]
    assert peer.say(data(1, b"half")) == [Data(1, b"half", False)]
    assert peer.say(data(1, b"rest", END_STREAM)) == [Data(1, b"rest", True)]
    assert peer.sent() == []


def test_a_response_is_headers_data_and_trailers(peer: Peer) -> None:
    peer.say(headers(1, flags=END_HEADERS | END_STREAM))
    peer.core.send_headers(1, RESPONSE)
    peer.core.send_data(1, [b"one", b"two"], 6)
    peer.core.send_trailers(1, TRAILERS)
    assert peer.sent() == [
        (HEADERS, END_HEADERS, 1, RESPONSE),
        (DATA, 0, 1, b"onetwo"),
        (HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS),
    ]
    peer.core.send_headers(1, RESPONSE)
    peer.core.send_data(1, [b"late"], 4)
    assert peer.core.capacity(1) == 0 and peer.sent() == []


def test_a_client_that_still_sends_is_told_that_its_stream_has_ended(peer: Peer) -> None:
    peer.say(headers(1))
    peer.core.send_trailers(1, TRAILERS)
    assert peer.sent()[-1] == (RST_STREAM, 0, 1, bytes(4))
    assert peer.say(data(1, b"late", END_STREAM), frames.window_update(1, 5), headers(1)) == []
    assert peer.sent() == [] and not peer.core.failed


def test_padding_and_priorities_are_taken_off(peer: Peer) -> None:
    block = bytes((3,)) + bytes(5) + BLOCK + bytes(3)
    assert peer.say(headers(1, block, END_HEADERS | PADDED | WITH_PRIORITY)) == [Request(1, REQUEST, False)]
    assert peer.say(data(1, b"\x02abXX", PADDED)) == [Data(1, b"ab", False)]
    assert peer.say(data(1, b"\x00cd", PADDED | END_STREAM)) == [Data(1, b"cd", True)]


def test_a_block_may_come_in_continuations(peer: Peer) -> None:
    peer.say(headers(1, BLOCK[:3], END_STREAM), frame(CONTINUATION, 0, 1, BLOCK[3:9]))
    assert peer.say(frame(CONTINUATION, END_HEADERS, 1, BLOCK[9:])) == [Request(1, REQUEST, True)]


def test_the_client_s_trailers_end_its_request(peer: Peer) -> None:
    peer.say(headers(1))
    assert peer.say(headers(1, TRAILERS, END_HEADERS | END_STREAM)) == [Data(1, b"", True)]


def test_a_client_may_give_a_stream_up(peer: Peer) -> None:
    peer.say(headers(1))
    assert peer.say(frames.rst_stream(1, ErrorCode.CANCEL)) == [Reset(1)]
    assert peer.say(frames.rst_stream(1, ErrorCode.CANCEL)) == []


def test_a_payload_may_be_received_elsewhere(peer: Peer) -> None:
    whole = data(1, bytes(1000), END_STREAM)
    peer.say(headers(1), whole[:109])
    assert (peer.core.payload_of, peer.core.rest) == (1, 900)
    assert peer.core.received(899) == [] and peer.core.rest == 1
    assert peer.core.received(1) == [Data(1, b"", True)]
    assert peer.say(headers(3)) == [Request(3, REQUEST, False)]


def test_what_the_table_remembers_is_read_anew_when_the_table_changes(peer: Peer) -> None:
    encoder = hpack.Encoder()
    for stream, path in enumerate((b"/a", b"/a", b"/b", b"/a", b"/b", b"/b")):
        request = (*REQUEST[:2], (b":path", path))
        (event,) = peer.say(headers(2 * stream + 1, encoder.encode(request)))
        assert event.head == request


# --- settings, pings, the end -----------------------------------------------------------------------------------------


def test_the_server_greets_with_its_settings_and_a_wide_window(peer: Peer) -> None:
    (kind, _, stream, _), update = peer.greeting
    assert (kind, stream) == (SETTINGS, 0)
    assert update == (WINDOW_UPDATE, 0, 0, (CONNECTION_WINDOW - 65535).to_bytes(4, "big"))


def test_settings_and_pings_are_acknowledged(peer: Peer) -> None:
    peer.say(frames.settings({99: 1}), frame(PING, 0, 0, b"12345678"), frame(PING, ACK, 0, bytes(8)))
    assert peer.sent() == [(SETTINGS, ACK, 0, b""), (PING, ACK, 0, b"12345678")]


def test_what_is_unknown_or_does_not_concern_us_is_passed_over(peer: Peer) -> None:
    peer.say(frame(0x77, 0xFF, 9, bytes(500)), frame(PRIORITY, 0, 7, bytes(5)), frame(GOAWAY, 0, 0, bytes(8)))
    assert peer.say(headers(1)) == [Request(1, REQUEST, False)]
    assert peer.sent() == []


def test_a_smaller_table_is_consented_to_once(peer: Peer) -> None:
    peer.say(frames.settings({frames.HEADER_TABLE_SIZE: 0}), headers(1))
    peer.core.send_headers(1, RESPONSE)
    peer.core.send_trailers(1, TRAILERS)
    blocks = [payload for kind, _, _, payload in peer.sent() if kind == HEADERS]
    assert blocks == [b"\x20" + RESPONSE, TRAILERS]


def test_no_stream_is_taken_after_going_away(peer: Peer) -> None:
    peer.say(headers(1))
    peer.core.go_away()
    peer.core.go_away()
    assert peer.sent() == [(GOAWAY, 0, 0, b"\0\0\0\x01" + bytes(4))]
    assert peer.resets(3, headers(3)) == ErrorCode.REFUSED_STREAM
    assert peer.say(data(1, b"x")) == [Data(1, b"x", False)]


# --- flow control -----------------------------------------------------------------------------------------------------


def test_windows_are_given_back_in_large_steps(peer: Peer) -> None:
    peer.say(headers(1))
    large = data(1, bytes(MAX_FRAME_NBYTES))
    for _ in range(STREAM_WINDOW // MAX_FRAME_NBYTES // 2):
        peer.say(large)
    assert peer.sent() == []
    peer.say(large)
    assert peer.sent() == [(WINDOW_UPDATE, 0, 1, (STREAM_WINDOW // 2 + MAX_FRAME_NBYTES).to_bytes(4, "big"))]


def test_a_stream_sends_no_more_than_both_windows_allow(peer: Peer) -> None:
    peer.say(headers(1), headers(3))
    assert peer.core.capacity(1) == 65535
    peer.core.send_data(1, [bytes(65535)], 65535)
    assert peer.core.capacity(1) == peer.core.capacity(3) == 0
    peer.say(frames.window_update(0, 100_000))
    assert (peer.core.capacity(1), peer.core.capacity(3)) == (0, 65535)
    peer.say(frames.window_update(1, 10))
    assert peer.core.capacity(1) == 10


def test_a_window_may_become_negative_by_settings_and_grow_again(peer: Peer) -> None:
    peer.say(headers(1))
    peer.core.send_data(1, [bytes(100)], 100)
    peer.say(frames.settings({frames.INITIAL_WINDOW_SIZE: 50}))
    assert peer.core.capacity(1) == 0
    peer.say(frames.window_update(1, 50))
    assert peer.core.capacity(1) == 0
    peer.say(frames.window_update(1, 7))
    assert peer.core.capacity(1) == 7


def test_data_is_cut_to_the_client_s_frame_size(peer: Peer) -> None:
    peer.say(headers(1), frames.settings({frames.MAX_FRAME_SIZE: 20_000}))
    peer.sent()
    peer.core.send_data(1, [b"a" * 5, b"b" * 50_000], 50_005)
    sent = peer.sent()
    assert [len(payload) for _, _, _, payload in sent] == [20_000, 20_000, 10_005]
    assert b"".join(payload for _, _, _, payload in sent) == b"a" * 5 + b"b" * 50_000


@given(st.lists(st.binary(max_size=20), min_size=1), st.integers(1, 30))
def test_parts_are_the_buffers_cut(buffers: list[bytes], largest: int) -> None:
    whole = b"".join(buffers)
    cut = [(b"".join(part), size) for part, size in parts(buffers, len(whole), largest)]
    assert b"".join(part for part, _ in cut) == whole
    assert all(len(part) == size <= largest for part, size in cut)
    assert all(size == largest for _, size in cut[:-1])


# --- faults -----------------------------------------------------------------------------------------------------------

FATAL: Sequence[tuple[ErrorCode, bytes]] = (
    (ErrorCode.PROTOCOL_ERROR, headers(2)),
    (ErrorCode.PROTOCOL_ERROR, headers(0)),
    (ErrorCode.PROTOCOL_ERROR, data(0, b"x")),
    (ErrorCode.PROTOCOL_ERROR, data(5, b"x")),
    (ErrorCode.PROTOCOL_ERROR, data(1, b"\x05abcd", PADDED)),
    (ErrorCode.PROTOCOL_ERROR, data(1, b"", PADDED)),
    (ErrorCode.PROTOCOL_ERROR, headers(3, b"\x09abc", END_HEADERS | PADDED)),
    (ErrorCode.FRAME_SIZE_ERROR, headers(3, b"abc", END_HEADERS | WITH_PRIORITY)),
    (ErrorCode.PROTOCOL_ERROR, headers(3, BLOCK, 0) + data(1, b"")),
    (ErrorCode.PROTOCOL_ERROR, headers(3, BLOCK, 0) + frame(CONTINUATION, 0, 1, b"")),
    (ErrorCode.PROTOCOL_ERROR, frame(CONTINUATION, END_HEADERS, 1, b"")),
    (ErrorCode.PROTOCOL_ERROR, frame(PUSH_PROMISE, 0, 1, bytes(4))),
    (ErrorCode.PROTOCOL_ERROR, frame(SETTINGS, 0, 1, b"")),
    (ErrorCode.FRAME_SIZE_ERROR, frame(SETTINGS, 0, 0, b"12345")),
    (ErrorCode.FRAME_SIZE_ERROR, frame(SETTINGS, ACK, 0, bytes(6))),
    (ErrorCode.FLOW_CONTROL_ERROR, frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 31})),
    (ErrorCode.PROTOCOL_ERROR, frames.settings({frames.MAX_FRAME_SIZE: 100})),
    (ErrorCode.PROTOCOL_ERROR, frames.settings({frames.ENABLE_PUSH: 2})),
    (ErrorCode.PROTOCOL_ERROR, frame(PING, 0, 1, bytes(8))),
    (ErrorCode.FRAME_SIZE_ERROR, frame(PING, 0, 0, bytes(7))),
    (ErrorCode.PROTOCOL_ERROR, frame(GOAWAY, 0, 1, bytes(8))),
    (ErrorCode.FRAME_SIZE_ERROR, frame(GOAWAY, 0, 0, bytes(7))),
    (ErrorCode.PROTOCOL_ERROR, frame(PRIORITY, 0, 0, bytes(5))),
    (ErrorCode.FRAME_SIZE_ERROR, frame(PRIORITY, 0, 1, bytes(4))),
    (ErrorCode.PROTOCOL_ERROR, frames.rst_stream(5, ErrorCode.CANCEL)),
    (ErrorCode.FRAME_SIZE_ERROR, frame(RST_STREAM, 0, 1, bytes(3))),
    (ErrorCode.FRAME_SIZE_ERROR, frame(WINDOW_UPDATE, 0, 0, bytes(3))),
    (ErrorCode.PROTOCOL_ERROR, frames.window_update(0, 0)),
    (ErrorCode.PROTOCOL_ERROR, frames.window_update(5, 1)),
    (ErrorCode.FLOW_CONTROL_ERROR, frames.window_update(0, 2**31 - 1)),
    (ErrorCode.FRAME_SIZE_ERROR, frames.head(MAX_FRAME_NBYTES + 1, DATA, 0, 1)),
    (ErrorCode.ENHANCE_YOUR_CALM, frames.head(100_000, HEADERS, 0, 3)),
    (ErrorCode.COMPRESSION_ERROR, headers(3, b"\xff\xff\xff")),
    (ErrorCode.COMPRESSION_ERROR, headers(3, encode(((b"a", bytes(70_000)),))[:60_000])),
)


@pytest.mark.parametrize("code, said", FATAL)
def test_a_broken_rule_of_the_connection_ends_it(peer: Peer, code: ErrorCode, said: bytes) -> None:
    peer.say(headers(1))
    assert peer.fails(said) == code
    assert peer.say(headers(7)) == [] and peer.sent() == []


def test_a_broken_rule_of_a_stream_ends_that_one(peer: Peer) -> None:
    assert peer.resets(1, headers(1, BLOCK + encode(((b"Upper", b""),)))) == ErrorCode.PROTOCOL_ERROR
    assert peer.resets(3, headers(3, encode(REQUEST[1:]))) == ErrorCode.PROTOCOL_ERROR
    assert peer.resets(5, headers(5, BLOCK + encode(((b"connection", b"x"),)))) == ErrorCode.PROTOCOL_ERROR
    assert peer.resets(7, headers(7), headers(7)) == ErrorCode.PROTOCOL_ERROR
    assert peer.resets(9, headers(9), frames.window_update(9, 0)) == ErrorCode.PROTOCOL_ERROR
    assert peer.resets(11, headers(11), frames.window_update(11, 2**31 - 1)) == ErrorCode.FLOW_CONTROL_ERROR
    assert peer.resets(13, headers(13), data(13, b"", END_STREAM), data(13, b"x")) == ErrorCode.STREAM_CLOSED
    assert Reset(13) in peer.seen
    assert peer.say(headers(15)) == [Request(15, REQUEST, False)]


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", PREFACE + frame(PING, 0, 0, bytes(8))])
def test_another_protocol_is_told_so(hello: bytes) -> None:
    assert Peer(b"").fails(hello) == ErrorCode.PROTOCOL_ERROR


def test_more_than_the_window_is_too_much(peer: Peer) -> None:
    peer.say(headers(1))
    peer.core._streams[1].receivable = 10
    assert peer.resets(1, data(1, bytes(11))) == ErrorCode.FLOW_CONTROL_ERROR
    peer.core._receivable = 10
    assert peer.fails(data(1, bytes(11))) == ErrorCode.FLOW_CONTROL_ERROR


@pytest.mark.parametrize(
    "said",
    [
        headers(1) + frames.rst_stream(1, ErrorCode.CANCEL),
        frames.settings({}),
        frame(PING, 0, 0, bytes(8)),
        frame(PRIORITY, 0, 1, bytes(5)),
        frame(0x99, 0, 0, b""),
        headers(1) + data(1, b""),
    ],
    ids=["resets", "settings", "pings", "priorities", "unknown frames", "empty data"],
)
def test_a_flood_is_stopped_and_a_steady_trickle_is_not(said: bytes) -> None:
    def speak(peer: Peer, times: int, pause_s: float) -> None:
        for number in range(times):
            peer.now += pause_s
            peer.core.receive(said.replace(b"\0\0\0\x01", (2 * number + 1).to_bytes(4, "big")), peer.now)

    flooding, patient = Peer(), Peer()
    speak(flooding, 30_000, 0)
    assert flooding.core.failed
    speak(patient, 3_000, 0.01)
    assert not patient.core.failed


def test_too_many_streams_are_refused_one_by_one(peer: Peer) -> None:
    peer.say(*(headers(2 * stream + 1) for stream in range(16384)))
    assert peer.resets(32769, headers(32769)) == ErrorCode.REFUSED_STREAM


def test_a_block_in_endless_continuations_is_stopped(peer: Peer) -> None:
    peer.say(headers(1, b"", 0))
    for _ in range(100):
        peer.say(frame(CONTINUATION, 0, 1, b""))
    assert peer.core.failed


# --- random conversations ---------------------------------------------------------------------------------------------

STREAMS = st.sampled_from([1, 3, 5, 7])
FRAMES = st.one_of(
    st.builds(headers, STREAMS, flags=st.sampled_from([END_HEADERS, END_HEADERS | END_STREAM])),
    st.builds(data, STREAMS, st.binary(max_size=50), st.sampled_from([0, 0, END_STREAM])),
    st.builds(frames.window_update, st.sampled_from([0, 1, 3]), st.integers(1, 1 << 20)),
    st.builds(frames.rst_stream, STREAMS, st.just(ErrorCode.CANCEL)),
    st.builds(lambda size: frames.settings({frames.INITIAL_WINDOW_SIZE: size}), st.integers(0, 1 << 20)),
    st.just(frame(PING, 0, 0, bytes(8))),
    st.builds(frame, st.integers(0, 12), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=30)),
)


@given(st.binary(), st.booleans())
def test_no_bytes_are_too_much_for_it(said: bytes, greeted: bool) -> None:
    Peer(HELLO if greeted else b"").say(said)


@given(st.lists(FRAMES, max_size=30), st.lists(st.integers(1, 60), min_size=1))
def test_it_does_not_matter_where_the_bytes_are_cut(said: list[bytes], cuts: list[int]) -> None:
    whole, cut = Peer(), Peer()
    rest = b"".join(said)
    whole.say(rest)
    number = 0
    while rest:
        cut.say(rest[: cuts[number % len(cuts)]])
        rest = rest[cuts[number % len(cuts)] :]
        number += 1
    assert joined(cut.seen) == joined(whole.seen)
    assert cut.sent() == whole.sent()


def joined(events: list[Any]) -> list[Any]:
    """Parts of a stream's data that follow each other as one; an empty part is none."""
    result: list[Any] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Data) and isinstance(last, Data) and last.stream == event.stream and not last.ended:
            result[-1] = Data(event.stream, bytes(last.data) + bytes(event.data), event.ended)
        elif not isinstance(event, Data) or len(event.data) or event.ended:
            result.append(event)
    return result


SENDS = st.tuples(STREAMS, st.integers(0, 100_000))


@given(st.lists(st.one_of(FRAMES, SENDS), max_size=40))
def test_what_is_sent_never_exceeds_the_windows(steps: list[Any]) -> None:
    peer = Peer()
    for step in steps:
        if isinstance(step, bytes):
            peer.say(step)
        else:
            stream, nbytes = step
            nbytes = min(nbytes, peer.core.capacity(stream))
            peer.core.send_data(stream, [bytes(nbytes)], nbytes)
        peer.core.check()
