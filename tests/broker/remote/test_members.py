"""Who may join, who is heard from, who is lost, and who shares memory with whom."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.remote.members import HasJoined, IsGone, IsLeaving, Members, Tell, WasRefused
from protocol.messages import Handle
from protocol.services import (
    GATEWAY,
    JOIN,
    LEAVE,
    PROVED,
    STUB_HOST,
    VERSION,
    Beat,
    Dismissed,
    Join,
    Leave,
    Proved,
    Refused,
    Welcome,
)
from tests.random_events import run_random_events

BEAT, SILENCE = 10, 100
A, B, C = "aaaaaaaa", "bbbbbbbb", "cccccccc"


@pytest.fixture
def members():
    return Members("here", "broker-1", b"for stubs", ["/models"], BEAT, SILENCE)


def join(
    service: str, role: str = STUB_HOST, cluster: str = "here", version: int = VERSION, nonce: bytes = b""
) -> Join:
    probe = Handle(f"tensorbus-1-{service}{'0' * 24}", 128, 32)
    return Join(JOIN, version, cluster, role, service, "name", probe, nonce or service.encode())


def enter(members: Members, service: str, role: str = STUB_HOST, read: tuple[str, ...] = (), now: int = 0) -> str:
    """Joins; ``read`` are the services whose probes it can read if it is given them. Returns its domain."""
    (welcome,) = members.joins(service, join(service, role), now)
    nonces = {other: other.encode() for other in welcome.message.probes if other in read}
    (joined,) = members.proved(service, Proved(PROVED, nonces))
    assert isinstance(joined, HasJoined)
    members.check()
    return joined.member.domain


def test_a_service_is_welcomed_and_is_a_member_once_it_has_said_what_it_can_read(members):
    (welcome,) = members.joins(A, join(A), 0)
    assert isinstance(welcome.message, Welcome)
    assert (welcome.message.nonce, welcome.message.repositories) == (b"for stubs", ["/models"])
    assert members.get(A) is None
    members.proved(A, Proved(PROVED, {}))
    assert members.get(A) is not None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (join(A, cluster="elsewhere"), "cluster id 'elsewhere' is not the broker's"),
        (join(A, version=VERSION + 1), f"protocol version {VERSION + 1} is not the broker's, {VERSION}"),
        (join(A, role="broker"), "there is no role 'broker'"),
        (join(B), f"'{B}' is not its id"),
    ],
)
def test_who_does_not_fit_is_refused_with_the_reason(members, message, reason):
    told, refused = members.joins(A, message, 0)
    assert told == Tell(A, Refused("R", reason))
    assert refused == WasRefused(message, reason)
    assert members.get(A) is None


def test_an_id_that_is_in_use_is_refused_and_the_owner_stays(members):
    enter(members, A)
    told, _ = members.joins(A, join(A, nonce=b"another process"), 1)
    assert told.message.reason.startswith("id in use")
    assert members.get(A) is not None


def test_two_gateways_never_number_their_requests_alike(members):
    enter(members, "00abcdef", GATEWAY)
    told, _ = members.joins("80abcdef", join("80abcdef", GATEWAY), 1)
    assert told.message.reason.startswith("id in use")
    enter(members, "80abcdef", STUB_HOST)  # a host numbers none


def test_who_joins_again_was_lost(members):
    enter(members, A)
    gone, welcome = members.joins(A, join(A), 5)
    assert isinstance(gone, IsGone)
    assert gone.lost
    assert isinstance(welcome.message, Welcome)


def test_silence_is_loss_and_any_word_is_a_sign_of_life(members):
    enter(members, A)
    enter(members, B)
    members.heard(A, 60)
    members.tick(40)
    members.tick(80)
    (gone,) = [one for one in members.tick(SILENCE) if isinstance(one, IsGone)]
    assert (gone.member.service, gone.lost) == (B, True)
    assert members.get(A) is not None


def test_silence_that_is_our_own_is_no_loss(members):
    enter(members, A)
    members.tick(1)
    assert not any(isinstance(one, IsGone) for one in members.tick(SILENCE + 1))  # we were held up meanwhile
    members.tick(SILENCE + BEAT - 1)
    assert any(isinstance(one, IsGone) for one in members.tick(SILENCE + BEAT + 1))


def test_a_gateway_may_be_kept_from_speaking_by_a_large_request(members):
    enter(members, A, GATEWAY)
    for now in range(0, SILENCE * 8, BEAT):
        assert not any(isinstance(one, IsGone) for one in members.tick(now))
    assert any(isinstance(one, IsGone) for one in members.tick(SILENCE * 8))


def test_a_beat_is_said_when_nothing_else_was(members):
    enter(members, A)
    members.said(A, 5)
    assert members.tick(BEAT) == []
    assert members.tick(BEAT + 5) == [Tell(A, Beat("B"))]


def test_who_leaves_is_dismissed_when_what_it_had_is_done(members):
    enter(members, A)
    (leaving,) = members.leaves(A, Leave(LEAVE))
    assert isinstance(leaving, IsLeaving)
    assert members.get(A) is not None
    assert members.leaves(A, Leave(LEAVE)) == []
    told, gone = members.dismiss(A)
    assert (told, gone.lost) == (Tell(A, Dismissed("D")), False)
    assert members.get(A) is None
    assert members.leaves(A, Leave(LEAVE)) == [Tell(A, Dismissed("D"))]


def test_services_that_read_each_others_nonce_are_of_one_domain(members):
    assert enter(members, A) == A
    assert enter(members, B, read=(A,)) == A
    assert enter(members, C) == C
    members.expel(A, "")  # another member of its domain is read in its place
    assert enter(members, "dddddddd", read=(B,)) == A


def test_services_that_join_at_the_same_time_find_each_other(members):
    members.joins(A, join(A), 0)
    (welcome,) = members.joins(B, join(B), 0)
    assert welcome.message.probes.keys() == {A}
    members.proved(A, Proved(PROVED, {}))
    (joined,) = members.proved(B, Proved(PROVED, {A: A.encode()}))
    assert joined.member.domain == A


def test_a_nonce_that_is_wrong_proves_nothing(members):
    enter(members, A)
    members.joins(B, join(B), 0)
    (joined,) = members.proved(B, Proved(PROVED, {A: b"guessed", B: B.encode(), C: b""}))
    assert joined.member.domain == B


class Machine(RuleBasedStateMachine):
    """Services of three ids that say whatever they like."""

    def __init__(self) -> None:
        super().__init__()
        self.members = Members("here", "broker-1", b"n", [], BEAT, SILENCE)
        self.there: set[str] = set()
        self.now = 0

    def follow(self, outcomes: list) -> None:
        for one in outcomes:
            if isinstance(one, HasJoined):
                assert one.member.service not in self.there
                self.there.add(one.member.service)
            elif isinstance(one, IsGone):
                self.there.remove(one.member.service)

    ids = st.sampled_from([A, B, C, "80abcdef", "00abcdef"])

    @rule(service=ids, role=st.sampled_from([GATEWAY, STUB_HOST]), nonce=st.sampled_from([b"1", b"2"]))
    def join(self, service, role, nonce) -> None:
        self.follow(self.members.joins(service, join(service, role, nonce=nonce), self.now))

    @rule(service=ids, read=st.sets(ids))
    def prove(self, service, read) -> None:
        self.follow(self.members.proved(service, Proved(PROVED, dict.fromkeys(read, b"1"))))

    @rule(service=ids)
    def leave(self, service) -> None:
        self.follow(self.members.leaves(service, Leave(LEAVE)))

    @rule(service=ids)
    def dismiss(self, service) -> None:
        self.follow(self.members.dismiss(service))

    @rule(service=ids)
    def expel(self, service) -> None:
        self.follow(self.members.expel(service, "cause"))

    @rule(service=ids)
    def hear(self, service) -> None:
        self.members.heard(service, self.now)

    @rule(ns=st.sampled_from([1, BEAT, SILENCE]))
    def wait(self, ns) -> None:
        self.now += ns
        self.follow(self.members.tick(self.now))

    @invariant()
    def consistent(self) -> None:
        self.members.check()
        assert self.there == {one.service for role in (GATEWAY, STUB_HOST) for one in self.members.of_role(role)}


def test_whatever_services_say_each_joins_and_goes_once():
    run_random_events(Machine, usual=300)
