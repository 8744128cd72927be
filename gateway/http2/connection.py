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
from typing import Any, NamedTuple

from gateway.http2 import frames
from gateway.http2.allowance import Allowance
from gateway.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD,
    HEAD_NBYTES,
    HEADERS,
    LARGEST_FRAME_SIZE,
    LARGEST_WINDOW,
    NUMBER,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_MASK,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    ErrorCode,
)
from gateway.http2.headers import MAX_LIST_NBYTES, BadBlock, HeaderReader, Headers, Malformed, shrink_table

Buffer = bytes | memoryview

MAX_STREAMS = 16384
MAX_FRAME_NBYTES = 1 << 20
STREAM_WINDOW = 64 << 20
CONNECTION_WINDOW = 1 << 30
_MAX_BLOCK_NBYTES = 64 << 10  # of HEADERS and its CONTINUATIONs
_MAX_CONTINUATIONS = 64
_MAX_CONTROL_NBYTES = _MAX_BLOCK_NBYTES + 1024
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


class Request(NamedTuple):
    """A new stream. ``head`` is what ``interpret`` made of its headers; ``ended``: no DATA will follow."""

    stream: int
    head: Any
    ended: bool


class Data(NamedTuple):
    """A part of a stream's body, valid until the next ``receive``; ``ended``: the last one."""

    stream: int
    data: Buffer
    ended: bool


class Reset(NamedTuple):
    """The stream is gone, by the client's wish or for its fault. Nothing may be sent on it any more."""

    stream: int


Event = Request | Data | Reset


