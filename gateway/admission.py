"""Whether the gateway takes on more request tensors: the bound on the bytes that it holds for all models together.

Bytes count from the time that memory is reserved for them until the lease of the request's inputs ends. A model for
which nothing is held may always have one request, however large: nobody is shut out by what others are slow with.
"""

from __future__ import annotations

from metrics.pressure import Pressure
from protocol.errors import Unavailable


class Admission:
    """Invariant: ``pressure.nbytes`` is what was admitted and not yet given back, the sum of ``_held`` by model."""

    __slots__ = ("_held", "_max_nbytes", "_pressure")

    def __init__(self, pressure: Pressure, max_nbytes: int = 0) -> None:
        """``max_nbytes`` 0 is no bound."""
        self._pressure = pressure
        self._max_nbytes = max_nbytes
        self._held: dict[str, int] = {}

    def check(self, model: str, nbytes: int, request_id: str = "") -> None:
        """Would a request of this size be admitted now? Raises Unavailable."""
        held = self._pressure.nbytes
        if self._max_nbytes and held + nbytes > self._max_nbytes and model in self._held:
            self._pressure.refused_for_bytes += 1
            raise Unavailable(
                f"[request id: {request_id or '<id_unknown>'}] Exceeds maximum queue size: the server holds {held} "
                f"bytes of request tensors and takes none of {nbytes} bytes for model '{model}' beyond "
                f"--max-queued-bytes={self._max_nbytes}"
            )

    def admit(self, model: str, nbytes: int, request_id: str = "") -> None:
        """They count until ``give_back``. Raises Unavailable."""
        if self._max_nbytes:
            self.check(model, nbytes, request_id)
        if nbytes:
            self._pressure.nbytes += nbytes
            self._held[model] = self._held.get(model, 0) + nbytes

    def give_back(self, model: str, nbytes: int) -> None:
        if nbytes:
            self._pressure.nbytes -= nbytes
            left = self._held[model] - nbytes
            if left:
                self._held[model] = left
            else:
                del self._held[model]
