"""Gateways that have joined: their requests on the way to the core, its answers on the way back.

What goes to a gateway in one turn of the event loop leaves as one message. Responses that refer to memory which it does
not share wait until the bytes are there, and with them the later ones of the same request.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Set
from typing import NamedTuple

import structlog

from broker.ensemble_leases import ORIGIN as ENSEMBLES
from broker.queue import Frames, ReplySink
from broker.remote.catalogue import Catalogues, SendTo
from broker.remote.fetches import Fetches, owner_of
from broker.remote.members import Member, Members
from broker.remote.unanswered import UnansweredRequests
from broker.server import BrokerServer
from broker.turn import Soon
from protocol.errors import ErrorKind, ProtocolError
from protocol.messages import Handle, Response
from protocol.services import (
    ANSWERS,
    COUNTER_BITS,
    FATE,
    FORGOTTEN_NS,
    Answers,
    Fate,
    NewRequests,
    Read,
    Unanswered,
    Withdrawn,
    first_request,
)

log = structlog.get_logger()

# For so long a gateway's requests wait for the stub hosts that it knew, which may hold some of them. A host that lives
# dials each second and joins each half; one that is so busy that it is silent for longer counts as lost anyway. A host
# that comes later costs answers, but has nothing executed twice: all that it may hold is lost by then. Where a host
# has died with the broker, requests wait so long for nothing, and of the ten seconds that gateways wait for a broker
# (--broker-wait-secs) most must be left for that to start.
_PATIENCE_NS = 4_000_000_000
_LEFT_S = FORGOTTEN_NS / 1e9  # it may only have been held up
_EARLY_S = 15.0  # after the start no gateway is still to come that a former broker has known
_MOST_FAULTY = 1000


class _Answer(NamedTuple):
    response: Response
    origin: str
    frames: Frames


class _Gateway:
    """``living`` are its requests without a final response, ``unread`` the responses whose outputs it looks at."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.service = member.service
        self.domain = member.domain
        self.series = first_request(member.service) >> COUNTER_BITS
        self.living: set[int] = set()
        self.unread: set[tuple[str, int]] = set()
        self.responses: list[tuple[Response, str, int]] = []
        self.frames: list[memoryview | bytes] = []
        self.released: list[int] = []
        self.held: dict[int, deque[_Answer]] = {}  # by request; the first of each waits for its bytes


class _Left(NamedTuple):
    """What a gateway that is lost has on lease: its own again if it joins in time."""

    unread: set[tuple[str, int]]
    until_s: float


class _Sink:
    """Of one request: the broker's ReplySink."""

    __slots__ = ("_gateway", "_gateways", "_id")

    def __init__(self, gateways: RemoteGateways, gateway: _Gateway, id: int) -> None:
        self._gateways = gateways
        self._gateway = gateway
        self._id = id

    def on_response(self, response: Response, origin: str, frames: Frames) -> None:
        self._gateways.answer(self._gateway, _Answer(response, origin, frames))

    def on_inputs_released(self) -> None:
        self._gateways.inputs_released(self._gateway, self._id)


class _LateSink:
    """Of a request that an earlier broker had taken; its gateway may have to join first."""

    __slots__ = ("_gateways", "_id")

    def __init__(self, gateways: RemoteGateways, id: int) -> None:
        self._gateways = gateways
        self._id = id

    def on_response(self, response: Response, origin: str, frames: Frames) -> None:
        self._gateways.answer_late(self._id, _Answer(response, origin, frames))

    def on_inputs_released(self) -> None:
        self._gateways.inputs_released_late(self._id)


