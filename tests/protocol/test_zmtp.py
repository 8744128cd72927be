from __future__ import annotations

import itertools
from typing import List

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import errors, zmtp

SIZES = st.sampled_from([0, 1, 2, 254, 255, 256, 300, 65_535, 65_536, 65_537, 200_000])
MESSAGES = st.lists(st.lists(SIZES, min_size=1, max_size=4), min_size=1, max_size=5)


def sparing(cuts: List[int]) -> List[int]:
    """With a large piece now and then: a stream that comes byte by byte takes its time."""
    return [*cuts, 70_000]


def content(size: int) -> bytes:
    return bytes(number * 31 % 251 for number in range(min(size, 1000))) + bytes(max(0, size - 1000))


@given(MESSAGES, st.lists(st.integers(1, 70_000), min_size=1, max_size=20).map(sparing))
def test_what_is_encoded_is_read_again_however_it_is_cut(messages: List[List[int]], cuts: List[int]) -> None:
    stream = zmtp.ready("DEALER", b"key")
    for sizes in messages:
        header, *frames = map(content, sizes)
        stream += b"".join(map(bytes, zmtp.encode(header, frames)))
    inbound = zmtp.Inbound()
    found: List[List[int]] = []
    position = 0
    for cut in itertools.cycle(cuts):
        if position >= len(stream):
            break
        inbound.feed(stream[position : position + cut])
        position += cut
        while True:
            taken = inbound.take()
            if taken is None:
                break
            assert all(bytes(frame) == content(len(frame)) and not frame.readonly for frame in taken)
            found.append([len(frame) for frame in taken])
    assert found == messages


def test_a_message_without_frames_is_one_buffer() -> None:
    assert [bytes(buffer) for buffer in zmtp.encode(b"abc")] == [b"\0\3abc"]
    assert [bytes(buffer) for buffer in zmtp.encode(b"abc", [b"d", b""])] == [b"\1\3abc", b"\1\1", b"d", b"\0\0", b""]


def test_a_frame_that_is_announced_takes_no_memory_but_its_own() -> None:
    """Its bytes are not gathered first and copied then."""
    inbound = zmtp.Inbound()
    size = 10_000_000
    inbound.feed(zmtp.ready("DEALER") + b"\2" + size.to_bytes(8, "big") + b"begin")
    assert inbound.take() is None
    assert not inbound._data and inbound._large is not None and len(inbound._large) == size


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request".ljust(64), b"\xff" + bytes(8) + b"\x7f\x01".ljust(55)]
)
def test_a_greeting_of_something_else(said: bytes) -> None:
    with pytest.raises(errors.ProtocolError, match="greeting that is not ZMTP 3"):
        zmtp.check_greeting(said)


def test_a_greeting_is_as_long_as_it_should_be() -> None:
    assert len(zmtp.greeting()) == zmtp.GREETING_SIZE
    zmtp.check_greeting(zmtp.greeting())


def test_a_connection_that_is_refused() -> None:
    inbound = zmtp.Inbound()
    inbound.feed(b"\4\x0b\x05ERROR\x04nope")
    with pytest.raises(errors.ProtocolError, match="nope"):
        inbound.take()


def test_a_peer_says_who_it_is() -> None:
    inbound = zmtp.Inbound()
    assert inbound.take() is None and inbound.identity is None
    inbound.feed(zmtp.ready("DEALER", b"m_1"))
    assert inbound.take() is None and inbound.identity == b"m_1"


def test_a_huge_frame_takes_memory_as_it_comes() -> None:
    """To clear all of it at once would keep a broker from everybody else."""
    inbound = zmtp.Inbound()
    inbound.feed(zmtp.ready("DEALER", b"key"))
    assert inbound.take() is None
    resident = psutil.Process().memory_info().rss
    inbound.feed(b"\x02" + (1 << 30).to_bytes(8, "big") + content(100_000))
    assert inbound.take() is None and inbound.missing == (1 << 30) - 100_000
    assert psutil.Process().memory_info().rss - resident < 1 << 24


@pytest.mark.parametrize("said", [b"\4\x09\x05READY\x05Abc", b"\4\x13\x05READY\x08Identity\0\0\0\x09", b"\0\1a"])
def test_a_peer_that_is_not_ready(said: bytes) -> None:
    inbound = zmtp.Inbound()
    inbound.feed(said)
    with pytest.raises(errors.ProtocolError, match="READY"):
        inbound.take()
