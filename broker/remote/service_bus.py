"""The broker's end of the bus between services: who has joined, who says what, and who is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from broker.events import HostJoined, HostLeaves, HostLost
from broker.queue import Frames
from broker.remote.catalogue import Catalogues
from broker.remote.fetches import Fetches
from broker.remote.gateway_questions import GatewayQuestions
from broker.remote.gateways import RemoteGateways
from broker.remote.members import HasJoined, IsGone, IsLeaving, Members, Outcome, Tell, WasRefused
from broker.remote.stubs import RemoteStubs
from broker.router import DoesNotRead, Unreachable
from broker.server import BrokerServer
from broker.turn import Turn
from metrics.broker_record import BrokerRecord
from protocol.codec import decode_from_service, encode
from protocol.errors import ProtocolError
from protocol.services import (
    GATEWAY,
    REFUSED,
    STUB_HOST,
    Ask,
    Beat,
    Died,
    Fetched,
    FromStubs,
    Holds,
    Join,
    Leave,
    NewRequests,
    Proved,
    Read,
    Refused,
    ToService,
    Unanswered,
    Withdrawn,
)

log = structlog.get_logger()

_TICKS_IN_A_BEAT = 2
_MAX_REFUSED = 1000


class Link(Protocol):
    """A ROUTER that all services dial."""

    def send(self, service: str, header: bytes, frames: Sequence[memoryview | bytes] = ()) -> None:
        """Raises Unreachable and DoesNotRead (broker/router.py)."""

    def drop(self, service: str) -> None: ...


class ServiceBus:
    """Knows services by their ids. What one says before it has joined, or after it is gone, is not listened to."""

    def __init__(self, link: Link, members: Members, beat_ns: int, record: BrokerRecord, turn: Turn) -> None:
        self._record = record
        self._link = link
        self._turn = turn
        self._members = members
        self._tick_s = beat_ns / _TICKS_IN_A_BEAT / 1e9
        self._timer: asyncio.TimerHandle | None = None
        self._refused: set[tuple[str, str]] = set()  # names and reasons that the log has
        self._hosts: set[str] = set()  # that have said what they hold
        self._outcomes: dict[type, Callable[[Any], object]] = {
            Tell: lambda tell: self.send(tell.service, tell.message, ()),
            HasJoined: self._joined,
            IsLeaving: self._leaves,
            IsGone: self._gone,
            WasRefused: self._refuse,
        }
        self.fetches = Fetches(lambda service, message: self.send(service, message, ()))

    def start(self, server: BrokerServer, stubs: RemoteStubs, gateways: RemoteGateways, catalogues: Catalogues) -> None:
        """On the running loop."""
        self._loop = asyncio.get_running_loop()
        self._server = server
        self._stubs = stubs
        self._gateways = gateways
        self._catalogues = catalogues
        questions = GatewayQuestions(server, catalogues, self.send)
        from_gateways: dict[type, Callable[[str, Any, list[memoryview]], None]] = {
            NewRequests: gateways.new_requests,
            Withdrawn: lambda service, message, frames: gateways.withdrawn(service, message),
            Read: lambda service, message, frames: gateways.read(service, message),
            Ask: lambda service, message, frames: questions.ask(service, message),
            Unanswered: lambda service, message, frames: gateways.unanswered(service, message),
        }
        from_hosts: dict[type, Callable[[str, Any, list[memoryview]], None]] = {
            FromStubs: stubs.from_stubs,
            Died: lambda service, message, frames: stubs.died(service, message),
            Holds: lambda service, message, frames: self._holds(service, message),
        }
        self._handlers = {GATEWAY: from_gateways, STUB_HOST: from_hosts}
        gateways.start(self._hosts)
        server.core.on_change = catalogues.push_soon
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # --- what comes in ----------------------------------------------------------------------------------------------

    def heard(self, service: str, header: bytes, frames: list[memoryview]) -> None:
        now = time.monotonic_ns()
        self._turn.reads()
        try:
            message = decode_from_service(header)
            member = self._members.heard(service, now)
            handle = None if member is None else self._handlers[member.join.role].get(type(message))
            if handle is not None:
                handle(service, message, frames)
            elif isinstance(message, Join):
                self._follow(self._members.joins(service, message, now))
            elif isinstance(message, Proved):
                self._follow(self._members.proved(service, message))
            elif isinstance(message, Leave):
                self._follow(self._members.leaves(service, message))
            elif isinstance(message, Fetched):
                self.fetches.fetched(service, message, frames)
            elif member is not None and not isinstance(message, Beat):
                raise ProtocolError(f"a {member.join.role} does not say {type(message).__name__}")
        except ProtocolError as fault:
            log.error("a service broke the protocol", service=service, cause=str(fault))
            self.send(service, Refused(REFUSED, str(fault)), ())
            self._follow(self._members.expel(service, "it broke the protocol"))

    def done(self) -> None:
        """What came together is acted upon together."""
        self._server.catch_up()
        self._turn.end()

    def hung_up(self, service: str) -> None:
        """Its connection has ended, and what was under way is lost."""
        self._follow(self._members.expel(service, "its connection has ended"))

    def _holds(self, service: str, message: Holds) -> None:
        """Its first word as a member; now it can have work. Raises ProtocolError."""
        member = self._members.get(service)
        assert member is not None
        if service in self._hosts:
            raise ProtocolError("a stub host says twice what it holds")
        self._stubs.host_joined(service, [stub.key for stub in message.stubs])
        self._hosts.add(service)
        join = member.join
        self._gateways.handed(message.answered)
        for stub in message.stubs:
            self._gateways.handed([*stub.open, *(id for _, requests in stub.batches for id in requests)])
        held, sink, metrics = tuple(message.stubs), self._gateways.sink, tuple(message.metrics)
        self._server.tell(HostJoined(service, tuple(join.models), tuple(join.gpus), held, sink, metrics))
        self._loop.call_soon(self._gateways.settle)

    # --- who is there -----------------------------------------------------------------------------------------------

    def _follow(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self._outcomes[type(outcome)](outcome)

    def _refuse(self, refused: WasRefused) -> None:
        """Told once: it asks again and again."""
        join = refused.join
        if (join.name, refused.reason) in self._refused:
            return
        if len(self._refused) >= _MAX_REFUSED:
            self._refused.clear()
        self._refused.add((join.name, refused.reason))
        log.warning("a service was refused", role=join.role, name=join.name, cause=refused.reason)

    def _joined(self, joined: HasJoined) -> None:
        member = joined.member
        service, join = member.service, member.join
        shared = member.domain != service
        log.info("a service has joined", role=join.role, name=join.name, service=service, shares_memory=shared)
        if member.is_gateway:
            self._gateways.joined(member)
            self._stubs.gateway_domains = self._gateways.series()
        else:
            self._catalogues.push()  # before it has any work: gateways say which hosts may have had their requests

    def _leaves(self, leaving: IsLeaving) -> None:
        member = leaving.member
        service = member.service
        log.info("a service is leaving", role=member.join.role, name=member.join.name, service=service)
        if member.is_gateway:
            self._follow(self._members.dismiss(service))
        elif service in self._hosts:
            self._server.tell(HostLeaves(service))
        else:
            self.dismiss(service)

    def dismiss(self, host: str) -> None:
        """Nothing runs on it any more."""
        self._follow(self._members.dismiss(host))

    def _gone(self, gone: IsGone) -> None:
        member, lost, cause, again = gone
        service, join = member.service, member.join
        if lost:
            log.error("a service is lost", role=join.role, name=join.name, service=service, cause=cause)
        else:
            log.info("a service has left", role=join.role, name=join.name, service=service)
        if member.is_gateway:
            self._gateways.gone(service, lost)
            self._stubs.gateway_domains = self._gateways.series()
        elif service in self._hosts:
            self._hosts.remove(service)
            self._server.tell(HostLost(service))
            self._stubs.host_lost(service)
        self.fetches.gone(service)
        if lost and not again:
            self._link.drop(service)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        self._follow(self._members.tick(time.monotonic_ns()))
        self._catalogues.push()
        self._gateways.settle()
        record = self._record
        record.gateways = len(self._members.of_role(GATEWAY))
        record.stub_hosts = len(self._hosts)
        record.instances = self._server.core.processes
        record.waiting = self._gateways.waiting
        record.fetches = self.fetches.total
        record.ignored_reads = self._gateways.ignored_reads

    # --- what goes out ----------------------------------------------------------------------------------------------

    def send(self, service: str, message: ToService, frames: Frames) -> bool:
        """False if it cannot be reached; it is lost then."""
        try:
            self._link.send(service, encode(message), frames)
        except (DoesNotRead, Unreachable) as fault:
            cause = "it does not read its messages" if isinstance(fault, DoesNotRead) else "it cannot be reached"
            self._loop.call_soon(lambda: self._follow(self._members.expel(service, cause)))
            return False
        self._members.said(service, time.monotonic_ns())
        return True
