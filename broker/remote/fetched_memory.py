"""The bytes of the response cache, where not everybody shares memory with the broker: the rest is fetched."""

from __future__ import annotations

from collections.abc import Sequence

from broker.cache_memory import CacheMemory, Tell
from broker.events import Keep, Kept, LookedUp, LookUp
from broker.queue import Frames, Pending
from broker.remote.domains import Domains
from broker.remote.fetches import Fetches, owner_of
from protocol.messages import Handle, TensorRef
from shm.sparse import SparseSegment
from shm.store import Reader


class FetchedMemory(CacheMemory):
    """Relies on a request's inputs and a response's outputs being on lease until what is told of them."""

    def __init__(self, segment: SparseSegment, reader: Reader, domains: Domains, fetches: Fetches) -> None:
        super().__init__(segment, reader)
        self._domains = domains
        self._fetches = fetches

    def look_up(self, action: LookUp, tell: Tell, tell_later: Tell) -> None:
        request, frames = action.pending.request, action.pending.frames
        foreign = self._foreign(request.inputs)
        if not foreign:
            super().look_up(action, tell, tell_later)
            return

        def found(fetched: Sequence[memoryview | bytes]) -> None:
            if not _complete(foreign, fetched):
                tell_later(LookedUp(request.id, b"", 0))
                return
            inputs = _placed(request.inputs, foreign, len(frames))
            here = Pending(request._replace(inputs=inputs), [*frames, *fetched], None, 1, 0)
            super(FetchedMemory, self).look_up(action._replace(pending=here), tell_later, tell_later)

        self._fetches.begin(foreign, found)

    def keep(self, action: Keep, tell: Tell, tell_later: Tell) -> None:
        foreign = self._foreign(action.outputs)
        if not foreign:
            super().keep(action, tell, tell_later)
            return

        def found(fetched: Sequence[memoryview | bytes]) -> None:
            if not _complete(foreign, fetched):
                tell_later(Kept(action.request, 0, "its outputs cannot be fetched"))
                return
            outputs = _placed(action.outputs, foreign, len(action.frames))
            here = action._replace(outputs=outputs, frames=[*action.frames, *fetched])
            super(FetchedMemory, self).keep(here, tell_later, tell_later)

        self._fetches.begin(foreign, found)

    def _foreign(self, tensors: Sequence[TensorRef]) -> list[Handle]:
        of = self._domains.of
        ours = of(self._domains.own)
        return [one.place for one in tensors if isinstance(one.place, Handle) and of(owner_of(one.place)) != ours]


def _complete(handles: Sequence[Handle], frames: Frames) -> bool:
    return all(len(frame) == handle.nbytes for handle, frame in zip(handles, frames, strict=True))


def _placed(tensors: Sequence[TensorRef], handles: Sequence[Handle], first: int) -> list[TensorRef]:
    """Those of the handles are in frames, from the ``first`` on."""
    places = {handle: first + place for place, handle in enumerate(handles)}
    return [
        tensor._replace(place=places.get(tensor.place, tensor.place)) if isinstance(tensor.place, Handle) else tensor
        for tensor in tensors
    ]
