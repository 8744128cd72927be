import os
import resource
import shutil
import tempfile

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shm.errors import BadHandle, ShmFull
from shm.segment import HEADER_NBYTES
from shm.store import PRIVATE_NBYTES, Reader, Store

MIB = 1 << 20


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path)


@pytest.fixture
def store(directory):
    store = Store(directory)
    yield store
    store.check()
    store.close()


@pytest.fixture
def reader(directory):
    reader = Reader(directory)
    yield reader
    reader.close()


def test_a_store_that_was_never_used_has_no_segment(store, directory):
    assert os.listdir(directory) == []
    assert store.nbytes == 0


def test_a_block_is_writable_memory_of_exactly_that_size(store):
    block = store.allocate(100)
    assert len(block.view) == block.nbytes == 100
    assert not block.view.readonly
    np.frombuffer(block.view, dtype=np.uint8)[:] = 3
    assert bytes(block.view) == b"\x03" * 100


def test_a_reader_sees_the_block_by_its_handle_without_a_copy(store, reader):
    block = store.allocate(5)
    view = reader.view(block.segment, block.offset, block.nbytes)
    block.view[:] = b"hello"
    assert bytes(view) == b"hello"
    view[:1] = b"j"
    assert bytes(block.view) == b"jello"


def test_blocks_are_aligned_to_64_bytes_in_memory(store):
    for size in (1, 100, 5000):
        address = np.frombuffer(store.allocate(size).view, dtype=np.uint8).ctypes.data
        assert address % 64 == 0


def test_an_empty_block_is_a_block(store, reader):
    block = store.allocate(0)
    assert len(block.view) == 0
    assert len(reader.view(block.segment, block.offset, 0)) == 0
    store.free(block)


def test_a_store_starts_with_one_mebibyte(store, directory):
    store.allocate(1)
    assert MIB <= store.nbytes < MIB + 8192
    assert len(os.listdir(directory)) == 1


def test_the_first_segment_is_made_on_demand_and_then_used(store):
    segment = store.first()
    assert store.allocate(10).segment == segment.name
    assert store.first() is segment


