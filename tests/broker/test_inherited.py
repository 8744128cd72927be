"""What stubs have lent in the time of an earlier broker: each lease ends once, and none of what is read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.ensemble_leases import ORIGIN
from broker.inherited import InheritedLeases
from tests.random_events import run_random_events

PATIENCE = 100


class Bench:
    def __init__(self) -> None:
        self.serving = {"7.2", "8.1"}
        self.used: set[tuple[str, int]] = set()
        self.leases = InheritedLeases(self.serving.__contains__, self.used.__contains__, PATIENCE)

    def told(self, now: int) -> list[tuple[str, int]]:
        """Which stubs are told of what that nobody reads."""
        return [lease for lease in self.leases.unclaimed(now) if self.leases.ends(lease)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_nobody_says_to_read_ends_once_all_who_might_have_come(bench):
    bench.leases.lent("7.2", [1, 2], now=0)
    assert bench.told(PATIENCE - 1) == []
    assert bench.told(PATIENCE) == [("7.2", 1), ("7.2", 2)]
    assert bench.told(PATIENCE + 1) == []


def test_what_a_reader_has_claimed_ends_when_it_has_read_it(bench):
    bench.leases.claim("gateway", [("7.2", 1)])  # before the host of the stub has joined
    bench.leases.lent("7.2", [1, 2], now=0)
    assert bench.told(PATIENCE) == [("7.2", 2)]
    assert bench.leases.has("gateway", ("7.2", 1)) and bench.leases.read("gateway", ("7.2", 1))
    assert bench.leases.ends(("7.2", 1)) and not bench.leases.ends(("7.2", 1))
    assert not bench.leases.has("gateway", ("7.2", 1)) and not bench.leases.read("gateway", ("7.2", 1))


def test_what_a_reader_has_claimed_ends_when_it_is_gone(bench):
    bench.leases.lent("7.2", [1], now=0)
    bench.leases.claim("8.1", [("7.2", 1)])
    assert bench.told(PATIENCE) == []
    bench.leases.gone("8.1")
    assert bench.told(PATIENCE) == [("7.2", 1)]


def test_nobody_ends_what_another_reads_or_what_was_never_lent(bench):
    bench.leases.lent("7.2", [1], now=0)
    bench.leases.claim("gateway", [("7.2", 1)])
    bench.leases.claim("wrong", [("7.2", 5), ("9.9", 1), ("cache", 1)])
    for lease in [("7.2", 1), ("7.2", 5), ("9.9", 1), ("cache", 1)]:
        assert not bench.leases.read("wrong", lease)
    assert not bench.leases.ends(("7.2", 5))
    assert bench.leases.has("gateway", ("7.2", 1))


def test_what_was_read_before_its_stub_is_taken_over_ends_after_that(bench):
    bench.serving.clear()
    bench.leases.lent("7.2", [1], now=0)
    bench.leases.claim("gateway", [("7.2", 1)])
    assert not bench.leases.read("gateway", ("7.2", 1))
    assert bench.told(PATIENCE) == []
    bench.serving.add("7.2")
    assert bench.told(PATIENCE) == [("7.2", 1)]


def test_what_is_read_by_way_of_this_broker_is_left_to_it(bench):
    """A host that was lost and is back has lent what gateways read that were there all the time."""
    bench.leases.lent("7.2", [1], now=0)
    bench.leases.lends("7.2", 2)
    bench.used.add(("7.2", 1))
    assert bench.told(PATIENCE) == []
    assert bench.leases.ends(("7.2", 2)) and not bench.leases.ends(("7.2", 2))
    bench.used.clear()
    assert bench.told(PATIENCE) == [("7.2", 1)]


def test_while_the_response_of_an_ensemble_is_read_nothing_ends_that_it_may_show(bench):
    bench.leases.lent("7.2", [1], now=0)
    bench.leases.claim("gateway", [(ORIGIN, 77)])
    assert bench.told(PATIENCE) == []
    assert not bench.leases.read("gateway", (ORIGIN, 77))
    assert bench.told(PATIENCE) == [("7.2", 1)]


def test_stubs_of_this_broker_are_told_all(bench):
    assert bench.leases.ends(("8.1", 1)) and bench.leases.ends(("8.1", 1))


LEASES = st.tuples(st.sampled_from(["7.2", "8.1"]), st.integers(1, 4))
READERS = st.sampled_from(["g1", "g2"])


class Machine(RuleBasedStateMachine):
    """Against plain books: what is lent, and who reads what."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.now = 0
        self.lent: dict[str, set[int]] = {}
        self.claims: dict[str, set[Any]] = {"g1": set(), "g2": set()}

    @rule(key=st.sampled_from(["7.2", "8.1"]), leases=st.sets(st.integers(1, 4)))
    def join(self, key: str, leases: set[int]) -> None:
        if key not in self.lent:
            self.bench.leases.lent(key, leases, self.now)
            self.lent[key] = set(leases)

    @rule(reader=READERS, leases=st.sets(LEASES))
    def claim(self, reader: str, leases: set[Any]) -> None:
        self.bench.leases.claim(reader, leases)
        self.claims[reader] |= leases

    @rule(reader=READERS, lease=LEASES)
    def read(self, reader: str, lease: Any) -> None:
        has = lease in self.claims[reader]
        self.claims[reader].discard(lease)
        assert self.bench.leases.has(reader, lease) == has
        if self.bench.leases.read(reader, lease):
            assert has and lease[1] in self.lent[lease[0]]
            self.end(lease)

    @rule(service=st.sampled_from(["g1", "g2", "7.2", "8.1"]))
    def gone(self, service: str) -> None:
        self.bench.leases.gone(service)
        self.lent.pop(service, None)
        if service in self.claims:
            self.claims[service].clear()

    @rule(ns=st.integers(0, PATIENCE))
    def wait(self, ns: int) -> None:
        self.now += ns
        for lease in self.bench.leases.unclaimed(self.now):
            assert all(lease not in claims for claims in self.claims.values())
            self.end(lease)

    def end(self, lease: Any) -> None:
        assert self.bench.leases.ends(lease)
        self.lent[lease[0]].remove(lease[1])

    @invariant()
    def none_is_left_for_ever(self) -> None:
        """Those that nobody reads would end, were it late enough."""
        late = self.bench.leases.unclaimed(self.now + PATIENCE)
        claimed = self.claims["g1"] | self.claims["g2"]
        assert sorted(late) == sorted(
            (key, number) for key, leases in self.lent.items() for number in leases if (key, number) not in claimed
        )


def test_whatever_happens_each_lease_ends_once() -> None:
    run_random_events(Machine, usual=60)
