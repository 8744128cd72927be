"""Messages cut out of a stream's data: whatever its pieces, however large, compressed or not."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.grpc_head import GrpcError
from gateway.grpc_inflating import Buffer, Inflating
from gateway.grpc_message import LARGE_NBYTES, MAX_NBYTES, PREFIX, Incoming, LargeMessage, MessageMemory, message_of
from protocol.errors import InternalError


def framed(message: bytes, compressed: int = 0) -> bytes:
    return PREFIX.pack(compressed, len(message)) + message


def compress(message: bytes, window_bits: int) -> bytes:
    deflater = zlib.compressobj(wbits=window_bits)
    return deflater.compress(message) + deflater.flush()


class Receiver:
    def __init__(self, encoding: bytes = b"identity") -> None:
        self.messages: list[bytes] = []
        self.memory = MessageMemory()
        self.incoming = Incoming(encoding, self.memory)

    def feed(self, data: bytes | memoryview) -> None:
        if not self.incoming.put(data):
            self.messages += map(whole, self.incoming.feed(data))

    def filled(self, nbytes: int) -> None:
        self.messages += map(whole, self.incoming.filled(nbytes))


def whole(message: Buffer | Inflating) -> bytes:
    return bytes(message.finish() if isinstance(message, Inflating) else message)


SIZES = st.sampled_from([0, 1, 5, 100, LARGE_NBYTES - 1, LARGE_NBYTES, LARGE_NBYTES + 9])


@given(st.lists(SIZES, max_size=6), st.lists(st.integers(1, 100_000), max_size=6))
def test_messages_come_whole_and_in_order(sizes: list[int], cuts: list[int]) -> None:
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    rest = b"".join(map(framed, messages))
    receiver = Receiver()
    number = 0
    while rest:
        cut = [*cuts, 200_000][number % (len(cuts) + 1)]
        receiver.feed(memoryview(rest)[:cut])
        rest = rest[cut:]
        number += 1
    assert receiver.messages == messages
    assert receiver.incoming.is_idle


def test_a_large_message_may_be_put_in_its_place() -> None:
    receiver = Receiver()
    message = bytes(range(256)) * 512
    receiver.feed(framed(message)[:1005])
    room = receiver.incoming.room
    assert room is not None and len(room) == len(message) - 1000
    room[:] = message[1000:]
    receiver.filled(500)
    assert not receiver.messages
    receiver.filled(len(room) - 500)
    assert receiver.messages == [message]
    assert receiver.incoming.room is None


@pytest.mark.parametrize("encoding, window_bits", [(b"gzip", 31), (b"deflate", 15)])
@pytest.mark.parametrize("nbytes", [0, 10, 10_000_000])
def test_compressed_and_plain_messages_mix(encoding: bytes, window_bits: int, nbytes: int) -> None:
    receiver = Receiver(encoding)
    receiver.feed(framed(compress(bytes(nbytes), window_bits), 1) + framed(b"plain"))
    assert receiver.messages == [bytes(nbytes), b"plain"]


def test_an_empty_message_needs_no_compression() -> None:
    receiver = Receiver(b"gzip")
    receiver.feed(framed(b"", 1))
    assert receiver.messages == [b""]


@pytest.mark.parametrize(
    "encoding, sent, code, text",
    [
        (b"identity", framed(b"x", 1), 13, "Compressed-Flag is set"),
        (b"snappy", framed(b"x", 1), 12, "'snappy' is not supported"),
        (b"gzip", framed(b"no gzip", 1), 13, "Failed to decompress"),
        (b"gzip", framed(compress(b"whole", 31)[:-3], 1), 13, "ends too early"),
        (b"identity", PREFIX.pack(0, MAX_NBYTES + 1), 8, "larger than max (2147483648 vs. 2147483647)"),
    ],
)
def test_what_is_no_message_is_refused(encoding: bytes, sent: bytes, code: int, text: str) -> None:
    with pytest.raises((GrpcError, InternalError)) as caught:
        Receiver(encoding).feed(sent)
    error: Any = caught.value
    assert getattr(error, "code", 13) == code
    assert text in str(error)


def test_the_memory_of_an_announced_message_is_not_taken_at_once() -> None:
    receivers = [Receiver() for _ in range(50)]
    for receiver in receivers:
        receiver.feed(PREFIX.pack(0, 1 << 30))


def test_small_pieces_are_joined_and_released_and_large_ones_wait() -> None:
    released: list[str] = []
    assert message_of([b"a", memoryview(b"b")], lambda: released.append("small")) == b"ab"
    large = message_of([b"a", bytes(LARGE_NBYTES)], lambda: released.append("large"))
    assert isinstance(large, LargeMessage) and large.nbytes == LARGE_NBYTES + 1
    assert released == ["small"]


def test_memory_is_used_again_and_given_up_when_it_is_not() -> None:
    memory = MessageMemory()
    first = memory.take(100_000)
    first[0] = 7
    second = memory.take(100_000)
    assert second[0] == 0, "it is used by two"
    memory.give_back(first)
    memory.trim()
    again = memory.take(80_000)
    assert len(again) == 80_000 and again[0] == 7
    memory.give_back(again)
    memory.trim()
    memory.trim()
    assert memory.take(80_000)[0] == 0
