import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shm.arena import ALIGNMENT, Arena


def test_offsets_are_aligned_and_do_not_overlap():
    arena = Arena(1024)
    offsets = [arena.allocate(65) for _ in range(8)]
    assert offsets == [0, 128, 256, 384, 512, 640, 768, 896]
    assert arena.allocate(1) is None
    arena.check()


def test_an_empty_block_has_an_offset_of_its_own():
    arena = Arena(128)
    assert {arena.allocate(0), arena.allocate(0)} == {0, 64}


def test_the_last_chunk_freed_is_the_next_given():
    arena = Arena(1024)
    offsets = [arena.allocate(100) for _ in range(3)]
    arena.free(offsets[0])
    arena.free(offsets[1])
    assert arena.allocate(100) == offsets[1]


def test_freeing_twice_is_an_error():
    arena = Arena(1024)
    offset = arena.allocate(100)
    arena.free(offset)
    with pytest.raises(ValueError, match="no chunk in use starts at 0"):
        arena.free(offset)


@pytest.mark.parametrize("offset", [64, -64, 1, 4096])
def test_freeing_what_was_never_given_is_an_error(offset):
    arena = Arena(1024)
    arena.allocate(128)
    with pytest.raises(ValueError):
        arena.free(offset)


def test_a_negative_size_is_an_error():
    with pytest.raises(ValueError, match="negative"):
        Arena(1024).allocate(-1)


def test_the_whole_range_can_be_one_block():
    arena = Arena(1024)
    assert arena.allocate(1024) == 0
    assert arena.free_bytes == 0


def test_what_does_not_fill_a_last_line_is_not_used():
    arena = Arena(100)
    assert arena.nbytes == 64
    assert arena.allocate(65) is None


def test_a_range_too_small_for_anything_gives_nothing():
    assert Arena(10).allocate(0) is None


def test_free_neighbours_make_room_once_merged():
    arena = Arena(1024)
    offsets = [arena.allocate(64) for _ in range(16)]
    for offset in offsets:
        arena.free(offset)
    assert arena.allocate(1024) is None
    arena.merge()
    assert arena.allocate(1024) == 0


def test_merging_leaves_chunks_in_use_alone():
    arena = Arena(512)
    offsets = [arena.allocate(128) for _ in range(4)]
    for offset in (offsets[0], offsets[1], offsets[3]):
        arena.free(offset)
    arena.merge()
    arena.check()
    assert arena.allocate(129) == 0
    assert arena.allocate(128) == offsets[3]


def test_the_smallest_chunk_that_is_large_enough_is_cut():
    arena = Arena(4096)
    large, _, small, _ = (arena.allocate(size) for size in (1024, 64, 256, 2752))
    arena.free(large)
    arena.free(small)
    assert arena.allocate(192) == small


def test_sizes_that_never_come_again_leave_no_bins_behind():
    arena = Arena(1 << 20)
    source = random.Random(1)
    for _ in range(2000):
        offset = arena.allocate(source.randrange(1 << 14))
        if offset is None:
            arena.merge()
        else:
            arena.free(offset)
    arena.merge()
    arena.check()
    assert arena.allocate(1 << 20) == 0


class RandomUse(RuleBasedStateMachine):
    """Any sequence of calls keeps the invariant, and blocks in use never overlap."""

    def __init__(self):
        super().__init__()
        self.arena = Arena(4096)
        self.blocks = {}

    @rule(nbytes=st.integers(0, 5000) | st.sampled_from([64, 128, 256]))
    def allocate(self, nbytes):
        offset = self.arena.allocate(nbytes)
        if offset is not None:
            assert offset % ALIGNMENT == 0
            self.blocks[offset] = nbytes

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def free(self, data):
        offset = data.draw(st.sampled_from(sorted(self.blocks)))
        del self.blocks[offset]
        self.arena.free(offset)

    @rule()
    def merge(self):
        self.arena.merge()

    @rule()
    def fill_the_largest_gap_after_merge(self):
        self.arena.merge()
        ends = [0, *sorted(o + -(-max(n, 1) // 64) * 64 for o, n in self.blocks.items())]
        gap = max(start - end for end, start in zip(ends, [*sorted(self.blocks), 4096]))
        assert self.arena.allocate(gap + 1) is None
        if gap:
            self.blocks[self.arena.allocate(gap)] = gap

    @invariant()
    def the_books_are_in_order(self):
        self.arena.check()
        assert self.arena.is_empty == (not self.blocks)
        spans = sorted(self.blocks.items())
        assert all(offset + nbytes <= after for (offset, nbytes), (after, _) in zip(spans, spans[1:]))
        assert all(offset + nbytes <= 4096 for offset, nbytes in spans)


TestRandomUse = RandomUse.TestCase
