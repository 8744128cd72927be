"""What the fronts and the data plane hand each other: an InferCall goes in, Replies come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gateway.bus import Bus
from protocol.errors import ServingError
from protocol.messages import Parameters
from protocol.signature import Signature

if TYPE_CHECKING:
    from shm.store import Block


class InputTensor(NamedTuple):
    """An input in KServe's binary form (BYTES elements length-prefixed). ``shape`` is the client's, batch dimension
    included. ``offset`` >= 0: the bytes already lie in the call's block at that offset (and ``data`` views them)."""

    name: str
    datatype: str
    shape: list[int]
    data: bytes | memoryview
    offset: int = -1


@dataclass(slots=True)
class InferCall:
    """One request of a client. ``infer`` takes over ``block`` even when it raises."""

    model: str
    version: int  # -1 = the highest READY one
    inputs: list[InputTensor]
    request_id: str = ""
    outputs: list[str] = field(default_factory=list)  # requested names; [] = all
    parameters: Parameters = field(default_factory=dict)
    correlation_id: int | str = 0
    flags: int = 0  # SEQUENCE_START, SEQUENCE_END
    priority: int = 0
    timeout_us: int = 0
    block: Block | None = None  # where inputs with an offset lie
    signature: Signature | None = None  # when the front has looked it up already
    classes: dict[str, int] = field(default_factory=dict)  # outputs to classify, and how many classes of each
    admitted: int = 0  # bytes that have been, for the whole body; 0: ``infer`` is to ask for its tensors


class OutputTensor(NamedTuple):
    """An output in binary form. A memoryview is valid until ``Reply.release``."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: memoryview | bytes


class Reply:
    """One response. ``release`` must be called once the outputs have been read; calling it again is harmless."""

    __slots__ = (
        "_bus",
        "_lease",
        "_origin",
        "error",
        "final",
        "flag_only",
        "outputs",
        "parameters",
        "request_id",
        "signature",
    )

    def __init__(
        self,
        signature: Signature,
        request_id: str,
        outputs: list[OutputTensor],
        parameters: Parameters,
        error: ServingError | None,
        final: bool,
        flag_only: bool,
        bus: Bus,
        origin: str,
        lease: int,
    ) -> None:
        """``flag_only``: no response, only the news that a decoupled model has sent its last one before."""
        self.signature = signature
        self.request_id = request_id
        self.outputs = outputs
        self.parameters = parameters
        self.error = error
        self.final = final
        self.flag_only = flag_only
        self._bus = bus
        self._origin = origin
        self._lease = lease

    def release(self) -> None:
        lease = self._lease
        if lease:
            self._lease = 0
            self._bus.release(self._origin, lease)


OnReply = Callable[[Reply], None]  # called for each reply to an InferCall
