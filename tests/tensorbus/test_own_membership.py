"""When a service joins, beats, and holds the broker lost: no clock, no socket."""

from __future__ import annotations

import pytest

from protocol.errors import ProtocolError
from protocol.services import FORGOTTEN_NS, WELCOME, Welcome
from tensorbus.own_membership import JOIN_EVERY_NS, Due, OwnMembership

MS = 1_000_000


def welcome(broker: str = "one", beat_ms: int = 100, silence_ms: int = 400) -> Welcome:
    return Welcome(WELCOME, 1, broker, beat_ms * MS, silence_ms * MS, {})


def member(now: int = 0) -> OwnMembership:
    found = OwnMembership(now)
    found.connected(now)
    assert found.due(now) is Due.JOIN and found.welcomed(welcome(), now)
    found.heard(now)
    found.said(now)
    return found


def due_until(found: OwnMembership, start: int, end: int) -> list[tuple[int, Due]]:
    """Asked each 10 ms; whatever is due is said to have been done. By milliseconds."""
    dues = []
    for now in range(start, end, 10):
        due = found.due(now * MS)
        if due is not None:
            dues.append((now, due))
            found.said(now * MS)
    return dues


def test_it_is_forgotten_if_it_was_held_up_for_very_long() -> None:
    found = member()
    found.due(10 * MS)
    assert not found.is_forgotten(10 * MS + FORGOTTEN_NS - 1)
    assert found.is_forgotten(10 * MS + FORGOTTEN_NS)
    found.heard(10 * MS + FORGOTTEN_NS)  # what others say says nothing of us
    assert found.is_forgotten(10 * MS + FORGOTTEN_NS)
    found.disconnected()
    assert not found.is_forgotten(10 * MS + FORGOTTEN_NS)


def test_it_joins_again_and_again_while_there_is_a_connection_and_no_welcome() -> None:
    found = OwnMembership(0)
    assert due_until(found, 0, 2000) == []
    found.connected(2000 * MS)
    joins = due_until(found, 2000, 3200)
    assert joins == [(2000, Due.JOIN), (2000 + JOIN_EVERY_NS // MS, Due.JOIN), (3000, Due.JOIN)]
    found.disconnected()
    assert due_until(found, 3200, 5000) == []


def test_a_member_beats_when_it_has_said_nothing_else() -> None:
    found = member()
    found.said(50 * MS)
    for now in range(0, 350, 10):
        found.heard(now * MS)
    assert due_until(found, 10, 350) == [(150, Due.BEAT), (250, Due.BEAT)]


def test_a_broker_that_says_nothing_is_lost_and_joined_again() -> None:
    found = member()
    dues = due_until(found, 10, 1000)
    assert (400, Due.LOST) in dues and not found.is_member
    assert dues[dues.index((400, Due.LOST)) + 1] == (410, Due.JOIN)


def test_who_was_held_up_itself_listens_before_it_holds_the_broker_lost() -> None:
    found = member()
    assert found.due(5000 * MS) is Due.BEAT
    found.said(5000 * MS)
    found.heard(5010 * MS)
    assert all(due is Due.BEAT for _, due in due_until(found, 5020, 5400))
    assert found.is_member


def test_who_was_held_up_holds_it_lost_if_nothing_has_come_meanwhile() -> None:
    found = member()
    found.due(5000 * MS)
    assert (5100, Due.LOST) in due_until(found, 5010, 5200)


def test_a_second_welcome_of_the_same_process_is_no_news_and_one_of_another_is() -> None:
    found = member()
    assert not found.welcomed(welcome(), 0)
    assert found.welcomed(welcome("two", beat_ms=200), 0)
    assert found.beat_ns == 200 * MS
    found.disconnected()
    found.connected(0)
    assert found.welcomed(welcome("two"), 0), "what was under way is lost"


@pytest.mark.parametrize("beat_ms, silence_ms", [(0, 400), (-1, 400), (400, 400), (500, 400), (100, 10**10)])
def test_a_welcome_with_times_that_cannot_be_kept_breaks_the_protocol(beat_ms: int, silence_ms: int) -> None:
    found = OwnMembership(0)
    with pytest.raises(ProtocolError):
        found.welcomed(welcome("one", beat_ms, silence_ms), 0)
    assert not found.is_member
