"""A service's way to the broker: connected, joined, heard from, lost and joined again. What it says is the service's.

Whatever breaks the protocol is logged once, and ends the connection; the next one begins anew.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

import structlog

from broker.router import DoesNotRead, Unreachable
from gateway.bus import Frames
from protocol import services
from protocol.codec import decode_to_service, encode
from protocol.errors import ProtocolError
from protocol.services import (
    BEAT,
    ID_IN_USE,
    PROVED,
    Beat,
    FromService,
    Join,
    Proved,
    Refused,
    ToService,
    Welcome,
)
from shm.errors import BadHandle
from shm.store import Reader
from tensorbus.curve import Trust
from tensorbus.dialer import Dialer
from tensorbus.identity import NONCE_NBYTES
from tensorbus.own_membership import Due, OwnMembership

log = structlog.get_logger()

_TICK_S = 0.1
_SAY_AFTER_NS = 3 * 10**9  # that no broker has welcomed us
_MAX_FAULTS = 100  # different ones that are remembered as logged


class Owner(Protocol):
    """Whose way it is."""

    def join(self) -> Join: ...

    def on_joined(self, welcome: Welcome) -> None:
        """The broker has welcomed us, for the first time or again; what was said before may be lost."""

    def on_lost(self) -> None:
        """Until it is joined again. May be called more than once."""

    def on_refused(self, reason: str) -> None:
        """For good. Called once."""

    def take_new_id(self) -> str:
        """Another service has ours. "" if it must stay: then it is we who are thought to be there still, until that is
        noticed."""

    def on_message(self, message: ToService, frames: list[memoryview]) -> None:
        """All but Welcome, Refused and Beat. Raises ProtocolError."""

    def on_tick(self, now: int) -> None:
        """Each tenth of a second."""


class BrokerLink:
    """Call it on the loop that it was started on."""

    def __init__(self, address: str, service: str, trust: Trust | None, reader: Reader, owner: Owner) -> None:
        """``reader`` is of the memory that others may share with us."""
        self._address = address
        self._service = service
        self._reader = reader
        self._owner = owner
        self._dialer = Dialer(
            address, service, trust, self._heard, lambda: None, self._connected, self._disconnected, self._arriving
        )
        self._started_at = time.monotonic_ns()
        self.membership = OwnMembership(self._started_at)
        self._ticking: asyncio.Task[None] | None = None
        self._faults: set[str] = set()
        self._has_said_that_it_waits = False
        self._is_refused = False  # for good

    def start(self) -> None:
        """Raises ValueError for an address that is none."""
        self._dialer.start()
        self._ticking = asyncio.get_running_loop().create_task(self._tick_for_ever())

    def close(self) -> None:
        """What was said last has a second to leave."""
        if self._ticking is not None:
            self._ticking.cancel()
            self._dialer.close()

    def say(self, message: FromService, frames: Frames = ()) -> None:
        """Never waits, never fails: what cannot be sent is lost, and with it the broker."""
        try:
            self.send(encode(message), frames)
        except Unreachable:
            pass  # it is lost already
        except DoesNotRead:
            log.error("the broker does not read its messages")
            self._begin_anew()

    def send(self, header: bytes, frames: Frames = ()) -> None:
        """An encoded message, which the caller keeps if it cannot be sent. Raises Unreachable and DoesNotRead."""
        self._dialer.send(header, frames)
        self.membership.said(time.monotonic_ns())

    # --- what happens ---------------------------------------------------------------------------------------------

    async def _tick_for_ever(self) -> None:
        while True:
            self._tick()
            await asyncio.sleep(_TICK_S)

    def _tick(self) -> None:
        now = time.monotonic_ns()
        if self.membership.is_forgotten(now):
            self._forget()
        due = self.membership.due(now)
        if due is Due.JOIN:
            self.say(self._owner.join())
        elif due is Due.BEAT:
            self.say(Beat(BEAT))
        elif due is Due.LOST:
            log.warning("the broker is not heard from any more")
            self._owner.on_lost()
        if not self.membership.broker and now - self._started_at > _SAY_AFTER_NS and not self._has_said_that_it_waits:
            self._has_said_that_it_waits = True
            log.info("waiting for the broker", address=self._address)
        self._owner.on_tick(now)

    def _connected(self) -> None:
        self.membership.connected(time.monotonic_ns())
        self._tick()

    def _disconnected(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        self.membership.disconnected()
        self._owner.on_lost()

    def _refused(self, reason: str) -> None:
        if self._is_refused:  # it was asked twice before it answered
            return
        if not reason.startswith(ID_IN_USE):
            self._is_refused = True
            self._owner.on_refused(reason)
            return
        service = self._owner.take_new_id()
        if service:
            log.warning("another id is chosen", reason=reason)
            self._service = service
            self._begin_anew()

    def _forget(self) -> None:
        log.warning("held up for so long that the broker has forgotten this service")
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._let_go()
        self._dialer.redial(self._service)

    def _arriving(self) -> None:
        self.membership.heard(time.monotonic_ns())

    def _heard(self, header: bytes, frames: list[memoryview]) -> None:
        now = time.monotonic_ns()
        if self.membership.is_forgotten(now):
            self._forget()
            return
        self.membership.heard(now)
        try:
            message = decode_to_service(header)
            if isinstance(message, Welcome):
                self._welcomed(message)
            elif isinstance(message, Refused):
                self._refused(message.reason)
            elif not isinstance(message, Beat):
                self._owner.on_message(message, frames)
        except ProtocolError as fault:
            self._say_broken(str(fault))
            self._begin_anew()

    def _say_broken(self, cause: str) -> None:
        if cause not in self._faults and len(self._faults) < _MAX_FAULTS:
            self._faults.add(cause)
            log.error("the broker broke the protocol", cause=cause)

    def _welcomed(self, welcome: Welcome) -> None:
        if welcome.version != services.VERSION:
            raise ProtocolError(f"version {welcome.version} of the messages between services")
        again = bool(self.membership.broker)
        if self.membership.welcomed(welcome, time.monotonic_ns()):
            log.info("joined the broker", broker=welcome.broker, again=again)
            self.say(Proved(PROVED, self._read_probes(welcome)))
            self._owner.on_joined(welcome)

    def _read_probes(self, welcome: Welcome) -> dict[str, bytes]:
        """Of those with whom we share memory, and so most often of few."""
        found = {}
        for service, probe in welcome.probes.items():
            if 0 < probe.nbytes <= NONCE_NBYTES:
                try:
                    found[service] = bytes(self._reader.view(*probe))
                except BadHandle:
                    continue
        return found
