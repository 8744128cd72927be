import pytest
from hypothesis import given
from hypothesis import strategies as st

from shm.ring import Ring


def test_slots_go_out_in_order_and_come_back_in_any() -> None:
    ring = Ring(3)
    assert [ring.allocate() for _ in range(4)] == [0, 1, 2, None]
    ring.free(1)
    assert ring.allocate() is None  # the next one is still in use
    ring.free(0)
    assert [ring.allocate() for _ in range(3)] == [0, 1, None]
    ring.check()


def test_when_none_is_in_use_the_first_is_next() -> None:
    ring = Ring(3)
    for _ in range(5):
        assert ring.allocate() == 0
        ring.free(0)


def test_a_slot_that_is_not_in_use_cannot_be_freed() -> None:
    ring = Ring(2)
    ring.allocate()
    for slot in (1, -1, 2):
        with pytest.raises(ValueError, match="not in use"):
            ring.free(slot)
    ring.free(0)
    with pytest.raises(ValueError, match="not in use"):
        ring.free(0)
    with pytest.raises(ValueError, match="one slot"):
        Ring(0)


@given(st.integers(1, 6), st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=60))
def test_no_slot_is_given_out_twice_and_neighbours_follow_each_other(nslots: int, steps: list[int | None]) -> None:
    """None takes a slot; a number gives that of the ones in use back."""
    ring = Ring(nslots)
    used: list[int] = []
    last = 0
    for step in steps:
        if step is None:
            had_room = ring.has_room
            slot = ring.allocate()
            assert (slot is not None) == had_room
            if slot is not None:
                assert slot not in used
                assert slot == ((last + 1) % nslots if used else 0)
                last = slot
                used.append(slot)
            else:
                assert used
        elif used:
            ring.free(used.pop(step % len(used)))
        assert len(ring) == len(used)
        ring.check()
