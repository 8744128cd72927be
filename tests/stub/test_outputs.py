"""Outputs over a real store, read back as the gateway does."""

import pytest

from protocol.errors import ProtocolError
from shm.arena import ALIGNMENT
from shm.store import Reader, Store
from stub.outputs import Outputs
from stub.placer import Placer

A = ("A", "UINT8", (3,), b"abc")
B = ("B", "UINT8", (2,), memoryview(b"de"))
EMPTY = ("C", "UINT8", (0,), b"")


@pytest.fixture
def store(tmp_path):
    store = Store(str(tmp_path), limit=1 << 21)
    yield store
    store.close()


@pytest.fixture
def reader(tmp_path):
    reader = Reader(str(tmp_path))
    yield reader
    reader.close()


def test_the_tensors_of_a_response_share_a_block_and_a_lease(store, reader):
    (first, second), lease = Outputs(Placer(store)).place([A, B], [])
    assert (first[:3], second[:3]) == (A[:3], B[:3])
    assert (bytes(reader.view(*first.place)), bytes(reader.view(*second.place))) == (b"abc", b"de")
    assert second.place.offset - first.place.offset == ALIGNMENT
    assert lease


def test_memory_is_used_again_once_its_lease_is_released(store):
    outputs = Outputs(Placer(store))
    (before, *_), lease = outputs.place([A], [])
    outputs.release([lease])
    (after, *_), another = outputs.place([A], [])
    assert after.place == before.place
    assert another != lease


@pytest.mark.parametrize("leases", [[1], [0]])
def test_the_release_of_what_is_not_on_lease_is_a_protocol_error(store, leases):
    outputs = Outputs(Placer(store))
    outputs.release([outputs.place([A], [])[1]])
    with pytest.raises(ProtocolError, match=f"release of lease {leases[0]}, which is not held"):
        outputs.release(leases)


def test_without_a_store_tensors_are_frames_behind_those_that_their_message_has():
    frames = [b"other"]
    (first, second), lease = Outputs(Placer(None)).place([A, B], frames)
    assert (first.place, second.place, lease) == (1, 2, 0)
    assert frames == [b"other", b"abc", b"de"]


def test_what_has_no_room_in_shared_memory_is_a_frame(store):
    outputs = Outputs(Placer(store))
    large = ("L", "UINT8", (1 << 22,), bytes(1 << 22))
    ((reference,), lease) = outputs.place([large], frames := [])
    assert (reference.place, lease) == (0, 0)
    assert frames == [large[3]]


def test_a_frame_is_a_copy_since_the_model_may_use_its_array_again():
    outputs = Outputs(Placer(None))
    array = bytearray(b"abc")
    outputs.place([("A", "UINT8", (3,), memoryview(array))], frames := [])
    array[:] = b"xyz"
    assert frames == [b"abc"]


def test_a_response_without_a_byte_takes_no_lease(store):
    outputs = Outputs(Placer(store))
    ((reference,), lease) = outputs.place([EMPTY], frames := [])
    assert (reference.place, lease) == (0, 0)
    assert frames == [b""]
