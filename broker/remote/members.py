"""Which gateways and stub hosts there are: who may join, who is heard from, who is lost. Pure: no socket, no clock.

    Join -> WELCOMED --Proved--> JOINED --Leave--> LEAVING --(what it had is done) Dismissed-->
      |                            +----------silence---------+--> lost
      +--> Refused

A service that joins again was lost to itself: for everybody here it is lost first, and then new. Its own side of this
is tensorbus/own_membership.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Union

from broker.remote.domains import Domains
from protocol import services
from protocol.services import (
    BEAT,
    DISMISSED,
    GATEWAY,
    ID_IN_USE,
    REFUSED,
    STUB_HOST,
    WELCOME,
    Beat,
    Dismissed,
    Join,
    Leave,
    Proved,
    Refused,
    ToService,
    Welcome,
    first_request,
)

_ID_LENGTH = 8
# A large request may keep a gateway's loop; that it counted as lost would only harm the clients of its others.
_GATEWAY_SILENCES = 8


class MemberState(Enum):
    WELCOMED = "welcomed"  # it has still to say what it can read
    JOINED = "joined"
    LEAVING = "leaving"


class Member:
    """A service from its Welcome until it is lost or dismissed."""

    __slots__ = ("domain", "heard_ns", "join", "said_ns", "state")

    def __init__(self, join: Join, now: int) -> None:
        self.join = join
        self.state = MemberState.WELCOMED
        self.domain = ""
        self.heard_ns = self.said_ns = now

    @property
    def service(self) -> str:
        return self.join.service

    @property
    def is_gateway(self) -> bool:
        return self.join.role == GATEWAY


class Tell(NamedTuple):
    service: str
    message: ToService


class HasJoined(NamedTuple):
    member: Member


class IsLeaving(NamedTuple):
    member: Member


class IsGone(NamedTuple):
    """``lost``: it has not said that it would go, or not waited until it could. ``again``: it is joining anew."""

    member: Member
    lost: bool
    cause: str
    again: bool = False


class WasRefused(NamedTuple):
    """For the log."""

    join: Join
    reason: str


Outcome = Union[Tell, HasJoined, IsLeaving, IsGone, WasRefused]


class Members:
    """Invariant: no two members have the same id, no two gateways the same first request."""

    def __init__(
        self,
        cluster: str,
        broker: str,
        nonce: bytes,
        repositories: Iterable[str],
        beat_ns: int,
        silence_ns: int,
    ) -> None:
        """``broker`` is another word for each process of the broker; ``nonce`` is for the stubs of hosts."""
        self._cluster = cluster
        self._broker = broker
        self._nonce = nonce
        self._repositories = list(repositories)
        self._beat_ns = beat_ns
        self._silence_ns = silence_ns
        self.domains = Domains()
        self._members: dict[str, Member] = {}
        self._ticked_ns = 0

    def get(self, service: str) -> Member | None:
        """One that has joined, and may be leaving."""
        member = self._members.get(service)
        return None if member is None or member.state is MemberState.WELCOMED else member

    def of_role(self, role: str) -> list[Member]:
        return [one for one in self._members.values() if one.join.role == role and self.get(one.service) is one]

    # --- what is heard ----------------------------------------------------------------------------------------------

    def heard(self, service: str, now: int) -> Member | None:
        """Anything at all. Who that is, as ``get``."""
        member = self._members.get(service)
        if member is None:
            return None
        member.heard_ns = now
        return None if member.state is MemberState.WELCOMED else member

    def said(self, service: str, now: int) -> None:
        """Anything at all was sent to it."""
        member = self._members.get(service)
        if member is not None:
            member.said_ns = now

    def joins(self, service: str, join: Join, now: int) -> list[Outcome]:
        reason = self._objection(service, join)
        if reason:
            return [Tell(service, Refused(REFUSED, reason)), WasRefused(join, reason)]
        outcomes: list[Outcome] = []
        former = self._members.get(service)
        if former is not None and former.state is not MemberState.WELCOMED:
            outcomes += [gone._replace(again=True) for gone in self._remove(former, True, "it joins again")]
        self._members[service] = Member(join, now)
        welcome = self._welcome()
        self.domains.add(service, join.probe, join.nonce)
        return [*outcomes, Tell(service, welcome)]

    def _objection(self, service: str, join: Join) -> str:
        """Why it cannot join; "" if it can."""
        if join.version != services.VERSION:
            return f"protocol version {join.version} is not the broker's, {services.VERSION}"
        if join.cluster != self._cluster:
            return f"cluster id {join.cluster!r} is not the broker's"
        if join.role not in (GATEWAY, STUB_HOST):
            return f"there is no role {join.role!r}"
        if join.service != service or not _is_id(service):
            return f"{join.service!r} is not its id"
        if service == self.domains.own:
            return f"{ID_IN_USE}: {service} is the broker"
        for other in self._members.values():
            if other.service == service:
                if other.join.nonce != join.nonce:
                    return f"{ID_IN_USE}: {service}"
            elif other.is_gateway and join.role == GATEWAY and first_request(other.service) == first_request(service):
                return f"{ID_IN_USE}: {service} is too much like {other.service}"
        return ""

    def _welcome(self) -> Welcome:
        return Welcome(
            WELCOME,
            services.VERSION,
            self._broker,
            self._beat_ns,
            self._silence_ns,
            self.domains.probes(),
            self._nonce,
            self._repositories,
        )

    def proved(self, service: str, message: Proved) -> list[Outcome]:
        member = self._members.get(service)
        if member is None or member.state is not MemberState.WELCOMED:
            return []
        member.state = MemberState.JOINED
        member.domain = self.domains.prove(service, message.nonces)
        return [HasJoined(member)]

    def leaves(self, service: str, message: Leave) -> list[Outcome]:
        member = self._members.get(service)
        if member is None:
            return [Tell(service, Dismissed(DISMISSED))]
        if member.state is MemberState.WELCOMED:
            return [*self._remove(member, False, ""), Tell(service, Dismissed(DISMISSED))]
        if member.state is MemberState.LEAVING:
            return []
        member.state = MemberState.LEAVING
        return [IsLeaving(member)]

    def dismiss(self, service: str) -> list[Outcome]:
        """What it had is done."""
        member = self._members.get(service)
        if member is None:
            return []
        return [Tell(service, Dismissed(DISMISSED)), *self._remove(member, False, "")]

    def expel(self, service: str, cause: str) -> list[Outcome]:
        """It cannot be reached, or has broken the protocol."""
        member = self._members.get(service)
        return [] if member is None else [*self._remove(member, True, cause)]

    def _remove(self, member: Member, lost: bool, cause: str) -> list[IsGone]:
        del self._members[member.service]
        self.domains.remove(member.service)
        if member.state is MemberState.WELCOMED:
            return []
        return [IsGone(member, lost, cause)]

    # --- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> list[Outcome]:
        """Several times in each ``beat_ns``."""
        outcomes: list[Outcome] = []
        held_up = now - self._ticked_ns > self._silence_ns // 2
        self._ticked_ns = now
        for member in list(self._members.values()):
            if held_up:  # it is us who were silent: what has come meanwhile is heard first
                member.heard_ns = max(member.heard_ns, now - self._silence_ns + self._beat_ns)
            if now - member.heard_ns >= self._silence_ns * _patience(member):
                outcomes += self._remove(member, True, "it was not heard from any more")
            elif now - member.said_ns >= self._beat_ns:
                outcomes.append(Tell(member.service, Beat(BEAT)))
        return outcomes

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        firsts = [first_request(one.service) for one in self._members.values() if one.is_gateway]
        assert len(firsts) == len(set(firsts)), firsts
        for service, member in self._members.items():
            assert service == member.service
            assert self.domains.of(service)


def _patience(member: Member) -> int:
    return _GATEWAY_SILENCES if member.is_gateway and member.state is not MemberState.WELCOMED else 1


def _is_id(service: str) -> bool:
    return len(service) == _ID_LENGTH and all(letter in "0123456789abcdef" for letter in service)
