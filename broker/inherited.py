"""What stubs have lent that were not started by this broker: each lease of their outputs ends once. Pure.

A stub that outlives its broker still waits to be told which of its outputs were read. Its host says which it has lent,
and readers say what they still read: a gateway of itself, a host of its stubs. A lease is over when its reader has done
with it or is gone, or if nobody turns up who reads it. What a reader says that is not so changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.ensemble_leases import ORIGIN

Lease = tuple[str, int]  # the key of the stub that has lent the outputs, and its number for them

_NEVER = 1 << 63  # ns


class InheritedLeases:
    def __init__(self, serves: Callable[[str], bool], is_used: Callable[[Lease], bool], patience_ns: int) -> None:
        """``serves`` says whether the stub of this key has been taken over: before that it cannot be told anything;
        ``is_used`` whether somebody reads it who has it from this broker. ``patience_ns`` is how long after the host of
        a stub its readers may join."""
        self._serves = serves
        self._is_used = is_used
        self._patience_ns = patience_ns
        self._lent: dict[str, dict[int, int]] = {}  # by key and lease: when nobody who reads it is still to come
        self._claims: dict[str, set[Lease]] = {}  # by reader: the id of a gateway, or the key of a stub

    def lent(self, key: str, leases: Iterable[int], now: int) -> None:
        """By a stub whose host has joined."""
        self._lent[key] = dict.fromkeys(leases, now + self._patience_ns)

    def lends(self, key: str, lease: int) -> None:
        """With a response, whose reader gets it from this broker."""
        if key in self._lent:
            self._lent[key][lease] = _NEVER

    def claim(self, reader: str, leases: Iterable[Lease]) -> None:
        """It still reads these, which may be of a stub whose host has still to join."""
        claims = set(leases)
        if claims:
            self._claims.setdefault(reader, set()).update(claims)

    def has(self, reader: str, lease: Lease) -> bool:
        """Whether it has said that it reads this, and not yet that it has done with it."""
        return lease in self._claims.get(reader, ())

    def read(self, reader: str, lease: Lease) -> bool:
        """It has done with it. Whether its stub is to be told now: one that is not taken over yet is later."""
        if not self.has(reader, lease):
            return False
        claims = self._claims[reader]
        claims.remove(lease)
        if not claims:
            del self._claims[reader]
        return lease[1] in self._lent.get(lease[0], ()) and self._serves(lease[0])

    def ends(self, lease: Lease) -> bool:
        """Whether its stub is to be told so: not if it has been told, or has never lent it."""
        origin, number = lease
        leases = self._lent.get(origin)
        return leases is None or leases.pop(number, None) is not None

    def gone(self, service: str) -> None:
        """A gateway or a stub: it reads nothing any more, and what it has lent is gone with it."""
        self._claims.pop(service, None)
        self._lent.pop(service, None)

    def unclaimed(self, now: int) -> list[Lease]:
        """Those that end now since nobody reads them.

        A response of an ensemble shows outputs of steps, of which only the broker knew that was lost: while such a
        response is read, anything may be one of them."""
        claimed = set().union(*self._claims.values())
        if any(origin == ORIGIN for origin, _ in claimed):
            return []
        return [
            (key, number)
            for key, leases in self._lent.items()
            if self._serves(key)
            for number, until_ns in leases.items()
            if until_ns <= now and (key, number) not in claimed and not self._is_used((key, number))
        ]
