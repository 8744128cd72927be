"""Where the tensors of responses go, and which of them are on lease."""

from __future__ import annotations

from itertools import count
from typing import Dict, List, Sequence, Tuple

from .placer import Placed, PlacedTensor, Placer
from .shared import errors, messages


class Outputs:
    """Places the tensors of responses: in shared memory on lease to their reader, or as frames of their message.

    Safe for several threads."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._leases: Dict[int, Placed] = {}
        self._numbers = count(1)

    def place(
        self, tensors: Sequence[PlacedTensor], frames: List[bytes], inline: bool = False
    ) -> Tuple[List[messages.TensorRef], int]:
        """``frames`` are those of the message; inline tensors go to their end, all of them if asked for."""
        small = self._placer.references(tensors)
        if small is not None:
            return small, 0
        placed = self._placer.place(tensors, len(frames), inline)
        references, own_frames, block, roots = placed
        frames += own_frames
        if block is None and not roots:
            return references, 0
        lease = next(self._numbers)
        self._leases[lease] = placed
        return references, lease

    def lend_nothing(self) -> int:
        """A lease without memory: its end says that a response has been read whose tensors are frames."""
        lease = next(self._numbers)
        self._leases[lease] = Placed([], [], None, [])
        return lease

    def release(self, leases: Sequence[int]) -> None:
        """Raises ProtocolError for one that is not held."""
        try:
            placed = list(map(self._leases.pop, leases))
        except KeyError as lease:
            raise errors.ProtocolError("release of lease {}, which is not held".format(lease)) from None
        self._placer.free(placed)

    def trim(self, now_s: float) -> None:
        self._placer.trim(now_s)
