"""Puts tensors on their way: into shared memory of this process, as they lie in that of another, or into frames."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

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

    def __init__(self, own: Optional[store.Store], small_nbytes: int = 0) -> None:
        """Tensors of fewer than ``small_nbytes`` go with their references; without a store, others into frames."""
        self._store = own
        self._small_nbytes = small_nbytes
        self._generation = forks.generation
        self._lock = threading.Lock()  # of the store, and to be held while ``_spare`` gets more
        self._spare: Dict[int, List[store.Block]] = {}  # by size: free, though not for the store

    @property
    def is_ours(self) -> bool:
        """False in a process that the model forked."""
        return forks.generation == self._generation

    def place(self, tensors: Sequence[PlacedTensor], first_frame: int = 0, inline: bool = False) -> Placed:
        """Copies what is bytes, into frames if it is to be ``inline``. Give it to ``free`` when its lease is over."""
        block = None if inline else self._allocate(_nbytes(tensors, self._small_nbytes))
        placed = messages.new(Placed, ([], [], block, []))
        try:
            self._place_each(tensors, placed, first_frame)
        except BaseException:  # of a device, or of a signal handler of the model
            self.free([placed])
            raise
        return placed

    def references(self, tensors: Sequence[PlacedTensor]) -> Optional[List[messages.TensorRef]]:
        """To tensors that are all small bytes: they need no memory, and nobody has to free them. None if one is not."""
        small_nbytes, references = self._small_nbytes, []
        for name, datatype, shape, data in tensors:
            if type(data) is not bytes or len(data) >= small_nbytes:
                return None
            references.append(messages.new(messages.TensorRef, (name, datatype, shape, data, False)))
        return references

    def _place_each(self, tensors: Sequence[PlacedTensor], placed: Placed, first_frame: int) -> None:
        references, frames, block, roots = placed
        start = 0  # in the block
        for name, datatype, shape, data in tensors:
            place: messages.TensorPlace
            if isinstance(data, Place):
                roots.append(data.root)
                references.append(messages.TensorRef(name, datatype, shape, data.handle, True))
                continue
            if len(data) < self._small_nbytes:
                place = bytes(data)
            elif block is None:
                place = first_frame + len(frames)
                frames.append(bytes(data))  # a copy: the model may use its array again before the message leaves
            else:
                segment, offset, _, view, _ = block
                end = start + len(data)
                if isinstance(data, gpu.DeviceArray):
                    data.copy_into(view[start:end])
                else:
                    view[start:end] = data
                place = messages.new(messages.Handle, (segment, offset + start, end - start))
                start = end + -end % ALIGNMENT
            references.append(messages.new(messages.TensorRef, (name, datatype, shape, place, False)))

    def free(self, placed: Sequence[Placed]) -> None:
        blocks = []
        for _, _, block, roots in placed:
            roots.clear()
            if block is not None:
                blocks.append(block)
        if blocks and self.is_ours:
            with self._lock:
                for block in blocks:
                    self._spare.setdefault(block.nbytes, []).append(block)

    def trim(self, now_s: float) -> None:
        if self._store is not None:
            with self._lock:
                self._free_spare(self._store)
                self._store.trim(now_s)

    def _allocate(self, nbytes: int) -> Optional[store.Block]:
        """A steady load gets the memory back that it has just been done with, without a lock."""
        if self._store is None or nbytes == 0 or not self.is_ours:
            return None
        try:
            return self._spare[nbytes].pop()
        except (KeyError, IndexError):
            pass
        try:
            with self._lock:
                self._free_spare(self._store)
                return self._store.allocate(nbytes)
        except shm_errors.ShmFull:
            return None

    def _free_spare(self, own: store.Store) -> None:
        for blocks in self._spare.values():
            with contextlib.suppress(IndexError):  # another thread has taken the last one
                while blocks:
                    own.free(blocks.pop())
        self._spare.clear()


def _nbytes(tensors: Sequence[PlacedTensor], small_nbytes: int) -> int:
    """That they take in a block."""
    total = 0
    for _, _, _, data in tensors:
        if not isinstance(data, Place) and len(data) >= small_nbytes:
            total += len(data)
            total += -total % ALIGNMENT
    return total
