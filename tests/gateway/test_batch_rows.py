from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.batch_rows import BatchRows, Slot
from shm.arena import ALIGNMENT
from shm.store import Store

KIB = 1 << 10


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(str(tmp_path))
    yield store
    store.check()
    store.close()


def in_use(store: Store) -> int:
    return sum(region.arena.nbytes - region.arena.free_bytes for region in store._regions)


def take(rows: BatchRows, *sizes: int) -> Slot:
    slot = rows.take(sizes)
    assert slot is not None
    assert [len(view) for _, view in slot.rows] == list(sizes)
    return slot


def test_each_input_of_requests_that_follow_each_other_is_one_piece(store: Store) -> None:
    rows = BatchRows(store, 64)
    slots = [take(rows, 1024, 64) for _ in range(8)]
    for number, nbytes in enumerate((1024, 64)):
        offsets = [slot.rows[number][0] for slot in slots]
        assert offsets == [offsets[0] + nbytes * n for n in range(8)]
        assert all(offset % ALIGNMENT == 0 for offset in offsets)
    assert len({slot.block.segment for slot in slots}) == 1


def test_a_slot_is_freed_by_the_store_as_any_block(store: Store) -> None:
    rows = BatchRows(store, 4)
    first = take(rows, 1024)
    assert (first.block.offset, first.block.nbytes) == (first.rows[0][0], 1024)
    store.free(first.block)
    with pytest.raises(ValueError, match="not in use"):
        store.free(first.block)
    assert take(rows, 1024).rows[0][0] == first.rows[0][0]


def test_a_lone_client_gets_the_same_memory_again(store: Store) -> None:
    rows = BatchRows(store, 64)
    offsets = set()
    for _ in range(100):
        slot = take(rows, 1024)
        offsets.add(slot.rows[0][0])
        store.free(slot.block)
    assert len(offsets) == 1
    assert in_use(store) == 8 * 1024


def test_there_is_more_room_when_more_requests_are_under_way(store: Store) -> None:
    rows = BatchRows(store, 16)
    slots = [rows.take((1024,)) for _ in range(100)]
    assert in_use(store) == (8 + 32) * 1024  # the one of 64 comes when that of 8 is free
    assert sum(slot is not None for slot in slots) == 8 + 32
    for slot in slots:
        if slot is not None:
            store.free(slot.block)
    slots = [rows.take((1024,)) for _ in range(100)]
    assert sum(slot is not None for slot in slots) == 32 + 64  # four batches of the largest size
    rows.check()


def test_a_lone_client_of_large_tensors_takes_the_memory_of_two(store: Store) -> None:
    rows = BatchRows(store, 64)
    for _ in range(10):
        store.free(take(rows, 3 << 20).block)
    assert in_use(store) == 2 * (3 << 20)


def test_requests_that_stay_keep_no_more_than_one_slab_beside_that_in_use(store: Store) -> None:
    rows = BatchRows(store, 8)
    kept = []
    for number in range(1000):
        slot = rows.take((1024,))
        if slot is not None and number % 10 == 0:
            kept.append(slot)
        elif slot is not None:
            store.free(slot.block)
    assert in_use(store) <= 2 * 32 * 1024
    for slot in kept:
        store.free(slot.block)
    assert rows.take((1024,)) is not None


def test_tensors_that_would_not_stay_aligned_lie_elsewhere(store: Store) -> None:
    rows = BatchRows(store, 8)
    assert rows.take((1000,)) is None
    assert rows.take((1024, 0)) is None
    assert in_use(store) == 0


def test_there_are_not_more_than_four_slabs_of_a_model(store: Store) -> None:
    rows = BatchRows(store, 8)
    assert [rows.take((64 * n,)) is not None for n in range(1, 7)] == [True] * 4 + [False] * 2


def test_a_slab_takes_no_more_than_a_part_of_what_is_left(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = BatchRows(store, 64)
    monkeypatch.setattr(Store, "available", lambda store: 31 * KIB)
    assert rows.take((KIB,)) is None
    monkeypatch.setattr(Store, "available", lambda store: 32 * KIB)
    assert rows.take((KIB,)) is not None


def test_full_shared_memory_is_no_error(tmp_path: Path) -> None:
    store = Store(str(tmp_path), initial=64 * KIB, limit=64 * KIB)
    assert BatchRows(store, 64).take((64 * KIB,)) is None
    store.close()


def test_what_is_not_used_any_more_is_given_back(store: Store) -> None:
    rows = BatchRows(store, 8)
    slot = take(rows, 1024)
    assert rows.trim()
    assert rows.trim()  # it is still in use
    store.free(slot.block)
    assert in_use(store) == 8 * 1024
    assert not rows.trim()
    assert in_use(store) == 0


STEPS = st.lists(
    st.one_of(st.sampled_from([(1024,), (1024, 2048), (64,)]), st.integers(0, 50), st.just("trim"), st.just("oldest")),
    max_size=150,
)


@given(STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_lies_in_a_slot_stays_until_it_is_freed(tmp_path: Path, steps: list[tuple[int, ...] | int | str]) -> None:
    """Sizes take a slot and write to it, a number frees one, "oldest" all in order up to the last."""
    store = Store(str(tmp_path))
    rows = BatchRows(store, 4)
    used: list[tuple[Slot, bytes]] = []

    def free(index: int) -> None:
        slot, mark = used.pop(index)
        for _, view in slot.rows:
            assert view[:] == mark * len(view)
        store.free(slot.block)

    for number, step in enumerate(steps):
        mark = bytes([number % 255 + 1])
        if isinstance(step, tuple):
            slot = rows.take(step)
            if slot is not None:
                for _, view in slot.rows:
                    view[:] = mark * len(view)
                used.append((slot, mark))
        elif step == "trim":
            rows.trim()
        elif step == "oldest":
            while len(used) > 1:
                free(0)
        elif used:
            assert isinstance(step, int)
            free(step % len(used))
        rows.check()
        store.check()
    while used:
        free(0)
    rows.trim()
    assert not rows.trim()
    assert in_use(store) == 0
    store.close()
