"""One loaded model instance: a Batch goes in, an Executed comes out.

No socket, no thread, no clock and no memory of its own: all four are handed in.
"""

from __future__ import annotations

from typing import Callable, List, Protocol, Sequence, Tuple, Union

from .shared import messages
from .user_model import UserModel

# name, wire datatype, shape, bytes in KServe's binary form (1-D, format "B", so len() is its nbytes).
PlacedTensor = Tuple[str, str, Tuple[int, ...], Union[bytes, memoryview]]


class OutputPlacer(Protocol):
    """Where the tensors of a response go: a block of shared memory, or frames of the message."""

    def place(self, tensors: Sequence[PlacedTensor]) -> Tuple[List[messages.TensorRef], int]:
        """Copies the tensors of ONE response (never empty); returns their references and the lease (0: inline)."""


class Session:
    """Runs batches one at a time, in the calling thread."""

    def __init__(
        self,
        model: UserModel,
        instance: str,
        outputs: OutputPlacer,
        log: Callable[[str, str, int, str], None],  # level ("I", "W", "E", "V"), file, line, text
        clock_ns: Callable[[], int],
    ) -> None:
        raise NotImplementedError

    def execute(
        self, batch: messages.Batch, view: Callable[[messages.TensorRef], memoryview]
    ) -> messages.Executed:
        """``view`` resolves a reference to its writable bytes (1-D, format "B")."""
        raise NotImplementedError

    @property
    def has_retained(self) -> bool:
        """Whether the model still holds inputs of answered requests; then poll ``collect_released``."""
        raise NotImplementedError

    def collect_released(self) -> List[int]:
        """Ids of requests whose retained inputs have become free since the last call."""
        raise NotImplementedError

    def finalize(self) -> str:
        """Calls the model's ``finalize``; returns "" or the text of what it raised."""
        raise NotImplementedError
