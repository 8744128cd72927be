"""Where the tensors of responses go, and which of them are on lease."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from . import gpu
from .session import PlacedTensor
from .shared import ALIGNMENT, errors, messages, shm_errors, store


class Outputs:
    """Places the tensors of responses: in shared memory on lease to their reader, or as frames of the next message."""

    def __init__(self, own: Optional[store.Store]) -> None:
        """Without a store, all go inline."""
        self._store = own
        self._leases: Dict[int, store.Block] = {}
        self._last_lease = 0
        self._frames: List[bytes] = []

    def place(self, tensors: Sequence[PlacedTensor]) -> Tuple[List[messages.TensorRef], int]:
        starts, total = [], 0
        for tensor in tensors:
            starts.append(total)
            nbytes = len(tensor[3])
            total += nbytes + -nbytes % ALIGNMENT
        block = self._allocate(total)
        if block is None:
            return [self._place_inline(tensor) for tensor in tensors], 0
        references = []
        for (name, datatype, shape, data), start in zip(tensors, starts):
            if isinstance(data, gpu.DeviceArray):
                data.copy_into(block.view[start : start + len(data)])
            else:
                block.view[start : start + len(data)] = data
            place = messages.Handle(block.segment, block.offset + start, len(data))
            references.append(messages.TensorRef(name, datatype, shape, place))
        self._last_lease += 1
        self._leases[self._last_lease] = block
        return references, self._last_lease

    def release(self, leases: Sequence[int]) -> None:
        """Raises ProtocolError for one that is not held."""
        for lease in leases:
            block = self._leases.pop(lease, None)
            if block is None or self._store is None:
                raise errors.ProtocolError("release of lease {}, which is not held".format(lease))
            self._store.free(block)

    def take_frames(self) -> List[bytes]:
        """The inline tensors since the last call: they belong into the message that names them."""
        frames, self._frames = self._frames, []
        return frames

    def trim(self, now_s: float) -> None:
        if self._store is not None:
            self._store.trim(now_s)

    def _allocate(self, nbytes: int) -> Optional[store.Block]:
        if self._store is None or nbytes == 0:
            return None
        try:
            return self._store.allocate(nbytes)
        except shm_errors.ShmFull:
            return None

    def _place_inline(self, tensor: PlacedTensor) -> messages.TensorRef:
        name, datatype, shape, data = tensor
        self._frames.append(bytes(data))  # a copy, since the model may use its array again before the message leaves
        return messages.TensorRef(name, datatype, shape, len(self._frames) - 1)
