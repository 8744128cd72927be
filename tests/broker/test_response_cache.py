"""The cache's books, and random sequences of all that can happen to them: the memory is an array here."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from broker.response_cache import OVERHEAD, Key, ResponseCache, TooLarge, layout
from metrics.cache_record import CacheRecord
from protocol.messages import TensorRef
from shm.segment import HEADER_NBYTES
from tests.random_events import run_random_events

ROOM = OVERHEAD + 64  # what an entry of one small tensor counts


def tensor(nbytes: int, name: str = "Y") -> tuple[TensorRef, int]:
    return TensorRef(name, "UINT8", (nbytes,), 0), nbytes


@pytest.fixture
def cache():
    """Room for two small entries, and a little more."""
    return ResponseCache("s", CacheRecord(2 * ROOM + 32))


def put(cache: ResponseCache, digest: str, owner: str = "m", nbytes: int = 64) -> bool:
    entry = cache.reserve(Key(owner, digest.encode()), [tensor(nbytes)], {})
    if entry is None:
        return False
    cache.fill(entry)
    cache.check()
    return True


def get(cache: ResponseCache, digest: str, owner: str = "m"):
    found = cache.look_up(Key(owner, digest.encode()))
    cache.check()
    return found


def test_what_was_put_in_is_found_with_all_its_tensors(cache):
    key = Key("m", b"1")
    entry = cache.reserve(key, [tensor(3, "A"), tensor(5, "B")], {"p": 1})
    assert get(cache, "1") is None  # its bytes are not there yet
    cache.fill(entry)
    found = get(cache, "1")
    assert found.parameters == {"p": 1}
    places = [(one.name, one.place.segment, one.place.offset, one.place.nbytes) for one in found.outputs]
    assert places == [("A", "s", HEADER_NBYTES, 3), ("B", "s", HEADER_NBYTES + 64, 5)]
    assert all(one.shared for one in found.outputs)
    assert (cache.record.hits, cache.record.misses, cache.record.entries) == (1, 1, 1)


def test_the_least_recently_used_goes_first(cache):
    put(cache, "1"), put(cache, "2")
    get(cache, "1")
    put(cache, "3")
    assert get(cache, "2") is None
    assert get(cache, "1") and get(cache, "3")
    assert cache.record.evictions == 1


def test_what_is_read_stays_until_it_is_read(cache):
    put(cache, "1"), put(cache, "2")
    leases = [cache.lend(get(cache, "1")), cache.lend(get(cache, "2"))]
    assert not put(cache, "3")
    cache.read(leases[1])
    assert put(cache, "3")
    assert get(cache, "1") and not get(cache, "2")


def test_what_is_larger_than_the_cache_is_refused_with_the_sizes(cache):
    text = f"Requested byte_size: {1024 + OVERHEAD} is greater than total cache size: {cache.record.size}"
    with pytest.raises(TooLarge, match=text):
        put(cache, "1", nbytes=1024)
    assert put(ResponseCache("s", CacheRecord(ROOM)), "1")


def test_one_large_entry_takes_the_place_of_several_small_ones():
    cache = ResponseCache("s", CacheRecord(8 * ROOM))
    for number in range(8):
        put(cache, str(number))
    assert put(cache, "large", nbytes=6 * 64)
    assert cache.record.entries == 1 + 8 - cache.record.evictions


def test_room_in_pieces_is_made_one_piece():
    """Every other entry is read, so the free blocks between them cannot be joined."""
    cache = ResponseCache("s", CacheRecord(64 * ROOM))
    for number in range(64):
        put(cache, str(number))
    for number in range(0, 64, 2):
        cache.lend(get(cache, str(number)))
    assert put(cache, "large", nbytes=64 * 16)
    cache.check()


def test_what_is_forgotten_is_found_no_more_and_ends_with_its_last_reader(cache):
    put(cache, "1"), put(cache, "1", owner="other")
    lease = cache.lend(get(cache, "1"))
    cache.forget("m")
    assert get(cache, "1") is None and get(cache, "1", owner="other")
    assert cache.record.used == 2 * ROOM
    cache.read(lease)
    assert cache.record.used == ROOM


def test_what_is_forgotten_while_it_is_filled_never_comes(cache):
    entry = cache.reserve(Key("m", b"1"), [tensor(64)], {})
    cache.forget("m")
    cache.fill(entry)
    assert get(cache, "1") is None
    assert cache.record.used == 0


def test_what_could_not_be_filled_leaves_nothing(cache):
    cache.drop(cache.reserve(Key("m", b"1"), [tensor(64)], {}))
    cache.check()
    assert cache.record.used == 0
    assert put(cache, "1")


def test_the_second_of_two_alike_is_not_kept(cache):
    first = cache.reserve(Key("m", b"1"), [tensor(64)], {})
    assert cache.reserve(Key("m", b"1"), [tensor(64)], {}) is None
    cache.fill(first)
    assert not put(cache, "1")


def test_tensors_are_laid_out_aligned():
    assert layout([]) == ([], 0)
    assert layout([1, 64, 0, 65]) == ([0, 64, 128, 128], 256)


class CacheMachine(RuleBasedStateMachine):
    """``memory`` is what the shell would write to: an entry's bytes must be as they were put for as long as it is
    found or read."""

    @initialize(size=st.integers(0, 40 * ROOM))
    def begin(self, size: int) -> None:
        self.cache = ResponseCache("s", CacheRecord(size))
        self.memory = bytearray(size)
        self.filling: list = []
        self.leases: dict[int, tuple] = {}
        self.stored: dict[Key, list[bytes]] = {}
        self.count = 0

    def place(self, entry, position: int) -> slice:
        handle = entry.outputs[position].place
        start = handle.offset - HEADER_NBYTES
        assert 0 <= start <= start + handle.nbytes <= len(self.memory)
        return slice(start, start + handle.nbytes)

    def content(self, entry) -> list[bytes]:
        return [bytes(self.memory[self.place(entry, at)]) for at in range(len(entry.outputs))]

    keys = st.builds(Key, st.sampled_from("abc"), st.sampled_from([b"1", b"2", b"3", b"4", b"5"]))

    @rule(key=keys, sizes=st.lists(st.integers(0, 3000), max_size=3))
    def reserve(self, key: Key, sizes: list[int]) -> None:
        try:
            entry = self.cache.reserve(key, [tensor(size) for size in sizes], {})
        except TooLarge:
            assert layout(sizes)[1] + OVERHEAD > self.cache.record.size
            return
        if entry is not None:
            self.count += 1
            content = [bytes([self.count % 256]) * size for size in sizes]
            for at, data in enumerate(content):
                self.memory[self.place(entry, at)] = data
            self.filling.append((entry, content))

    @rule(data=st.data(), well=st.booleans())
    def end_filling(self, data, well: bool) -> None:
        if self.filling:
            entry, content = self.filling.pop(data.draw(st.integers(0, len(self.filling) - 1)))
            if well:
                self.stored[entry.key] = content
                self.cache.fill(entry)
            else:
                self.cache.drop(entry)

    @rule(key=keys, lend=st.booleans())
    def look_up(self, key: Key, lend: bool) -> None:
        entry = self.cache.look_up(key)
        if entry is not None:
            assert self.content(entry) == self.stored[key]
            if lend:
                self.leases[self.cache.lend(entry)] = (entry, self.stored[key])

    @rule(data=st.data())
    def read(self, data) -> None:
        if self.leases:
            lease = data.draw(st.sampled_from(sorted(self.leases)))
            del self.leases[lease]
            self.cache.read(lease)

    @rule(owner=st.sampled_from("abc"))
    def forget(self, owner: str) -> None:
        self.cache.forget(owner)
        assert not any(self.cache.knows(Key(owner, digest)) for digest in (b"1", b"2", b"3", b"4", b"5"))

    def check_invariants(self, *args: object, **kwargs: object) -> None:
        super().check_invariants(*args, **kwargs)
        if hasattr(self, "cache"):
            self.cache.check()
            for entry, content in [*self.filling, *self.leases.values()]:
                assert self.content(entry) == content, "freed while it was used"

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for lease in self.leases:
            self.cache.read(lease)
        for entry, _ in self.filling:
            self.cache.drop(entry)
        for owner in "abc":
            self.cache.forget(owner)
        self.cache.check()
        assert self.cache.record.used == self.cache.record.entries == 0


def test_whatever_happens_nothing_is_freed_while_it_is_read_and_hits_are_what_was_put():
    run_random_events(CacheMachine, usual=60)
