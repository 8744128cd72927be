import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shm.leases import Leases


def test_a_lease_ends_with_its_block():
    leases = Leases()
    leases.grant(1, "block", "gateway")
    assert leases.end(1) == "block"
    assert len(leases) == 0


def test_a_lease_that_has_ended_gives_nothing_more():
    leases = Leases()
    leases.grant(1, "block", "gateway")
    leases.end(1)
    assert leases.end(1) is None


def test_a_lease_that_was_never_granted_gives_nothing():
    assert Leases().end(5) is None


def test_a_holder_s_end_ends_its_leases_and_no_other():
    leases = Leases()
    leases.grant(1, "a", "dead")
    leases.grant(2, "b", "alive")
    leases.grant(3, "c", "dead")
    assert sorted(leases.end_holder("dead")) == ["a", "c"]
    assert leases.end_holder("dead") == []
    assert leases.end(2) == "b"


def test_a_release_that_comes_after_its_holder_s_death_is_harmless():
    leases = Leases()
    leases.grant(1, "a", "dead")
    leases.end_holder("dead")
    assert leases.end(1) is None


def test_a_number_in_use_cannot_be_granted_again():
    leases = Leases()
    leases.grant(1, "a", "gateway")
    with pytest.raises(ValueError, match="lease 1 is granted already"):
        leases.grant(1, "b", "gateway")
    assert leases.end(1) == "a"


class RandomUse(RuleBasedStateMachine):
    """Every block comes back exactly once."""

    def __init__(self):
        super().__init__()
        self.leases = Leases()
        self.expected = {}

    numbers = st.integers(0, 20)
    holders = st.sampled_from("abc")

    @rule(lease=numbers, holder=holders)
    def grant(self, lease, holder):
        if lease not in self.expected:
            self.leases.grant(lease, (lease, holder), holder)
            self.expected[lease] = (lease, holder)

    @rule(lease=numbers)
    def end(self, lease):
        assert self.leases.end(lease) == self.expected.pop(lease, None)

    @rule(holder=holders)
    def end_holder(self, holder):
        gone = {lease: block for lease, block in self.expected.items() if block[1] == holder}
        assert sorted(self.leases.end_holder(holder)) == sorted(gone.values())
        self.expected = {lease: block for lease, block in self.expected.items() if lease not in gone}

    @invariant()
    def the_books_are_in_order(self):
        self.leases.check()
        assert len(self.leases) == len(self.expected)


TestRandomUse = RandomUse.TestCase