def test_a_store_grows_when_its_segments_are_full(store, directory):
    blocks = [store.allocate(MIB // 2) for _ in range(12)]
    assert len({block.segment for block in blocks}) == len(os.listdir(directory)) == 3
    assert len({block[:2] for block in blocks}) == 12


def test_a_block_larger_than_any_segment_gets_its_own(store):
    store.allocate(1)
    block = store.allocate(100 * MIB)
    assert len(block.view) == 100 * MIB
    assert store.nbytes < 102 * MIB


def test_a_large_block_comes_back_warm(store):
    first = store.allocate(16 * MIB)
    first.view[:] = bytes(16 * MIB)
    store.free(first)
    small = store.allocate(64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    again = store.allocate(16 * MIB)
    again.view[::1024] = bytes(16 * 1024)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert again[:2] == first[:2]
    assert small.segment != again.segment
    assert faults < 100  # 4096 pages


def test_freed_neighbours_are_joined_before_a_new_segment_is_made(store):
    blocks = [store.allocate(64 << 10) for _ in range(15)]
    for block in blocks:
        store.free(block)
    before = store.nbytes
    store.allocate(900 << 10)
    assert store.nbytes == before


def test_freeing_twice_is_an_error(store):
    block = store.allocate(100)
    store.free(block)
    with pytest.raises(ValueError):
        store.free(block)


def test_another_store_s_block_cannot_be_freed(store, directory):
    other = Store(directory)
    block = other.allocate(100)
    with pytest.raises(ValueError, match="another store"):
        store.free(block)
    other.close()


def test_a_store_never_grows_past_its_limit(directory):
    store = Store(directory, limit=2 * MIB)
    blocks = [store.allocate(MIB // 2), store.allocate(MIB // 2 + 8192)]
    with pytest.raises(ShmFull, match="limit"):
        store.allocate(MIB)
    assert store.nbytes <= 2 * MIB
    store.free(blocks[0])
    assert store.allocate(MIB // 2)[:2] == blocks[0][:2]
    store.close()


def test_where_doubling_fails_a_segment_of_just_the_size_needed_will_do(directory):
    store = Store(directory, initial=1 << 60)
    assert len(store.allocate(100).view) == 100
    store.close()


def test_a_size_that_cannot_be_had_is_an_error_and_the_store_goes_on(store):
    with pytest.raises(ShmFull):
        store.allocate(1 << 60)
    assert len(store.allocate(10).view) == 10


def test_trim_gives_back_segments_that_stayed_empty_for_ten_seconds(store, directory):
    store.allocate(10)
    large = store.allocate(16 * MIB)
    store.free(large)
    store.trim(100.0)
    store.trim(109.9)
    assert large.segment in os.listdir(directory)
    store.trim(110.0)
    assert large.segment not in os.listdir(directory)


def test_a_segment_used_between_two_trims_is_kept(store, directory):
    store.allocate(10)
    store.free(store.allocate(16 * MIB))
    store.trim(100.0)
    store.free(store.allocate(16 * MIB))
    store.trim(110.0)
    store.trim(119.0)
    assert len(os.listdir(directory)) == 2


def test_the_first_segment_is_never_trimmed(store):
    store.free(store.allocate(10))
    store.trim(0.0)
    store.trim(1000.0)
    assert os.path.exists(os.path.join(store._directory, store.first().name))


def test_close_unlinks_everything_but_views_stay_valid(directory):
    store = Store(directory)
    array = np.frombuffer(store.allocate(100).view, dtype=np.uint8)
    store.allocate(2 * MIB)
    store.close()
    assert os.listdir(directory) == []
    array[:] = 1
    assert array.sum() == 100


def test_a_closed_store_gives_nothing_and_takes_back_quietly(directory):
    store = Store(directory)
    block = store.allocate(100)
    store.close()
    store.free(block)
    with pytest.raises(ShmFull, match="closed"):
        store.allocate(1)


def test_a_block_s_repr_holds_no_segment_name(store):
    assert repr(store.allocate(5)) == "Block(nbytes=5)"


@pytest.mark.parametrize(
    "offset, nbytes",
    [
        (0, 8),  # the header
        (HEADER_NBYTES - 1, 8),
        (-64, 8),
        (HEADER_NBYTES, -1),
        (HEADER_NBYTES, 1 << 40),
        (1 << 40, 0),
        (1 << 63, 1 << 63),
        (2 << 20, 1),
        ("128", 8),
        (128.0, 8),
        (None, 8),
        (HEADER_NBYTES, b""),
    ],
)
def test_handles_that_lie_outside_their_segment_are_refused(store, reader, offset, nbytes):
    segment = store.first().name
    with pytest.raises(BadHandle) as caught:
        reader.view(segment, offset, nbytes)
    assert str(caught.value) == "a tensor handle lies outside its segment"


def test_the_last_byte_of_a_segment_can_be_read(store, reader):
    segment = store.first()
    assert len(reader.view(segment.name, segment.size - 1, 1)) == 1
    with pytest.raises(BadHandle):
        reader.view(segment.name, segment.size - 1, 2)


@pytest.mark.parametrize("name", ["", "../x", f"tensorbus-1-{'0' * 32}", 5, None, ["x"], b"x"])
def test_handles_of_unknown_segments_are_refused_without_naming_them(reader, name):
    with pytest.raises(BadHandle) as caught:
        reader.view(name, HEADER_NBYTES, 8)
    assert "tensorbus-" not in str(caught.value)


def test_a_reader_attaches_a_segment_once(store, reader):
    name = store.first().name
    for _ in range(2):
        reader.view(name, HEADER_NBYTES, 8)
    assert _times_mapped(name) == 2  # once by its owner


def test_a_forgotten_segment_is_unmapped_once_its_views_are_gone(store, reader):
    block = store.allocate(8)
    view = reader.view(*block[:3])
    block.view[:] = b"12345678"
    reader.forget(block.segment)
    reader.forget(block.segment)
    assert bytes(view) == b"12345678"
    mapped = _times_mapped(block.segment)
    del view
    assert _times_mapped(block.segment) == mapped - 1


def test_a_reader_drops_segments_that_their_owner_has_trimmed(store, reader):
    kept, large = store.allocate(10), store.allocate(16 * MIB)
    for block in (kept, large):
        reader.view(*block[:3])
    store.free(large)
    store.trim(0.0)
    store.trim(10.0)
    segment = large.segment
    del large, block
    reader.trim()
    assert _times_mapped(segment) == 0
    assert _times_mapped(kept.segment) == 2


def _times_mapped(segment):
    with open("/proc/self/maps") as file:
        return file.read().count(segment)


class RandomUse(RuleBasedStateMachine):
    """Whatever the order of calls, no block's bytes are changed through another block."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.store = Store(self.directory, initial=8192, limit=256 << 10)
        self.reader = Reader(self.directory)
        self.blocks = []
        self.now = 0.0
        self.count = 0

    @rule(nbytes=st.integers(0, 20000) | st.sampled_from([64, 4096, 64 << 10, 1 << 20]))
    def allocate(self, nbytes):
        try:
            block = self.store.allocate(nbytes)
        except ShmFull:
            return
        self.count += 1
        fill = bytes([self.count % 256]) * nbytes
        block.view[:] = fill
        self.blocks.append((block, fill))

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def free(self, data):
        block, fill = self.blocks.pop(data.draw(st.integers(0, len(self.blocks) - 1)))
        assert bytes(self.reader.view(*block[:3])) == fill
        self.store.free(block)

    @rule(seconds=st.integers(0, 12))
    def trim(self, seconds):
        self.now += seconds
        self.store.trim(self.now)
        self.reader.trim()

    @invariant()
    def the_books_are_in_order(self):
        self.store.check()
        assert self.store.nbytes <= 256 << 10
        assert all(bytes(block.view) == fill for block, fill in self.blocks)

    def teardown(self):
        self.store.close()
        self.reader.close()
        assert os.listdir(self.directory) == []
        shutil.rmtree(self.directory)


TestRandomUse = RandomUse.TestCase
TestRandomUse.settings = settings(max_examples=30, deadline=None)


@pytest.mark.parametrize("start", [0, 100])
def test_a_large_block_that_others_look_at_is_seen_copy_on_write(store, reader, start):
    small = store.allocate(start)
    block = store.allocate(PRIVATE_NBYTES)
    block.view[:4] = b"seen"
    view = reader.view_shared(*block[:3])
    again = reader.view_shared(*block[:3])
    assert (len(view), bytes(view[:4])) == (PRIVATE_NBYTES, b"seen")
    view[:4] = b"mine"
    assert bytes(block.view[:4]) == bytes(again[:4]) == b"seen"
    assert small.nbytes == start


def test_a_small_block_that_others_look_at_is_seen_as_it_is(store, reader):
    block = store.allocate(100)
    view = reader.view_shared(*block[:3])
    block.view[:] = b"x" * 100
    assert bytes(view) == b"x" * 100


def test_a_large_block_whose_owner_has_died_is_seen_by_a_copy(store, reader):
    block = store.allocate(PRIVATE_NBYTES)
    block.view[:4] = b"seen"
    mapped = reader.view(*block[:3])
    store.close()
    view = reader.view_shared(*block[:3])
    view[:4] = b"mine"
    assert bytes(mapped[:4]) == b"seen"


def test_the_owner_sees_the_bytes_of_a_handle_of_its_own_and_of_no_other(store, directory):
    block = store.allocate(5)
    block.view[:] = b"hello"
    assert bytes(store.view(block.segment, block.offset, 5)) == b"hello"
    other = Store(directory)
    foreign = other.allocate(5)
    for segment, offset, nbytes in (
        (foreign.segment, foreign.offset, 5),
        (block.segment, HEADER_NBYTES - 1, 5),
        (block.segment, block.offset, 1 << 40),
        (block.segment, block.offset, -1),
    ):
        with pytest.raises(BadHandle):
            store.view(segment, offset, nbytes)
    other.close()


def test_another_tag_is_for_a_store_that_holds_nothing(directory):
    store = Store(directory, tag="11111111")
    block = store.allocate(5)
    assert not store.retag("22222222") and block.segment[-32:-24] == "11111111"
    store.free(block)
    assert store.retag("22222222") and os.listdir(directory) == []
    assert store.allocate(5).segment[-32:-24] == "22222222"
    store.check()
    store.close()
