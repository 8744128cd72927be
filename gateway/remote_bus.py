"""A broker in another process as a gateway's Bus: calls become messages, and messages answers. No socket, no thread.

What one turn of the event loop brings leaves at its end, as one message of each kind. A request is kept until its final
response: if the broker is lost meanwhile, another one, or the same once it is heard again, says what has become of it.

    submit --> outgoing --end of the turn--> the broker --Answers--> final: over
                |  ^                            | lost, joined again: Unanswered
                |  +------ Fate: again ---------+------ Fate: lost, or no broker for too long --> failed
                +-- no broker for too long --> failed

What is outgoing no broker has had: it waits for the next one, whatever becomes of the others.

Whoever owns the connection calls ``joined``, ``lost``, ``refuse`` and ``give_up``, and ``heard`` for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog

from gateway.bus import Done, Frames, OnIndex, OnStatistics, ReplySink
from gateway.catalogue import ModelCatalogue
from gateway.questions import TIMEOUT_S, Loop, Questions, Then, Timer
from metrics.gateway_record import GatewayRecord
from protocol.errors import Cancelled, ProtocolError, ServingError, Unavailable
from protocol.messages import Handle, Request, Response, TensorRef
from protocol.services import (
    ASK,
    FETCHED,
    FORGOTTEN_NS,
    NEW_REQUESTS,
    READ,
    UNANSWERED,
    WITHDRAWN,
    Answers,
    Ask,
    Catalogue,
    Fate,
    Fetch,
    Fetched,
    FromService,
    NewRequests,
    Read,
    Said,
    ToService,
    Unanswered,
    Withdrawn,
)
from protocol.signature import Signature
from shm.errors import BadHandle

if TYPE_CHECKING:
    from shm.store import Store

log = structlog.get_logger()

READ_DELAY_S = 0.01  # that outputs have been read waits so long for a request with which it can be told
LOST_S = FORGOTTEN_NS / 1e9  # for so long a stub may still look at the inputs of a request that is given up
_NO_BROKER = "the broker cannot be reached"


class _Open:
    """A request without a final response. One that is not ``sent`` no stub has had."""

    __slots__ = ("by_handle", "cancelled", "frames", "request", "sent", "sink")

    def __init__(self, request: Request, frames: Frames, sink: ReplySink) -> None:
        self.request = request
        self.frames = frames
        self.sink = sink
        self.sent = self.by_handle = False
        self.cancelled = False


class RemoteBus:
    """A gateway.bus.Bus. Invariant: each request that was submitted gets one final response, whatever the broker does;
    each question is answered once. ``_outgoing`` are those of ``_open`` that are not sent."""

    def __init__(
        self, loop: Loop, store: Store, send: Callable[[FromService, Frames], None], record: GatewayRecord | None = None
    ) -> None:
        """``send`` never raises: what cannot be sent now is as lost as what the network loses, and so is the broker."""
        self.catalogue = ModelCatalogue()
        self.record = record or GatewayRecord()
        self._loop = loop
        self._store = store
        self._send = send
        self._open: dict[int, _Open] = {}
        self._outgoing: list[_Open] = []
        self._cancelled: list[int] = []
        self._read: list[tuple[str, int]] = []
        self._reading: set[tuple[str, int]] = set()  # leases that no broker has been told the end of
        self._read_timer: Timer | None = None
        self._flushes = False  # at the end of this turn
        self._retained: dict[int, ReplySink] = {}  # answered, but their inputs are in use
        self._questions = Questions(loop, lambda ask: send(ask, ()))
        self._hosts: list[str] = []
        self.says_ready = True  # False: it is about to end, though it still takes requests
        self._is_joined = False
        self._serves = False  # takes requests
        self._knows_all = False  # the first Catalogue since it joined has come
        self._undecided: set[int] = set()  # of Unanswered, until Fate

    # --- the connection -------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether there is a broker, and its models are known."""
        return self._is_joined and self._knows_all

    @property
    def is_settled(self) -> bool:
        """And it is known what has become of what was unanswered when it was lost last."""
        return self.is_ready and not self._undecided

    @property
    def is_idle(self) -> bool:
        return not self._open and not self._questions

    def joined(self) -> None:
        """The broker has welcomed us, for the first time or again."""
        self._is_joined = True
        self._knows_all = False
        sent = self._sent()
        # What steps of them have been executed only the broker knew that is gone.
        requests = [self._open[id].request for id in sent]
        ensembles = {one.id for one in requests if self.catalogue.is_ensemble(one.model, one.version)}
        self._undecided = sent - ensembles
        self._fail(ensembles)
        reading = sorted(self._reading)
        self._send(Unanswered(UNANSWERED, sorted(self._undecided), self._hosts, reading), ())

    def lost(self) -> None:
        """What is under way may have been lost. New requests are taken for a while (``refuse``) and kept."""
        self._is_joined = False
        self._questions.fail_all(Unavailable(_NO_BROKER))

    def refuse(self) -> None:
        """There is no broker, and has not been for too long: what waits for one fails, and no more requests are taken
        until there is one."""
        self._serves = False
        waiting, self._outgoing = self._outgoing, []
        for one in waiting:
            self._end(one, _unreachable(one.request.model))

    def give_up(self) -> None:
        """What was unanswered when the broker was lost fails; there has been none for too long."""
        if self.is_settled:
            return
        ids = self._undecided if self._is_joined else self._sent()
        self._undecided = set()
        self._fail(ids)
        self._flush_soon()

    def _sent(self) -> set[int]:
        return {id for id, one in self._open.items() if one.sent}

    def wait_for_no_load(self) -> None:
        """This gateway is about to end, which a load by the broker does not keep it from."""
        self._questions.fail_endless(Unavailable("Server not ready"))

    def heard(self, message: ToService, frames: Frames) -> None:
        """Raises ProtocolError."""
        if isinstance(message, Answers):
            self._answers(message, frames)
        elif isinstance(message, Catalogue):
            self._learn(message)
        elif isinstance(message, Said):
            self._questions.said(message)
        elif isinstance(message, Fate):
            self._decide(message)
        elif isinstance(message, Fetch):
            self._fetch(message)
        else:
            raise ProtocolError(f"{type(message).__name__} is no message for a gateway")

    # --- requests -------------------------------------------------------------------------------------------------

    def submit(self, request: Request, frames: Frames, sink: ReplySink) -> None:
        """Raises Unavailable if there is no broker."""
        if not self._serves:
            raise _unreachable(request.model)
        one = self._open[request.id] = _Open(request, frames, sink)
        self._outgoing.append(one)
        if not self._flushes:
            self._flush_soon()

    def refuse_when_full(self, model: str, version: int) -> None:
        """How much waits only the broker knows; without one, nothing is taken."""
        if not self._serves:
            raise _unreachable(model)

    def cancel(self, request_id: int) -> None:
        one = self._open.get(request_id)
        if one is not None and not one.cancelled:
            one.cancelled = True
            self._cancelled.append(request_id)
            self._flush_soon()

    def release(self, origin: str, lease: int) -> None:
        self._read.append((origin, lease))
        if self._read_timer is None:
            self._read_timer = self._loop.call_later(READ_DELAY_S, self._say_read)

    def _say_read(self) -> None:
        self._read_timer = None
        if self._read:
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Nothing overtakes what an earlier connection has left undecided."""
        self._flushes = False
        if self._cancelled and self._outgoing:
            self._end_unwanted()
        if not self.is_ready or self._undecided:
            return
        if self._outgoing:
            outgoing, self._outgoing = self._outgoing, []
            self._send(*self._new_requests(outgoing, self._take_read()))
        if self._cancelled:
            cancelled, self._cancelled = self._cancelled, []
            self._send(Withdrawn(WITHDRAWN, cancelled), ())
        if self._read and self._read_timer is None:
            self._send(Read(READ, self._take_read()), ())
        self.record.pending = len(self._open)

    def _take_read(self) -> list[tuple[str, int]]:
        read, self._read = self._read, []
        self._reading.difference_update(read)
        return read

    def _end_unwanted(self) -> None:
        """Nobody has begun, and nobody needs to."""
        unwanted = [one for one in self._outgoing if one.cancelled]
        self._outgoing = [one for one in self._outgoing if not one.cancelled]
        for one in unwanted:
            self._end(one, Cancelled(""))
        self._cancelled = [id for id in self._cancelled if id in self._open]

    def _new_requests(
        self, outgoing: list[_Open], read: list[tuple[str, int]]
    ) -> tuple[NewRequests, list[memoryview | bytes]]:
        """Each by handle if its model shares our memory, else with the bytes, which stay ours until the answer."""
        frames: list[memoryview | bytes] = []
        requests: list[tuple[Request, int]] = []
        record = self.record
        for one in outgoing:
            one.sent = True
            request, own = one.request, one.frames
            if not own and self.catalogue.shares_memory(request.model, request.version):
                record.requests_by_shm += 1
                self._count(request.inputs, ())
                one.by_handle = True
                requests.append((request, 0))
                continue
            own = list(own)
            request = request._replace(inputs=[self._in_frame(ref, own) for ref in request.inputs])
            record.requests_by_frames += 1
            self._count(request.inputs, own)
            requests.append((request, len(own)))
            frames += own
        return NewRequests(NEW_REQUESTS, requests, read), frames

    def _in_frame(self, ref: TensorRef, frames: list[memoryview | bytes]) -> TensorRef:
        name, datatype, shape, place, _ = ref
        if not isinstance(place, Handle):
            return ref
        frames.append(self._store.view(*place))
        return TensorRef(name, datatype, shape, len(frames) - 1)

    # --- answers --------------------------------------------------------------------------------------------------

    def _answers(self, message: Answers, frames: Frames) -> None:
        _check_counts([nframes for _, _, nframes in message.responses], len(frames))
        position = 0
        for response, origin, nframes in message.responses:
            own: Frames = ()
            if nframes:
                own = frames[position : position + nframes]
                position += nframes
            id = response.request
            if response.lease:
                self._reading.add((origin, response.lease))
            one = self._open.pop(id, None) if response.final else self._open.get(id)
            if one is None:  # it was given up
                if response.lease:
                    self.release(origin, response.lease)
                continue
            if response.final:
                self._undecided.discard(id)
                if response.retained:
                    self._retained[id] = one.sink
            self._count(response.outputs, own)
            _respond(one, response, origin, own)
        for id in message.released:
            self._let_go(id)
        self.record.pending = len(self._open)

    def _count(self, tensors: list[TensorRef], frames: Frames) -> None:
        """Those that go with the message are as those in its frames."""
        for _, _, _, place, _ in tensors:
            if isinstance(place, Handle):
                self.record.bytes_by_shm += place.nbytes
            elif isinstance(place, bytes):
                self.record.bytes_by_frames += len(place)
        if frames:
            self.record.bytes_by_frames += sum(map(len, frames))

    def _decide(self, fate: Fate) -> None:
        """Those that are neither to be sent again nor lost will be answered; what of them is wanted no more is said
        again, since that may have been lost, too."""
        undecided, self._undecided = self._undecided, set()
        self._fail(undecided.intersection(fate.lost))
        again = [self._open[id] for id in sorted(undecided.intersection(fate.again))]
        for one in again:
            one.sent = False
        self._outgoing = again + self._outgoing
        self._cancelled = [id for id, one in self._open.items() if one.cancelled]
        if self._outgoing or self._cancelled or self._read:
            self._flush_soon()

    def _fail(self, ids: set[int]) -> None:
        for id in sorted(ids & self._open.keys()):
            one = self._open[id]
            model = one.request.model
            error = Unavailable(f"a request for model '{model}' was lost, and may have been executed: {_NO_BROKER}")
            if one.by_handle:  # or may be yet: no stub is to see there what another request has brought
                self._retained[id] = one.sink
                self._loop.call_later(LOST_S, self._let_go, id)
            self._end(one, error, retained=one.by_handle)

    def _end(self, one: _Open, error: ServingError, retained: bool = False) -> None:
        del self._open[one.request.id]
        response = Response(one.request.id, [], error=(int(error.kind), str(error)), retained=retained)
        _respond(one, response, "", ())
        self.record.pending = len(self._open)

    def _let_go(self, id: int) -> None:
        sink = self._retained.pop(id, None)
        if sink is not None:
            sink.on_inputs_released()

    def _fetch(self, message: Fetch) -> None:
        try:
            frames: list[memoryview | bytes] = [self._store.view(*handle) for handle in message.handles]
        except BadHandle as fault:
            self._send(Fetched(FETCHED, message.number, str(fault)), ())
            return
        if message.fleeting:
            frames = list(map(bytes, frames))
        self._send(Fetched(FETCHED, message.number), frames)

    # --- models ---------------------------------------------------------------------------------------------------

    def _learn(self, message: Catalogue) -> None:
        """The first one has all the models, the next ones what has changed."""
        self.catalogue.has_namespaces = message.namespaces
        if self._knows_all:
            self.catalogue.update(message.models)
        else:
            self.catalogue.replace(message.models)
            self._knows_all = self._serves = True
            if self._outgoing or self._cancelled or self._read:
                self._flush_soon()
        # What is undecided may be in a host that has still to join this broker.
        self._hosts = sorted({*self._hosts, *message.hosts}) if self._undecided else message.hosts

    def signature(self, model: str, version: int) -> Signature:
        self._refuse_unknowing()
        return self.catalogue.signature(model, version)

    def versions(self, model: str) -> list[int]:
        self._refuse_unknowing()
        return self.catalogue.versions(model)

    def _refuse_unknowing(self) -> None:
        """What was known of a broker that is lost may still be true, and a client that asks again learns no more."""
        if not self._serves and not self._knows_all:
            raise Unavailable(_NO_BROKER)

    def live(self) -> bool:
        return True

    # --- questions ------------------------------------------------------------------------------------------------

    def ready(self, done: Callable[[bool], None]) -> None:
        if self.says_ready:
            self._ask_ready("", -1, done)
        else:
            done(False)

    def model_ready(self, model: str, version: int, done: Callable[[bool], None]) -> None:
        if self.is_ready and self.catalogue.may_be_ready(model, version):
            self._ask_ready(model, version, done)
        else:
            done(False)

    def _ask_ready(self, model: str, version: int, done: Callable[[bool], None]) -> None:
        ask = Ask(ASK, 0, "ready", model, version)
        self._ask(ask, lambda said: done(isinstance(said, Said) and said.ready))

    def statistics(self, model: str, version: int, done: OnStatistics) -> None:
        ask = Ask(ASK, 0, "statistics", model, version)
        self._ask(ask, lambda said: done(said.statistics if isinstance(said, Said) else said))

    def index(self, ready: bool, done: OnIndex) -> None:
        ask = Ask(ASK, 0, "index", ready=ready)
        self._ask(ask, lambda said: done(said.rows if isinstance(said, Said) else said))

    def load(self, model: str, config: str | None, files: Mapping[str, bytes], done: Done) -> None:
        ask = Ask(ASK, 0, "load", model, config=config, files=dict(files))
        self._ask(ask, lambda said: done(None if isinstance(said, Said) else said), timeout_s=None)

    def unload(self, model: str, unload_dependents: bool, done: Done) -> None:
        ask = Ask(ASK, 0, "unload", model, unload_dependents=unload_dependents)
        self._ask(ask, lambda said: done(None if isinstance(said, Said) else said), timeout_s=None)

    def _ask(self, ask: Ask, then: Then, timeout_s: float | None = TIMEOUT_S) -> None:
        if self.is_ready:
            self._questions.ask(ask, then, timeout_s)
        else:
            then(Unavailable(_NO_BROKER))

    def check(self) -> None:
        """Raises AssertionError if the books are not in order."""
        self.catalogue.check()
        assert not self._open.keys() & self._retained.keys()
        assert self._reading.issuperset(self._read)
        assert self._undecided <= self._sent()
        assert {one.request.id for one in self._outgoing} == self._open.keys() - self._sent()


def _respond(one: _Open, response: Response, origin: str, frames: Frames) -> None:
    try:
        one.sink.on_response(response, origin, frames)
    except Exception as fault:  # of one front's one request: those behind it must have their answers
        log.error("an answer was lost", request_id=one.request.request_id, exc_info=fault)


def _check_counts(counts: list[int], nframes: int) -> None:
    """Raises ProtocolError unless the frames of a message are those that its items speak of."""
    if min(counts, default=0) < 0 or sum(counts) != nframes:
        raise ProtocolError(f"{nframes} frames came, for items that have {sum(counts)}")


def _unreachable(model: str) -> Unavailable:
    return Unavailable(f"model '{model}' cannot be asked now: {_NO_BROKER}")
