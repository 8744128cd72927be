"""One connection, the server's end, without I/O: bytes in, events out; calls in, bytes out.

    receive(bytes) -> [Request | Data | Reset, ...]          send_headers, send_data, send_trailers, reset -> take()

DATA is handed on as it comes and counts as consumed at once: whoever takes the events bounds what is kept. What goes
out is bounded by the peer's windows: ``capacity`` says how much DATA a stream may send now, and ``send_data`` must not
be given more.

A payload's end that lies in the peer's hands for long needs no copy here: ``rest`` bytes of DATA may be received
elsewhere, and told by ``received``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.http2 import frames
from gateway.http2.allowance import Allowance
from gateway.http2.events import Buffer, ConnectionFault, Data, Event, Request, Reset
from gateway.http2.frame_reader import MAX_FRAME_NBYTES, FrameReader
from gateway.http2.frames import (
    ACK,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    NUMBER,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    ErrorCode,
)
from gateway.http2.headers import MAX_LIST_NBYTES, BadBlock, HeaderReader, Headers, Malformed
from gateway.http2.sender import Sender

MAX_STREAMS = 16384
STREAM_WINDOW = 64 << 20
CONNECTION_WINDOW = 1 << 30
# Pings, resets, settings and the like: a client that cancels by the thousand is at home here, a flood is not.
_BURST, _PER_SECOND = 20_000, 2_000
_OUR_SETTINGS = frames.settings(
    {
        frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
        frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        frames.MAX_FRAME_SIZE: MAX_FRAME_NBYTES,
        frames.MAX_HEADER_LIST_SIZE: MAX_LIST_NBYTES,
    }
)
_GREETING = _OUR_SETTINGS + frames.window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)


class _Stream:
    """Invariant: it is in ``Connection._streams`` until both ends have ended or one of them has reset it."""

    __slots__ = ("ended", "id", "open", "receivable", "sent_less")

    def __init__(self, id: int) -> None:
        self.id = id
        self.sent_less = 0  # what the peer has granted by WINDOW_UPDATE, less what has been sent
        self.receivable = STREAM_WINDOW
        self.ended = False  # the client's end
        self.open = True


class Http2Connection:
    """Invariants: ``take`` gives whole frames, in order; the DATA sent never exceeds what the peer has granted."""

    def __init__(self, interpret: Callable[[Headers], Any]) -> None:
        self.failed = False  # GOAWAY is on its way: send what ``take`` gives, then close
        self._frames = FrameReader(self)
        self._headers: HeaderReader[Any] = HeaderReader(interpret)
        self._sender = Sender(_GREETING)
        self._write = self._sender.write
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        self._refusing = False  # new streams, after GOAWAY
        self._events: list[Event] = []
        self._allowance = Allowance(_BURST, _PER_SECOND)
        self._now = 0.0
        self._payload_of: _Stream | None = None
        self._receivable = CONNECTION_WINDOW
        self._handlers: dict[int, Callable[[int, int, memoryview], None]] = {
            PRIORITY: self._on_priority,
            RST_STREAM: self._on_rst_stream,
            SETTINGS: self._on_settings,
            PUSH_PROMISE: self._on_push_promise,
            PING: self._on_ping,
            GOAWAY: self._on_goaway,
            WINDOW_UPDATE: self._on_window_update,
        }

    # --- receiving ------------------------------------------------------------------------------------------------

    def receive(self, data: Buffer, now: float) -> list[Event]:
        """Never raises for what a peer may send; see ``failed``. ``now`` is in seconds, and never goes back."""
        if self.failed:
            return []
        self._now = now
        try:
            self._frames.feed(memoryview(data))
        except ConnectionFault as fault:
            self._fail(fault)
        return self._told()

    @property
    def rest(self) -> int:
        """Bytes of a payload under way, without its padding."""
        return self._frames.rest

    @property
    def payload_of(self) -> int:
        """The stream that ``rest`` belongs to, 0 if it is to be thrown away."""
        return self._payload_of.id if self._payload_of is not None and self._payload_of.open else 0

    def received(self, nbytes: int) -> list[Event]:
        """So many of the ``rest`` have been put where they belong, past us."""
        self._frames.skipped(nbytes)
        return self._told()

    def _told(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def spend(self) -> None:
        if not self._allowance.spend(self._now):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too much of that")

    # --- DATA -----------------------------------------------------------------------------------------------------

    def on_data_frame(self, id: int, nbytes: int, ended: bool) -> None:
        stream = self._receiver(id)
        self._count_connection(nbytes)
        if stream is not None and not self._count(stream, nbytes, ended):
            stream = None
        self._payload_of = stream

    def _receiver(self, id: int) -> _Stream | None:
        stream = self._streams.get(id)
        if stream is None:
            self._check_not_idle(id)
        elif stream.ended:
            self._fault(stream, ErrorCode.STREAM_CLOSED)
            return None
        return stream

    def on_data(self, data: Buffer, ended: bool) -> None:
        stream = self._payload_of
        if stream is not None and stream.open:
            stream.ended = ended
            self._events.append(Data(stream.id, data, ended))

    def _count_connection(self, nbytes: int) -> None:
        if nbytes > self._receivable:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the connection's window")
        self._receivable -= nbytes
        if self._receivable < CONNECTION_WINDOW // 2:
            self._write(frames.window_update(0, CONNECTION_WINDOW - self._receivable))
            self._receivable = CONNECTION_WINDOW

    def _count(self, stream: _Stream, nbytes: int, ends: bool) -> bool:
        if nbytes > stream.receivable:
            self._fault(stream, ErrorCode.FLOW_CONTROL_ERROR)
            return False
        stream.receivable -= nbytes
        if stream.receivable < STREAM_WINDOW // 2 and not ends:
            self._write(frames.window_update(stream.id, STREAM_WINDOW - stream.receivable))
            stream.receivable = STREAM_WINDOW
        return True

    # --- headers --------------------------------------------------------------------------------------------------

    def on_block(self, id: int, block: bytes, ended: bool) -> None:
        try:
            if id > self._last_stream:
                self._last_stream = id
                self._open(id, self._headers.read(block), ended)
                return
            self._headers.decode(block)
        except BadBlock as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        except Malformed:
            self._refuse(id, ErrorCode.PROTOCOL_ERROR)
            return
        self._on_trailers(id, ended)

    def _open(self, id: int, head: Any, ended: bool) -> None:
        if self._refusing or len(self._streams) >= MAX_STREAMS:
            self._refuse(id, ErrorCode.REFUSED_STREAM)
            return
        stream = self._streams[id] = _Stream(id)
        stream.ended = ended
        self._events.append(Request(id, head, ended))

    def _on_trailers(self, id: int, ended: bool) -> None:
        stream = self._streams.get(id)
        if stream is None:
            return  # sent before the client knew that the stream was closed
        if stream.ended:
            self._fault(stream, ErrorCode.STREAM_CLOSED)
        elif not ended:
            self._fault(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            stream.ended = True
            self._events.append(Data(id, b"", True))

    # --- the other frames -----------------------------------------------------------------------------------------

    def on_frame(self, kind: int, stream: int, flags: int, payload: memoryview) -> None:
        self._handlers[kind](stream, flags, payload)

    def _on_priority(self, id: int, flags: int, payload: memoryview) -> None:
        self.spend()
        if not id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY of the connection")
        if len(payload) != 5:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")

    def _on_rst_stream(self, id: int, flags: int, payload: memoryview) -> None:
        self.spend()
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        stream = self._streams.get(id)
        if stream is None:
            self._check_not_idle(id)
        else:
            self._forget(stream)
            self._events.append(Reset(id))

    def _on_settings(self, id: int, flags: int, payload: memoryview) -> None:
        self.spend()
        if id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        if not flags & ACK:
            for name, value in SETTING.iter_unpack(payload):
                self._sender.set(name, value)
            self._write(frames.frame(SETTINGS, ACK, 0, b""))

    def _on_push_promise(self, id: int, flags: int, payload: memoryview) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client cannot push")

    def _on_ping(self, id: int, flags: int, payload: memoryview) -> None:
        self.spend()
        if id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PING of a wrong size")
        if not flags & ACK:
            self._write(frames.frame(PING, ACK, 0, bytes(payload)))

    def _on_goaway(self, id: int, flags: int, payload: memoryview) -> None:
        """The client takes no streams of ours, of which there are none; its own go on."""
        self.spend()
        if id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY of a wrong size")

    def _on_window_update(self, id: int, flags: int, payload: memoryview) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        nbytes = NUMBER.unpack(payload)[0] & STREAM_MASK
        if not id:
            if not nbytes:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            self._sender.grant(nbytes)
            return
        stream = self._streams.get(id)
        if stream is None:
            self._check_not_idle(id)
            return
        stream.sent_less += nbytes
        if not nbytes:
            self._fault(stream, ErrorCode.PROTOCOL_ERROR)
        elif self._sender.overflows(stream.sent_less):
            self._fault(stream, ErrorCode.FLOW_CONTROL_ERROR)

    # --- faults ---------------------------------------------------------------------------------------------------

    def _check_not_idle(self, id: int) -> None:
        if not id & 1 or id > self._last_stream:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame of a stream that was never opened")

    def _fault(self, stream: _Stream, code: ErrorCode) -> None:
        self._forget(stream)
        self._events.append(Reset(stream.id))
        self._refuse(stream.id, code)

    def _refuse(self, id: int, code: ErrorCode) -> None:
        self.spend()
        self._write(frames.rst_stream(id, code))

    def _fail(self, fault: ConnectionFault) -> None:
        self.failed = True
        self._frames.stop()
        self._write(frames.goaway(self._last_stream, fault.code, str(fault).encode()))

    def _forget(self, stream: _Stream) -> None:
        stream.open = False
        del self._streams[stream.id]

    # --- sending --------------------------------------------------------------------------------------------------

    def capacity(self, id: int) -> int:
        """The bytes of DATA that the stream may send now."""
        stream = self._streams.get(id)
        return 0 if stream is None else self._sender.capacity(stream.sent_less)

    def send_headers(self, id: int, block: bytes) -> None:
        """A stream that is gone sends nothing; so with the calls below."""
        if id in self._streams:
            self._sender.block(id, block, END_HEADERS)

    def send_data(self, id: int, buffers: Sequence[Buffer], nbytes: int) -> None:
        """``nbytes`` is the buffers' size, and no more than ``capacity``."""
        stream = self._streams.get(id)
        if stream is None:
            return
        assert nbytes <= self.capacity(id)
        stream.sent_less -= nbytes
        self._sender.data(id, buffers, nbytes)

    def send_trailers(self, id: int, block: bytes) -> None:
        """The stream's end. A client that still sends is told that nobody listens."""
        stream = self._streams.get(id)
        if stream is None:
            return
        self._sender.block(id, block, END_HEADERS | END_STREAM)
        if not stream.ended:
            self._write(frames.rst_stream(id, ErrorCode.NO_ERROR))
        self._forget(stream)

    def reset(self, id: int, code: ErrorCode) -> None:
        stream = self._streams.get(id)
        if stream is not None:
            self._forget(stream)
            self._write(frames.rst_stream(id, code))

    def go_away(self) -> None:
        """No new streams from now on; those that are open go on."""
        if not self._refusing and not self.failed:
            self._refusing = True
            self._write(frames.goaway(self._last_stream, ErrorCode.NO_ERROR))

    @property
    def waiting_nbytes(self) -> int:
        """What ``take`` would give."""
        return self._sender.nbytes

    def take(self) -> list[Buffer]:
        """What is to be sent, in order."""
        return self._sender.take()

    def check(self) -> None:
        self._frames.check()
        self._sender.check()
        assert 0 <= self._receivable <= CONNECTION_WINDOW
        for id, stream in self._streams.items():
            assert stream.open and id == stream.id <= self._last_stream and id & 1
            assert 0 <= stream.receivable <= STREAM_WINDOW
        assert len(self._streams) <= MAX_STREAMS
