"""Between the stubs of a host and the broker: stubs dial it as they dial the broker where that is on their own host.

What they say in one turn of the event loop leaves as one message. Nothing is decoded that can be passed on as it is:
Load is made to fit this host, and of some others a part is read (stub_ledger.py).

While the broker is away, or does not read, what stubs say is kept in its order; from ``_MOST_NBYTES`` on they are not
read any more, until there is room.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import msgspec
import structlog

from broker.queue import Frames
from broker.router import DoesNotRead, Router, Unreachable
from metrics.stub_host_record import StubHostRecord
from protocol.codec import decode_from_stub, encode, kind_of
from protocol.errors import ErrorKind, ProtocolError
from protocol.messages import (
    ANSWERED,
    EXECUTE,
    FINISH,
    LOAD,
    READY,
    TOLD,
    Answered,
    Finish,
    Load,
    Ready,
    Response,
    Told,
)
from protocol.services import DIED, FROM_STUBS, HOLDS, Died, Error, FromService, FromStubs, HeldStub, Holds, ToStubs
from shm.errors import BadSegment
from shm.segment import Segment
from tensorbus.stub_ledger import StubLedger, key_of

log = structlog.get_logger()

Send = Callable[[bytes, Frames], None]

_MOST_NBYTES = 64 << 20  # that stubs have said and the broker has not been sent
_MOST_AT_ONCE = 1000  # messages of stubs in one message
_MOST_NBYTES_AT_ONCE = 16 << 20
_MESSAGE_NBYTES = 200  # what keeping one costs besides its bytes
_RETRY_S = 0.02
# For so long an answer may be on its way to its gateway though the broker is alive: a broker that does not read us is
# lost after 4 s, and a gateway that does not read the broker after 32. To remember an answer for too long is harmless,
# for a gateway that has it does not ask what has become of it; to forget it too early has the request executed again.
_UNDER_WAY_NS = 40 * 10**9
_MOST_ANSWERED = 100_000  # that are remembered; a broker brings fewer than 5,000 a second from one host
_GONE = (int(ErrorKind.UNAVAILABLE), "the broker that was asked has gone")

_LOAD = msgspec.msgpack.Decoder(Load)
_READY = ord(READY)


class _Said(NamedTuple):
    """By a stub; or with no address by us: then the header is that of the whole message."""

    address: str
    header: memoryview | bytes
    frames: Frames
    nbytes: int
    ends: str = ""  # the key of a stub of which this is the last


class Relay:
    """Owns the socket of the bus and the mapped status words. ``send`` raises Unreachable and DoesNotRead."""

    def __init__(
        self,
        bus: str,
        shm_directory: str,
        record: StubHostRecord,
        send: Send,
        fit: Callable[[str, Load], Load],
        kill: Callable[[str], None],
        with_files: Callable[[list[HeldStub]], list[HeldStub]] = list,
    ) -> None:
        """``fit`` makes the broker's Load for a stub one for this host; ``kill`` is for a stub that does not read;
        ``with_files`` adds to stubs those that were given with their models."""
        self._bus = bus
        self._shm_directory = shm_directory
        self._record = record
        self._send = send
        self._fit = fit
        self._kill = kill
        self._with_files = with_files
        self._router = Router(self._heard, self._said_something)
        self._ledger = StubLedger()
        self._status_words: dict[str, Segment] = {}
        self._unsent: deque[_Said] = deque()
        self._unsent_nbytes = 0
        self._answered: deque[tuple[int, list[int]]] = deque()  # when it was said, and for which requests
        self._nanswered = 0  # of them all
        self._is_open = self._holds_due = False
        self._flush_due: asyncio.Handle | None = None

    def start(self) -> None:
        """Binds; call it on the running loop. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._router.bind(self._bus)

    def close(self) -> None:
        """After the last stub has gone."""
        self.lost()
        self._router.close()
        for segment in self._status_words.values():
            segment.close()

    # --- the broker comes and goes --------------------------------------------------------------------------------

    def joined(self) -> None:
        """There is a broker that knows nothing of these stubs. It is told what they hold, and then what they have said
        since that was true; what they had asked another one is answered here."""
        for question in self._ledger.take_questions():
            message: Answered | Told = Told(TOLD, question.number, _GONE)
            if question.is_call:
                message = Answered(ANSWERED, question.number, Response(0, [], error=_GONE), "")
            self._give(question.address, encode(message), ())
        self._is_open = self._holds_due = True
        self._flush()

    def heard(self, when_ns: int) -> None:
        """The broker was alive then, and so had what it had been sent long before."""
        while self._answered and (self._answered[0][0] < when_ns - _UNDER_WAY_NS or self._nanswered > _MOST_ANSWERED):
            self._nanswered -= len(self._answered.popleft()[1])

    def lost(self) -> None:
        self._is_open = False
        if self._flush_due is not None:
            self._flush_due.cancel()
            self._flush_due = None

    # --- stubs come and go ----------------------------------------------------------------------------------------

    @property
    def is_loading(self) -> bool:
        """Whether a stub has still to come up."""
        return bool(self._ledger.loading())

    def add(self, stub: HeldStub) -> None:
        """It is about to be started."""
        self._ledger.add(stub)

    def died(self, key: str, status: int, error: Error = None) -> None:
        """Its last words come before its death. With ``error`` it has never lived."""
        segment = self._status_words.pop(key, None)
        inside = None
        if segment is not None:
            inside = segment.status
            segment.close()
        self._router.hear_out(key)
        self.tell(Died(DIED, key, status, inside, error), ends=key)

    def finish_all(self) -> None:
        """For an end without a broker. Those that do not serve yet have nothing to finish."""
        for key in self._ledger.loading():
            self._kill(key)
        for address in list(self._router.peers):
            if address == key_of(address):
                self._give(address, encode(Finish(FINISH)), ())

    # --- to the broker --------------------------------------------------------------------------------------------

    def tell(self, message: FromService, frames: Frames = (), ends: str = "") -> None:
        """In its order with what stubs say."""
        header = encode(message)
        self._keep(_Said("", header, frames, len(header) + sum(map(len, frames)), ends))
        self._said_something()

    def _heard(self, address: str, header: memoryview, frames: list[memoryview]) -> None:
        if len(header) > 2 and header[2] == _READY:
            self._watch(address, header)
        self._record.from_stubs += 1
        self._keep(_Said(address, header, frames, len(header) + sum(map(len, frames))))

    def _keep(self, said: _Said) -> None:
        self._unsent.append(said)
        self._unsent_nbytes += said.nbytes + _MESSAGE_NBYTES
        if self._unsent_nbytes > _MOST_NBYTES:
            self._router.pause()

    def _watch(self, address: str, header: memoryview) -> None:
        """Its status word lies in the header of the segment that it names."""
        try:
            ready = decode_from_stub(header)
            if isinstance(ready, Ready) and ready.segment:
                self._status_words[address] = Segment.attach(self._shm_directory, ready.segment)
        except (ProtocolError, BadSegment, OSError) as fault:
            log.warning("a stub's status word cannot be read", stub=address, cause=str(fault))

    def _said_something(self) -> None:
        """All that comes in this turn leaves together."""
        if self._flush_due is None and self._is_open:
            self._flush_due = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = None
        try:
            if self._holds_due:
                answered = [request for _, requests in self._answered for request in requests]
                self._send(
                    encode(Holds(HOLDS, self._with_files(self._ledger.held()), answered, self._ledger.metrics())), ()
                )
                self._holds_due = False
            while self._unsent and self._is_open:
                batch = self._next_batch()
                self._send(_in_one(batch), [frame for said in batch for frame in said.frames])
                self._has_been_said(batch)
        except DoesNotRead:
            self._flush_due = self._loop.call_later(_RETRY_S, self._flush)
        except Unreachable:
            pass  # that it is lost is about to be told

    def _next_batch(self) -> list[_Said]:
        """What comes first and may go together."""
        batch: list[_Said] = []
        nbytes = 0
        for said in islice(self._unsent, _MOST_AT_ONCE):
            if batch and not (said.address and batch[0].address and nbytes + said.nbytes <= _MOST_NBYTES_AT_ONCE):
                break
            batch.append(said)
            nbytes += said.nbytes
        return batch

    def _has_been_said(self, batch: list[_Said]) -> None:
        answered: list[int] = []
        for said in batch:
            self._unsent.popleft()
            self._unsent_nbytes -= said.nbytes + _MESSAGE_NBYTES
            if said.address:
                with contextlib.suppress(ProtocolError):  # which the broker finds, too, and has the stub killed
                    finals = self._ledger.said(said.address, kind_of(said.header), said.header)
                    answered += [request for request in finals if request > 0]  # not of what models have asked
            elif said.ends:
                self._ledger.remove(said.ends)
        if answered:
            self._answered.append((time.monotonic_ns(), answered))
            self._nanswered += len(answered)
        if self._unsent_nbytes < _MOST_NBYTES // 2:
            self._router.resume()

    # --- from the broker ------------------------------------------------------------------------------------------

    def forward(self, message: ToStubs, frames: list[memoryview]) -> None:
        """Raises ProtocolError."""
        start = 0
        for address, header, count in message.messages:
            if not 0 <= count <= len(frames) - start:
                raise ProtocolError("messages to stubs with other frames than they say")
            its_frames = frames[start : start + count]
            start += count
            kind = kind_of(header)
            if kind == LOAD:
                header = self._loading(address, header)
            elif kind in (EXECUTE, ANSWERED, TOLD) and not self._ledger.told(address, kind, header):
                continue
            self._give(address, header, its_frames)

    def _loading(self, address: str, header: bytes) -> bytes:
        try:
            load = self._fit(address, _LOAD.decode(header))
        except msgspec.DecodeError as error:
            raise ProtocolError(str(error)) from error
        self._ledger.loaded(address, load.args.get("model_config", ""))
        return encode(load)

    def _give(self, address: str, header: bytes, frames: Frames) -> None:
        self._record.to_stubs += 1
        try:
            self._router.send(address, header, frames)
        except DoesNotRead:
            log.error("a stub does not read its messages", stub=address)
            self._kill(key_of(address))
        except Unreachable:
            pass  # it has died, and the broker is told


def _in_one(batch: list[_Said]) -> bytes:
    first = batch[0]
    if not first.address:
        return bytes(first.header)
    messages = [(said.address, said.header, len(said.frames)) for said in batch]
    # A memoryview is encoded as the bytes that it shows.
    return encode(FromStubs(FROM_STUBS, messages))  # type: ignore[arg-type]
