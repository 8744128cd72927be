"""Digests and copies of tensors of which the broker cannot look at all."""

from __future__ import annotations

import pytest

from broker.events import Keep, Kept, LookedUp, LookUp
from broker.queue import Pending
from broker.remote.domains import Domains
from broker.remote.fetched_memory import FetchedMemory
from broker.remote.fetches import Fetches
from protocol.messages import Handle, Request, TensorRef
from protocol.services import Fetch, Fetched
from shm.segment import HEADER_NBYTES
from shm.sparse import SparseSegment
from shm.store import Reader, Store

OURS, NEAR, FAR = "aaaaaaaa", "bbbbbbbb", "cccccccc"


class Stand:
    """NEAR shares memory with us; what FAR has is only in ``far``."""

    def __init__(self, directory: str) -> None:
        self.domains = Domains()
        self.domains.own = OURS
        for service in (OURS, NEAR, FAR):
            self.domains.add(service, Handle("", 0, 0), service.encode())
        self.domains.prove(NEAR, {OURS: OURS.encode()})
        self.near = Store(directory, tag=NEAR)
        self.far: list[bytes] = []
        self.is_far_gone = False
        self.fetches = Fetches(self._send)
        self.reader = Reader(directory)
        self.segment = SparseSegment(directory, 1 << 20, OURS)
        self.memory = FetchedMemory(self.segment, self.reader, self.domains, self.fetches)
        self.told: list = []

    def _send(self, service: str, message: Fetch) -> bool:
        assert service == FAR
        if not self.is_far_gone:
            frames = [self.far[handle.offset] for handle in message.handles]
            self.fetches.fetched(service, Fetched("F", message.number), frames)
        return not self.is_far_gone

    def place(self, service: str, data: bytes) -> Handle:
        if service == FAR:
            self.far.append(data)
            return Handle(f"tensorbus-1-{FAR}{'0' * 24}", len(self.far) - 1, len(data))
        block = self.near.allocate(len(data))
        block.view[:] = data
        return Handle(block.segment, block.offset, len(data))

    def tensors(self, *services: str) -> list[TensorRef]:
        """As many, with other bytes each; "" is a frame."""
        places = [self.place(service, bytes([number] * 4)) if service else 0 for number, service in enumerate(services)]
        return [TensorRef(f"IN{number}", "UINT8", (4,), place) for number, place in enumerate(places)]

    def digest(self, *services: str, frames: tuple[bytes, ...] = ()) -> bytes:
        pending = Pending(Request(1, "m", 1, self.tensors(*services)), frames, None, 1, 0)
        self.memory.look_up(LookUp(pending, ["Y"]), self.told.append, self.told.append)
        event = self.told.pop()
        assert isinstance(event, LookedUp) and event.request == 1
        return event.digest

    def close(self) -> None:
        self.memory.close()
        self.reader.close()
        self.near.close()


@pytest.fixture
def stand(tmp_path):
    stand = Stand(str(tmp_path))
    yield stand
    stand.close()


def test_the_same_request_is_the_same_wherever_its_inputs_lie(stand):
    near = stand.digest(NEAR, NEAR)
    assert len(near) == 32
    assert near == stand.digest(FAR, FAR) == stand.digest(NEAR, FAR) == stand.digest("", FAR, frames=(b"\0" * 4,))
    assert near != stand.digest(FAR, FAR, FAR)


def test_a_response_is_kept_wherever_its_outputs_lie(stand):
    keep = Keep(1, 0, stand.tensors(FAR, "", NEAR), (b"\1" * 4,))
    stand.memory.keep(keep, stand.told.append, stand.told.append)
    (kept,) = stand.told
    assert isinstance(kept, Kept) and not kept.error
    read = [stand.memory.read(Handle(stand.segment.name, HEADER_NBYTES + 64 * place, 4)) for place in range(3)]
    assert read == [bytes([number] * 4) for number in range(3)]


def test_what_its_owner_has_taken_along_is_neither_found_nor_kept(stand):
    tensors = stand.tensors(FAR)
    stand.is_far_gone = True
    assert stand.digest(FAR) == b""
    stand.memory.keep(Keep(1, 0, tensors, ()), stand.told.append, stand.told.append)
    assert stand.told == [Kept(1, 0, "its outputs cannot be fetched")]
    assert stand.memory.read(Handle("nowhere", 0, 4)) == b""