class RemoteGateways:
    def __init__(
        self,
        server: BrokerServer,
        members: Members,
        fetches: Fetches,
        catalogues: Catalogues,
        send: SendTo,
        soon: Soon,
    ) -> None:
        """``soon`` is of a Turn."""
        self._server = server
        self._members = members
        self._fetches = fetches
        self._catalogues = catalogues
        self._send_to = send
        self._soon = soon
        self.is_closed = False
        self._gateways: dict[str, _Gateway] = {}
        self._by_series: dict[int, _Gateway] = {}  # the same
        self._left: dict[str, _Left] = {}
        self._known: set[str] = set()  # gateways that were lost before: what they had then is cancelled
        self._unanswered = UnansweredRequests(_PATIENCE_NS)
        self._early: dict[int, list[_Answer]] = {}  # answers to requests that their gateway has still to name
        self.ignored_reads = 0  # of leases that nobody has given to who has read them
        self._faulty: set[str] = set()  # gateways of which the log says so
        self._dirty: dict[_Gateway, None] = {}  # something leaves for them at the end of the turn; an ordered set

    def start(self, hosts: Set[str]) -> None:
        """``hosts`` are always those that have said what they hold."""
        self._hosts = hosts
        self._loop = asyncio.get_running_loop()
        self._ends_s = self._loop.time() + _EARLY_S

    def joined(self, member: Member) -> None:
        gateway = _Gateway(member)
        left = self._left.pop(member.service, None)
        if left is not None:
            gateway.unread = left.unread
        self._gateways[member.service] = self._by_series[gateway.series] = gateway

    def series(self) -> dict[int, str]:
        """By the bits of Request.id that say whose it is: the domain of the gateway."""
        return {gateway.series: gateway.domain for gateway in self._gateways.values()}

    def gone(self, service: str, lost: bool) -> None:
        """Nobody wants its requests any more. One that is ``lost`` may still be writing what it has on lease."""
        gateway = self._gateways.pop(service, None)
        self._catalogues.gone(service)
        self._unanswered.forget(service)
        if gateway is None:
            return
        self._known.add(service)
        del self._by_series[gateway.series]
        self._dirty.pop(gateway, None)
        for id in list(gateway.living):
            self._server.cancel(id)
        for held in gateway.held.values():
            self._release((one.origin, one.response.lease) for one in held if one.response.lease)
        if lost:
            self._left[service] = _Left(gateway.unread, self._loop.time() + _LEFT_S)
        else:
            self._reads_no_more(service, gateway.unread)

    def _reads_no_more(self, service: str, unread: Iterable[tuple[str, int]]) -> None:
        self._release(unread)
        self._server.core.inherited.gone(service)

    def _release(self, leases: Iterable[tuple[str, int]]) -> None:
        for origin, lease in leases:
            self._server.release(origin, lease)

    # --- what they say ----------------------------------------------------------------------------------------------

    def new_requests(self, service: str, message: NewRequests, frames: list[memoryview]) -> None:
        """Raises ProtocolError. What comes when it is closed is neither taken nor answered: the next broker will be
        told of it."""
        gateway = self._gateways[service]
        self._release_read(gateway, message.read)
        if self.is_closed:
            return
        start = 0
        for request, count in message.requests:
            if request.id >> COUNTER_BITS != gateway.series or request.id in gateway.living:
                raise ProtocolError(f"request id {request.id} is not free for its gateway")
            if not 0 <= count <= len(frames) - start:
                raise ProtocolError("requests with other frames than they say")
            own = frames[start : start + count]
            start += count
            if any(isinstance(one.place, int) and not 0 <= one.place < count for one in request.inputs):
                raise ProtocolError(f"request {request.id} has an input without its frame")
            gateway.living.add(request.id)
            if self._server.core.is_living(request.id):  # a stub has had it from an earlier broker, and answers
                continue
            self._server.submit(request, own, _Sink(self, gateway, request.id))

    def withdrawn(self, service: str, message: Withdrawn) -> None:
        living = self._gateways[service].living
        for id in message.requests:
            if id in living:
                self._server.cancel(id)

    def read(self, service: str, message: Read) -> None:
        self._release_read(self._gateways[service], message.leases)

    def _release_read(self, gateway: _Gateway, leases: list[tuple[str, int]]) -> None:
        inherited = self._server.core.inherited
        for lease in leases:
            if lease in gateway.unread:
                gateway.unread.remove(lease)
                self._server.release(*lease)
            elif not inherited.has(gateway.service, lease):
                self._ignore_read(gateway)
            elif inherited.read(gateway.service, lease):
                self._server.release(*lease)

    def _ignore_read(self, gateway: _Gateway) -> None:
        """To tell a stub what it does not expect would kill it."""
        self.ignored_reads += 1
        if gateway.service not in self._faulty and len(self._faulty) < _MOST_FAULTY:
            self._faulty.add(gateway.service)
            log.warning(
                "a gateway has read what it has not got", name=gateway.member.join.name, service=gateway.service
            )

    # --- requests that an earlier broker had taken ------------------------------------------------------------------

    def sink(self, id: int) -> ReplySink:
        """Of one that a stub holds."""
        return _LateSink(self, id)

    def handed(self, requests: Iterable[int]) -> None:
        """Stubs hold them."""
        self._unanswered.handed(requests)

    def answer_late(self, id: int, answer: _Answer) -> None:
        gateway = self._by_series.get(id >> COUNTER_BITS) if id > 0 else None
        if gateway is not None and id in gateway.living:
            self.answer(gateway, answer)
        elif id > 0 and self._loop.time() < self._ends_s:
            self._early.setdefault(id, []).append(answer)
        elif answer.response.lease:  # nobody will ask for it
            self._server.release(answer.origin, answer.response.lease)

    def unanswered(self, service: str, message: Unanswered) -> None:
        gateway, reading = self._gateways[service], set(message.reading)
        self._release(gateway.unread - reading)  # it has never got it, or we not that it has read it
        gateway.unread &= reading
        self._server.core.inherited.claim(service, reading - gateway.unread)
        if service in self._known:  # it was lost, and all it had cancelled
            self._decide(service, [], message.requests)
            return
        ours = [id for id in message.requests if id >> COUNTER_BITS == gateway.series]
        self._unanswered.ask(service, ours, message.hosts, time.monotonic_ns())
        self._loop.call_soon(self.settle)  # once the stubs are taken over that hosts have said they hold

    def _decide(self, service: str, again: list[int], lost: list[int]) -> None:
        """It is told of the models now: those that serve on the hosts that it knew are up again."""
        self._send_to(service, Fate(FATE, again, lost), ())
        self._catalogues.joined(self._gateways[service].member)

    def settle(self) -> None:
        """Whenever a host has said what it holds, and from time to time; not while stubs may still be taken over."""
        if self._server.core.is_adopting and self._loop.time() < self._ends_s:
            return
        for service, again, lost in self._unanswered.verdicts(self._hosts, time.monotonic_ns()):
            gateway = self._gateways[service]
            kept = {id for id in (*again, *lost) if self._server.core.is_living(id) or id in self._early}
            gateway.living |= kept
            self._decide(service, [id for id in again if id not in kept], [id for id in lost if id not in kept])
            for id in kept:
                for answer in self._early.pop(id, ()):
                    self.answer(gateway, answer)
        for service in [one for one, left in self._left.items() if left.until_s <= self._loop.time()]:
            self._reads_no_more(service, self._left.pop(service).unread)
        self._end_unclaimed()
        if self._loop.time() < self._ends_s:
            return
        if not self._unanswered:
            self._unanswered.close()
        if self._early:
            early, self._early = self._early, {}
            for answers in early.values():
                for answer in answers:
                    if answer.response.lease:
                        self._server.release(answer.origin, answer.response.lease)

    def _end_unclaimed(self) -> None:
        unclaimed = self._server.core.inherited.unclaimed(time.monotonic_ns())
        if unclaimed:
            unread = [one.unread for one in self._gateways.values()] + [one.unread for one in self._left.values()]
            self._release(set(unclaimed).difference(*unread))

    # --- what they are told -----------------------------------------------------------------------------------------

    def answer(self, gateway: _Gateway, answer: _Answer) -> None:
        response = answer.response
        if self._gateways.get(gateway.service) is not gateway:  # it is gone
            if response.lease:
                self._server.release(answer.origin, response.lease)
            return
        if response.final:
            gateway.living.discard(response.request)
        held = gateway.held.get(response.request)
        if held is not None:
            held.append(answer)
        else:
            self._answer_now(gateway, answer)

    def _answer_now(self, gateway: _Gateway, answer: _Answer) -> None:
        foreign = self._foreign(gateway, answer.response)
        if not foreign:
            self._put(gateway, answer)
            return
        id = answer.response.request
        gateway.held.setdefault(id, deque()).appendleft(answer)
        self._fetches.begin(foreign, lambda found: self._fetched(gateway, id, foreign, found))

    def _foreign(self, gateway: _Gateway, response: Response) -> list[Handle]:
        of = self._members.domains.of
        places = [output.place for output in response.outputs]
        return [one for one in places if isinstance(one, Handle) and of(owner_of(one)) != gateway.domain]

    def _fetched(self, gateway: _Gateway, id: int, foreign: list[Handle], found: list[memoryview | bytes]) -> None:
        if self._gateways.get(gateway.service) is not gateway:
            return
        held = gateway.held.pop(id)
        self._put(gateway, self._with_frames(held.popleft(), dict(zip(foreign, found, strict=True))))
        while held and id not in gateway.held:
            self._answer_now(gateway, held.popleft())
        if held:
            gateway.held[id].extend(held)

    def _with_frames(self, answer: _Answer, found: dict[Handle, memoryview | bytes]) -> _Answer:
        """Nothing is on lease any more: the bytes are here. But what an ensemble streams waits for what has been read,
        which leases tell."""
        response, origin, frames = answer.response, answer.origin, list(answer.frames)
        if any(len(frame) != handle.nbytes for handle, frame in found.items()):
            lost = (int(ErrorKind.INTERNAL), "the outputs were lost with their stub host")
            response = response._replace(outputs=[], error=response.error or lost)
        outputs = []
        for output in response.outputs:
            if isinstance(output.place, Handle) and output.place in found:
                frames.append(found[output.place])
                output = output._replace(place=len(frames) - 1)
            outputs.append(output)
        is_read = answer.origin != ENSEMBLES and not any(isinstance(output.place, Handle) for output in outputs)
        if response.lease and is_read:
            self._server.release(origin, response.lease)
            response = response._replace(lease=0)
        return _Answer(response._replace(outputs=outputs), origin, frames)

    def _put(self, gateway: _Gateway, answer: _Answer) -> None:
        response, origin, frames = answer
        if response.lease:
            gateway.unread.add((origin, response.lease))
        gateway.responses.append((response, origin, len(frames)))
        gateway.frames.extend(frames)
        self._has_news(gateway)

    def inputs_released_late(self, id: int) -> None:
        gateway = self._by_series.get(id >> COUNTER_BITS)
        if gateway is not None:
            self.inputs_released(gateway, id)

    def inputs_released(self, gateway: _Gateway, id: int) -> None:
        gateway.released.append(id)
        self._has_news(gateway)

    def _has_news(self, gateway: _Gateway) -> None:
        if not self._dirty:
            self._soon(self._flush)
        self._dirty[gateway] = None

    def _flush(self) -> None:
        for gateway in self._dirty:
            responses, frames, released = gateway.responses, gateway.frames, gateway.released
            gateway.responses, gateway.frames, gateway.released = [], [], []
            self._send_to(gateway.service, Answers(ANSWERS, responses, released), frames)
        self._dirty = {}

    @property
    def waiting(self) -> int:
        """Requests that have no final response yet, for the gateways that there are."""
        return sum(len(gateway.living) for gateway in self._gateways.values())
