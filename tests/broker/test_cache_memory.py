"""Digests and copies, of real shared memory."""

from __future__ import annotations

import threading

import pytest

from broker import cache_memory
from broker.cache_memory import AT_ONCE_NBYTES, CacheMemory
from broker.events import Keep, Kept, LookedUp, LookUp
from broker.queue import Pending
from protocol.messages import Handle, Request, TensorRef
from shm.segment import HEADER_NBYTES
from shm.sparse import SparseSegment
from shm.store import Reader, Store


class Stand:
    def __init__(self, directory: str) -> None:
        self.store = Store(directory)
        self.reader = Reader(directory)
        self.segment = SparseSegment(directory, 64 << 20)
        self.memory = CacheMemory(self.segment, self.reader)
        self.told: list = []
        self.later = threading.Event()
        self.threads: list[str] = []

    def tell(self, event: LookedUp | Kept) -> None:
        self.told.append(event)
        self.threads.append(threading.current_thread().name)

    def tell_later(self, event: LookedUp | Kept) -> None:
        self.tell(event)
        self.later.set()

    def place(self, data: bytes) -> Handle:
        block = self.store.allocate(len(data))
        block.view[:] = data
        return Handle(block.segment, block.offset, len(data))

    def digest(self, *tensors: TensorRef, outputs: tuple[str, ...] = ("Y",), frames: tuple = (), **fields) -> bytes:
        request = Request(1, "m", 1, list(tensors), **fields)
        self.memory.look_up(LookUp(Pending(request, frames, None, 1, 0), list(outputs)), self.tell, self.tell_later)
        if not self.told:
            assert self.later.wait(10)
            self.later.clear()
        (event,) = self.told
        self.told.clear()
        assert event.request == 1
        return event.digest

    def close(self) -> None:
        self.memory.close()
        self.reader.close()
        self.store.close()


@pytest.fixture
def stand(tmp_path):
    stand = Stand(str(tmp_path))
    yield stand
    stand.close()


def tensor(stand: Stand, data: bytes = b"1234", name: str = "A", datatype: str = "UINT8", shape=(4,)) -> TensorRef:
    return TensorRef(name, datatype, shape, stand.place(data))


def test_the_digest_is_of_what_a_model_may_look_at_and_not_of_where_it_lies(stand):
    one = stand.digest(tensor(stand), tensor(stand, name="B"))
    assert len(one) == 32
    assert one == stand.digest(tensor(stand), tensor(stand, name="B"))
    assert one == stand.digest(tensor(stand, name="B"), tensor(stand), request_id="x", correlation_id=3, timeout_us=9)
    inline = TensorRef("A", "UINT8", (4,), 0)
    assert one == stand.digest(inline, tensor(stand, name="B"), frames=(b"1234",))
    assert one == stand.digest(inline._replace(place=b"1234"), tensor(stand, name="B"))


def test_the_digest_differs_with_everything_else(stand):
    digests = [
        stand.digest(tensor(stand)),
        stand.digest(tensor(stand, b"1235")),
        stand.digest(tensor(stand, name="B")),
        stand.digest(tensor(stand, datatype="INT8")),
        stand.digest(tensor(stand, shape=(2, 2))),
        stand.digest(tensor(stand), outputs=("X", "Y")),
        stand.digest(tensor(stand), parameters={"p": 1}),
        stand.digest(tensor(stand), parameters={"p": "1"}),
        stand.digest(tensor(stand, b"12"), tensor(stand, b"34", name="B")),
        stand.digest(tensor(stand, b"123"), tensor(stand, b"4", name="B")),
        stand.digest(),
    ]
    assert len(set(digests)) == len(digests)


def test_large_inputs_are_digested_in_a_thread_and_alike(stand, monkeypatch):
    large = bytes(AT_ONCE_NBYTES + 1)
    one = stand.digest(tensor(stand, large, shape=(len(large),)))
    assert stand.threads[-1].startswith("response-cache")
    monkeypatch.setattr(cache_memory, "AT_ONCE_NBYTES", 1 << 30)
    assert one == stand.digest(tensor(stand, large, shape=(len(large),)))
    assert stand.threads[-1] == threading.main_thread().name


def test_what_cannot_be_read_has_no_digest(stand):
    assert stand.digest(TensorRef("A", "UINT8", (4,), Handle("tensorbus-1-" + "0" * 32, 128, 4))) == b""
    assert stand.digest(TensorRef("A", "UINT8", (4,), 3)) == b""


@pytest.mark.parametrize("nbytes", [3, AT_ONCE_NBYTES + 1])
def test_outputs_are_copied_to_their_places(stand, nbytes):
    outputs = [tensor(stand, b"x" * nbytes), TensorRef("B", "UINT8", (2,), 0)]
    stand.memory.keep(Keep(7, 4096, outputs, (b"yz",)), stand.tell, stand.tell_later)
    assert stand.told or stand.later.wait(10)
    (kept,) = stand.told
    assert (kept.request, kept.error) == (7, "")
    second = nbytes + -nbytes % 64
    start = HEADER_NBYTES + 4096
    assert bytes(stand.reader.view(stand.segment.name, start, nbytes)) == b"x" * nbytes
    assert bytes(stand.reader.view(stand.segment.name, start + second, 2)) == b"yz"


def test_outputs_that_cannot_be_read_are_not_kept(stand):
    gone = TensorRef("A", "UINT8", (4,), Handle("tensorbus-1-" + "0" * 32, 128, 4))
    stand.memory.keep(Keep(7, 0, [gone], ()), stand.tell, stand.tell_later)
    assert stand.told == [Kept(7, 0, "its outputs cannot be read")]
