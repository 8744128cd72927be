"""When a service of a scaled stack joins the broker, says that it is there, and holds the broker lost. Pure.

    APART --Join, every half second while there is a connection--> Welcome --> MEMBER
      ^                                                                          |
      +-------- the connection is lost, or nothing was heard for too long -------+

The broker's side of this is broker/remote/members.py. Times are int nanoseconds of any steady clock.
"""

from __future__ import annotations

from enum import Enum

from protocol.errors import ProtocolError
from protocol.services import FORGOTTEN_NS, Welcome

JOIN_EVERY_NS = 500_000_000
BEAT_NS, SILENCE_NS = 500_000_000, 2_000_000_000  # until the broker has said what it wants
LONGEST_NS = 3600 * 10**9


class Due(Enum):
    JOIN = "join"
    BEAT = "beat"
    LOST = "lost"


class OwnMembership:
    """To be asked what is ``due`` several times in a ``silence_ns``, and told what happens."""

    def __init__(self, now: int) -> None:
        self.is_member = False
        self.beat_ns, self.silence_ns = BEAT_NS, SILENCE_NS
        self.broker = ""  # which process welcomed us last
        self._heard_at = self._said_at = self._asked_at = now
        self._join_at: int | None = None  # None without a connection

    def connected(self, now: int) -> None:
        self._join_at = now

    def disconnected(self) -> None:
        self.is_member = False
        self._join_at = None

    def welcomed(self, welcome: Welcome, now: int) -> bool:
        """Whether it is news: Join may have been said twice. Raises ProtocolError."""
        if not 0 < welcome.beat_ns < welcome.silence_ns < LONGEST_NS:
            raise ProtocolError(f"beats after {welcome.beat_ns} ns cannot fill {welcome.silence_ns} ns")
        if self.is_member and welcome.broker == self.broker:
            return False
        self.is_member = True
        self.broker = welcome.broker
        self.beat_ns, self.silence_ns = welcome.beat_ns, welcome.silence_ns
        return True

    def heard(self, now: int) -> None:
        """Anything at all."""
        self._heard_at = now

    def said(self, now: int) -> None:
        self._said_at = now

    def is_forgotten(self, now: int) -> bool:
        """Whether nobody has asked what is due for so long that the broker keeps nothing for us any more."""
        return self.is_member and now - self._asked_at >= FORGOTTEN_NS

    def silent_ns(self, now: int) -> int:
        """For how long nothing has been heard."""
        return now - self._heard_at

    def due(self, now: int) -> Due | None:
        """What is to be done now. After LOST it is a member no more."""
        held_up = now - self._asked_at > self.silence_ns // 2
        self._asked_at = now
        if self.is_member:
            if held_up:  # what has come meanwhile is heard first
                self._heard_at = max(self._heard_at, now - self.silence_ns + self.beat_ns)
            if self.silent_ns(now) >= self.silence_ns:
                self.is_member = False
                self._join_at = now
                return Due.LOST
            return Due.BEAT if now - self._said_at >= self.beat_ns else None
        if self._join_at is not None and now >= self._join_at:
            self._join_at = now + JOIN_EVERY_NS
            return Due.JOIN
        return None
