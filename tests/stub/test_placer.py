"""Tensors on their way out: into a block, by the handle of another's memory, or into frames."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from protocol.messages import Handle
from shm.store import Reader, Store
from stub.placer import Placer
from stub.tensor import Place

A = ("A", "UINT8", (3,), b"abc")
LENT = ("L", "UINT8", (2,), Place(Handle("another's", 128, 2), np.ones(2, np.uint8), True, True))


@pytest.fixture
def store(tmp_path):
    store = Store(str(tmp_path))
    yield store
    store.check()
    store.close()


def test_what_lies_in_another_s_memory_stays_there(store):
    placed = Placer(store).place([LENT, A])
    lent, copied = placed.references
    assert (lent.place, lent.shared, copied.shared) == (LENT[3].handle, True, False)
    assert placed.block.nbytes == 64
    assert placed.roots == [LENT[3].root]


def test_what_is_lent_needs_no_memory_of_ours(store):
    placed = Placer(store).place([LENT])
    assert (placed.block, placed.is_on_lease, placed.frames) == (None, True, [])


def test_what_is_lent_is_held_until_it_is_freed(store):
    placer = Placer(store)
    placed = placer.place([LENT])
    placer.free([placed])
    assert placed.roots == []


def test_frames_are_numbered_from_the_first_of_these_tensors():
    placed = Placer(None).place([A, A], first_frame=5)
    assert [tensor.place for tensor in placed.references] == [5, 6]
    assert (placed.frames, placed.is_on_lease) == ([b"abc", b"abc"], False)


def test_small_tensors_go_with_their_references(store):
    placer = Placer(store, small_nbytes=3)
    placed = placer.place([("S", "UINT8", (2,), memoryview(b"xy")), A, LENT])
    small, large, lent = placed.references
    assert (small.place, type(large.place), lent.place) == (b"xy", Handle, LENT[3].handle)
    assert placed.block.nbytes == 64
    assert not placer.place([("S", "UINT8", (2,), b"xy")]).is_on_lease
    assert Placer(None, small_nbytes=4).place([A]).references[0].place == b"abc"


@pytest.mark.parametrize("others", [[A], [LENT], [("S", "UINT8", (2,), memoryview(b"xy"))]])
def test_only_tensors_that_are_all_small_bytes_are_mere_references(store, others):
    placer = Placer(store, small_nbytes=3)
    small = ("S", "UINT8", (2,), b"xy")
    assert placer.references([small, small]) == placer.place([small, small]).references
    assert placer.references([small, *others]) is None


def test_a_forked_process_leaves_the_memory_alone(store):
    placer = Placer(store)
    placed = placer.place([A])
    child = os.fork()
    if not child:
        try:
            inline = placer.place([A])
            placer.free([placed])
            os._exit(0 if inline.frames == [b"abc"] and not inline.is_on_lease else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    placer.free([placed])


def test_memory_that_waits_for_tensors_of_its_size_is_there_for_others(store):
    placer = Placer(store)
    placer.free([placer.place([("A", "UINT8", (700_000,), bytes(700_000))])])
    before = store.nbytes
    placer.place([("A", "UINT8", (800_000,), bytes(800_000))])
    assert store.nbytes == before


def test_the_store_has_its_memory_back_after_a_trim(store):
    placer = Placer(store)
    placer.free([placer.place([A])])
    placer.trim(0.0)
    assert store.retag("")


def test_many_threads_place_and_free(store, tmp_path):
    placer, reader = Placer(store), Reader(str(tmp_path))

    def work(number):
        for turn in range(200):
            nbytes = 1000 + turn // 50 * 100
            data = bytes([number]) * nbytes
            placed = placer.place([("A", "UINT8", (nbytes,), data)])
            assert bytes(reader.view(*placed.references[0].place)) == data
            placer.free([placed])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    reader.close()


def test_what_is_to_be_inline_takes_no_memory(store):
    placed = Placer(store).place([A, A], first_frame=2, inline=True)
    assert [tensor.place for tensor in placed.references] == [2, 3]
    assert (placed.frames, placed.is_on_lease) == ([b"abc", b"abc"], False)


def test_the_memory_of_what_cannot_be_copied_is_free_again(store):
    placer = Placer(store)
    with pytest.raises(TypeError):
        placer.place([A, ("B", "UINT8", (3,), [1, 2, 3])])
    placer.trim(0.0)
    assert all(region.arena.is_empty for region in store._regions)
