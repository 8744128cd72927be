"""Puts tensors on their way: into shared memory of this process, as they lie in that of another, or into frames."""

from __future__ import annotations

import threading
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple, Union

from numpy.typing import NDArray

from . import forks, gpu
from .shared import ALIGNMENT, messages, shm_errors, store
from .tensor import Place

# name, wire datatype, shape, and where the binary form is now: of bytes (1-D, format "B") len() is their nbytes.
PlacedTensor = Tuple[str, str, Tuple[int, ...], Union[bytes, memoryview, gpu.DeviceArray, Place]]


class Placed(NamedTuple):
    """Tensors by reference, and what keeps them where they are."""

    references: List[messages.TensorRef]
    frames: List[bytes]
    block: Optional[store.Block]
    roots: List[NDArray[Any]]

    @property
    def is_on_lease(self) -> bool:
        return self.block is not None or bool(self.roots)


class Placer:
    """The tensors of one message go to one block. Safe for several threads; a process that the model forked has no part
    in the memory, so there all goes into frames."""

    def __init__(self, own: Optional[store.Store]) -> None:
        """Without a store, all goes into frames."""
        self._store = own
        self._generation = forks.generation
        self._lock = threading.Lock()

    @property
    def is_ours(self) -> bool:
        """False in a process that the model forked."""
        return forks.generation == self._generation

    def place(self, tensors: Sequence[PlacedTensor], first_frame: int = 0, inline: bool = False) -> Placed:
        """Copies what is bytes, into frames if it is to be ``inline``. Give it to ``free`` when its lease is over."""
        starts, total = [], 0
        for tensor in tensors:
            starts.append(total)
            if not isinstance(tensor[3], Place):
                nbytes = len(tensor[3])
                total += nbytes + -nbytes % ALIGNMENT
        placed = Placed([], [], None if inline else self._allocate(total), [])
        for tensor, start in zip(tensors, starts):
            placed.references.append(_place(tensor, start, placed, first_frame))
        return placed

    def free(self, placed: Placed) -> None:
        placed.roots.clear()
        if placed.block is not None and self._store is not None and self.is_ours:
            with self._lock:
                self._store.free(placed.block)

    def trim(self, now_s: float) -> None:
        if self._store is not None:
            with self._lock:
                self._store.trim(now_s)

    def _allocate(self, nbytes: int) -> Optional[store.Block]:
        if self._store is None or nbytes == 0 or not self.is_ours:
            return None
        try:
            with self._lock:
                return self._store.allocate(nbytes)
        except shm_errors.ShmFull:
            return None


def _place(tensor: PlacedTensor, start: int, placed: Placed, first_frame: int) -> messages.TensorRef:
    name, datatype, shape, data = tensor
    if isinstance(data, Place):
        placed.roots.append(data.root)
        return messages.TensorRef(name, datatype, shape, data.handle, True)
    block = placed.block
    if block is None:
        placed.frames.append(bytes(data))  # a copy: the model may use its array again before the message leaves
        return messages.TensorRef(name, datatype, shape, first_frame + len(placed.frames) - 1)
    nbytes = len(data)
    if isinstance(data, gpu.DeviceArray):
        data.copy_into(block.view[start : start + nbytes])
    else:
        block.view[start : start + nbytes] = data
    return messages.TensorRef(name, datatype, shape, messages.Handle(block.segment, block.offset + start, nbytes))