class ConnectionFault(Exception):
    """The peer broke the rules for the whole connection."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


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
        self._reader: HeaderReader[Any] = HeaderReader(interpret)
        self._streams: dict[int, _Stream] = {}
        self._last_stream = 0
        self._refusing = False  # new streams, after GOAWAY
        self._out: list[Buffer] = [_GREETING]
        self._out_nbytes = len(_GREETING)
        self._events: list[Event] = []
        self._allowance = Allowance(_BURST, _PER_SECOND)
        self._now = 0.0
        # receiving
        self._expected = PREFACE
        self._greeted = False  # the first SETTINGS have come
        self._partial = b""
        self._payload_of: _Stream | None = None
        self.rest = 0  # bytes of a payload under way, without its padding
        self._padding = 0  # bytes behind it; what is thrown away counts as that, too
        self._payload_ends = False
        self._block: list[bytes] = []
        self._block_of = 0
        self._block_ends = False
        self._receivable = CONNECTION_WINDOW
        # sending
        self._window = DEFAULT_WINDOW
        self._initial_window = DEFAULT_WINDOW
        self._max_frame = DEFAULT_FRAME_SIZE
        self._shrink_table = False
        self._handlers: dict[int, Callable[[int, int, memoryview], None]] = {
            HEADERS: self._on_headers,
            CONTINUATION: self._on_continuation,
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
            self._parse(memoryview(data))
        except ConnectionFault as fault:
            self._fail(fault)
        return self._told()

    @property
    def payload_of(self) -> int:
        """The stream that ``rest`` belongs to, 0 if it is to be thrown away."""
        return self._payload_of.id if self._payload_of is not None and self._payload_of.open else 0

    def received(self, nbytes: int) -> list[Event]:
        """So many of the ``rest`` have been put where they belong, past us."""
        self.rest -= nbytes
        if not self.rest and self._payload_ends:
            self._end_of_data(b"")
        return self._told()

    def _told(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _parse(self, data: memoryview) -> None:
        if self._partial:
            data = memoryview(self._partial + data)
            self._partial = b""
        position = self._check_preface(data) if self._expected else 0
        end = len(data)
        while position < end:
            if self.rest or self._padding:
                position = self._payload(data, position)
                continue
            if end - position < HEAD_NBYTES:
                break
            high, low, kind, flags, stream = HEAD.unpack_from(data, position)
            begun = self._begin(high << 16 | low, kind, flags, stream & STREAM_MASK, data, position + HEAD_NBYTES)
            if begun < 0:
                break
            position = begun
        if position < end:
            self._partial = bytes(data[position:])

    def _check_preface(self, data: memoryview) -> int:
        nbytes = min(len(self._expected), len(data))
        if data[:nbytes] != self._expected[:nbytes]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 here")
        self._expected = self._expected[nbytes:]
        return nbytes

    def _begin(self, nbytes: int, kind: int, flags: int, stream: int, data: memoryview, start: int) -> int:
        """Where the parser goes on; -1 if more must come first."""
        if nbytes > MAX_FRAME_NBYTES:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a frame is too large")
        if self._block_of and (kind != CONTINUATION or stream != self._block_of):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        if not self._greeted and (kind != SETTINGS or flags & ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no SETTINGS first")
        if kind == DATA:
            return self._begin_data(nbytes, flags, stream, data, start)
        handler = self._handlers.get(kind)
        if handler is None:
            self._spend()
            self._padding = nbytes
            return start
        if nbytes > _MAX_CONTROL_NBYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a frame is too large")
        if len(data) - start < nbytes:
            return -1
        handler(stream, flags, data[start : start + nbytes])
        return start + nbytes

    def _spend(self) -> None:
        if not self._allowance.spend(self._now):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too much of that")

    # --- DATA -----------------------------------------------------------------------------------------------------

    def _begin_data(self, nbytes: int, flags: int, id: int, data: memoryview, start: int) -> int:
        padding = 0
        if flags & PADDED:
            if nbytes and start >= len(data):
                return -1
            if not nbytes or data[start] >= nbytes:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
            padding = data[start]
            start += 1
        stream = self._receiver(id)
        self._count_connection(nbytes)
        if stream is not None and not self._count(stream, nbytes, ends=bool(flags & END_STREAM)):
            stream = None
        self._padding = padding
        self.rest = nbytes - padding - 1 if flags & PADDED else nbytes
        self._payload_of = stream
        self._payload_ends = bool(flags & END_STREAM)
        if not self.rest:
            if self._payload_ends:
                self._end_of_data(b"")
            else:
                self._spend()
        return start

    def _receiver(self, id: int) -> _Stream | None:
        stream = self._streams.get(id)
        if stream is None:
            self._check_not_idle(id)
        elif stream.ended:
            self._fault(stream, ErrorCode.STREAM_CLOSED)
            return None
        return stream

    def _payload(self, data: memoryview, position: int) -> int:
        """Take what is there of the payload under way, and of its padding."""
        if self.rest:
            end = min(position + self.rest, len(data))
            chunk = data[position:end]
            self.rest -= end - position
            if not self.rest and self._payload_ends:
                self._end_of_data(chunk)
            elif self._payload_of is not None and self._payload_of.open:
                self._events.append(Data(self._payload_of.id, chunk, False))
            position = end
        if not self.rest:
            skipped = min(self._padding, len(data) - position)
            self._padding -= skipped
            position += skipped
        return position

    def _end_of_data(self, chunk: Buffer) -> None:
        stream = self._payload_of
        self._payload_ends = False
        if stream is not None and stream.open:
            stream.ended = True
            self._events.append(Data(stream.id, chunk, True))

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

    # --- HEADERS and CONTINUATION ---------------------------------------------------------------------------------

    def _on_headers(self, id: int, flags: int, payload: memoryview) -> None:
        if not id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream that is not the client's")
        if flags & PADDED:
            if not payload or payload[0] >= len(payload):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
            payload = payload[1 : len(payload) - payload[0]]
        if flags & WITH_PRIORITY:
            if len(payload) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without their priority")
            payload = payload[5:]
        if flags & END_HEADERS:
            self._on_block(id, bytes(payload), bool(flags & END_STREAM))
        else:
            self._block_of, self._block_ends = id, bool(flags & END_STREAM)
            self._block = [bytes(payload)]

    def _on_continuation(self, id: int, flags: int, payload: memoryview) -> None:
        if not self._block_of:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION of nothing")
        self._block.append(bytes(payload))
        if len(self._block) > _MAX_CONTINUATIONS or sum(map(len, self._block)) > _MAX_BLOCK_NBYTES:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "headers are too large")
        if flags & END_HEADERS:
            block, self._block = b"".join(self._block), []
            self._block_of = 0
            self._on_block(id, block, self._block_ends)

    def _on_block(self, id: int, block: bytes, ended: bool) -> None:
        try:
            if id > self._last_stream:
                self._last_stream = id
                self._open(id, self._reader.read(block), ended)
                return
            self._reader.decode(block)
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

    def _on_priority(self, id: int, flags: int, payload: memoryview) -> None:
        self._spend()
        if not id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY of the connection")
        if len(payload) != 5:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")

    def _on_rst_stream(self, id: int, flags: int, payload: memoryview) -> None:
        self._spend()
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        stream = self._streams.get(id)
        if stream is None:
            self._check_not_idle(id)
        else:
            self._forget(stream)
            self._events.append(Reset(id))

    def _on_settings(self, id: int, flags: int, payload: memoryview) -> None:
        self._spend()
        if id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS of a stream")
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        self._greeted = True
        if not flags & ACK:
            for name, value in SETTING.iter_unpack(payload):
                self._set(name, value)
            self._write(frames.frame(SETTINGS, ACK, 0, b""))

    def _set(self, name: int, value: int) -> None:
        if name == frames.INITIAL_WINDOW_SIZE:
            if value > LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE")
            self._initial_window = value
        elif name == frames.MAX_FRAME_SIZE:
            if not DEFAULT_FRAME_SIZE <= value <= LARGEST_FRAME_SIZE:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE")
            self._max_frame = value
        elif name == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH")
        elif name == frames.HEADER_TABLE_SIZE:
            self._shrink_table = True

    def _on_push_promise(self, id: int, flags: int, payload: memoryview) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client cannot push")

    def _on_ping(self, id: int, flags: int, payload: memoryview) -> None:
        self._spend()
        if id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PING of a wrong size")
        if not flags & ACK:
            self._write(frames.frame(PING, ACK, 0, bytes(payload)))

    def _on_goaway(self, id: int, flags: int, payload: memoryview) -> None:
        """The client takes no streams of ours, of which there are none; its own go on."""
        self._spend()
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
            if self._window + nbytes > LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large")
            self._window += nbytes
            return
        stream = self._streams.get(id)
        if stream is None:
            self._check_not_idle(id)
            return
        stream.sent_less += nbytes
        if not nbytes:
            self._fault(stream, ErrorCode.PROTOCOL_ERROR)
        elif self._initial_window + stream.sent_less > LARGEST_WINDOW:
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
        self._spend()
        self._write(frames.rst_stream(id, code))

    def _fail(self, fault: ConnectionFault) -> None:
        self.failed = True
        self.rest = 0
        self._write(frames.goaway(self._last_stream, fault.code, str(fault).encode()))

    def _forget(self, stream: _Stream) -> None:
        stream.open = False
        del self._streams[stream.id]

    # --- sending --------------------------------------------------------------------------------------------------

    def capacity(self, id: int) -> int:
        """The bytes of DATA that the stream may send now."""
        stream = self._streams.get(id)
        return 0 if stream is None else max(0, min(self._window, self._initial_window + stream.sent_less))

    def send_headers(self, id: int, block: bytes) -> None:
        """A stream that is gone sends nothing; so with the calls below."""
        if id in self._streams:
            self._send_block(id, block, END_HEADERS)

    def send_data(self, id: int, buffers: Sequence[Buffer], nbytes: int) -> None:
        """``nbytes`` is the buffers' size, and no more than ``capacity``."""
        stream = self._streams.get(id)
        if stream is None:
            return
        assert nbytes <= self.capacity(id)
        stream.sent_less -= nbytes
        self._window -= nbytes
        if nbytes <= self._max_frame:
            self._write(frames.head(nbytes, DATA, 0, id))
            self._out += buffers
            self._out_nbytes += nbytes
            return
        for part, size in parts(buffers, nbytes, self._max_frame):
            self._write(frames.head(size, DATA, 0, id))
            self._out += part
            self._out_nbytes += size

    def send_trailers(self, id: int, block: bytes) -> None:
        """The stream's end. A client that still sends is told that nobody listens."""
        stream = self._streams.get(id)
        if stream is None:
            return
        self._send_block(id, block, END_HEADERS | END_STREAM)
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
        return self._out_nbytes

    def take(self) -> list[Buffer]:
        """What is to be sent, in order."""
        out, self._out = self._out, []
        self._out_nbytes = 0
        return out

    def _send_block(self, id: int, block: bytes, flags: int) -> None:
        if self._shrink_table:
            self._shrink_table = False
            block = shrink_table(block)
        assert len(block) <= DEFAULT_FRAME_SIZE
        self._write(frames.frame(HEADERS, flags, id, block))

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        self._out_nbytes += len(data)

    def check(self) -> None:
        assert 0 <= self._receivable <= CONNECTION_WINDOW
        assert 0 <= self._window <= LARGEST_WINDOW
        for id, stream in self._streams.items():
            assert stream.open and id == stream.id <= self._last_stream and id & 1
            assert 0 <= stream.receivable <= STREAM_WINDOW
        assert len(self._streams) <= MAX_STREAMS
        assert len(self._partial) <= HEAD_NBYTES + _MAX_CONTROL_NBYTES
        assert self._out_nbytes == sum(map(len, self._out))


def parts(buffers: Sequence[Buffer], nbytes: int, largest: int) -> list[tuple[list[Buffer], int]]:
    """Buffers of ``nbytes`` in all, cut into parts of ``largest`` bytes at most, and the parts' sizes."""
    result: list[tuple[list[Buffer], int]] = []
    part: list[Buffer] = []
    room = largest
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view) >= room:
            part.append(view[:room])
            view = view[room:]
            result.append((part, largest))
            part, room = [], largest
        if view:
            part.append(view)
            room -= len(view)
    if part:
        result.append((part, largest - room))
    return result
