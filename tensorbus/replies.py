"""The replies to one request of the Python API, on their way from the server's thread to the one that awaits them."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gateway.calls import InferCall, Reply
from gateway.dataplane import DataPlane
from protocol.errors import InternalError, Unsupported
from tensorbus.tensors import Array, output_array

_ALIVE_S = 1.0  # between two looks whether the server still lives, while a reply is awaited


class Response(NamedTuple):
    """``is_flag_alone``: no response, only the news that the last one has been sent before."""

    arrays: dict[str, Array]
    final: bool
    is_flag_alone: bool


class Replies:
    """Invariant: each reply that is taken is released."""

    def __init__(
        self, dataplane: DataPlane, call_soon: Callable[[Callable[[], object]], object], is_alive: Callable[[], bool]
    ) -> None:
        """``call_soon`` has the server's thread call something; it raises RuntimeError once that has ended."""
        self._dataplane = dataplane
        self._call_soon = call_soon
        self._is_alive = is_alive
        self._queue: queue.SimpleQueue[Reply | Exception] = queue.SimpleQueue()
        self._id: int | None = None  # while it is open; of the server's thread

    def begin(self, call: InferCall, decoupled: bool) -> None:
        """In the server's thread. A model that may give any number of responses needs a caller who knows."""
        try:
            call.signature = self._dataplane.signature(call.model, call.version)
            if call.signature.decoupled and not decoupled:
                raise Unsupported(f"model '{call.model}' is decoupled: use stream()")
            self._id = self._dataplane.infer(call, self._arrived)
        except Exception as error:  # whatever it is, somebody waits
            self._queue.put(error)

    def _arrived(self, reply: Reply) -> None:
        if reply.final:
            self._id = None
        self._queue.put(reply)

    def next(self, timeout_s: float | None) -> Response:
        """Raises ServingError and TimeoutError; TypeError and the like for arguments that are none."""
        reply = self._take(timeout_s)
        if isinstance(reply, Exception):
            raise reply
        try:
            if reply.error is not None:
                raise reply.error
            arrays = {output.name: output_array(output) for output in reply.outputs}
            return Response(arrays, reply.final, reply.flag_only)
        finally:
            with contextlib.suppress(RuntimeError):
                self._call_soon(reply.release)

    def _take(self, timeout_s: float | None) -> Reply | Exception:
        left_s = float("inf") if timeout_s is None else timeout_s
        while True:
            try:
                return self._queue.get(timeout=min(left_s, _ALIVE_S))
            except queue.Empty:
                left_s -= _ALIVE_S
            if left_s <= 0:
                raise TimeoutError(f"no response within {timeout_s} s")
            if not self._is_alive():
                return InternalError("the server has ended")

    def each(self, timeout_s: float | None) -> Iterator[dict[str, Array]]:
        """The responses as they come, to the final one. Raises as ``next``."""
        while True:
            response = self.next(timeout_s)
            if not response.is_flag_alone:
                yield response.arrays
            if response.final:
                return

    def end(self) -> None:
        """Nobody wants more."""
        with contextlib.suppress(RuntimeError):
            self._call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._id is not None:
            self._dataplane.cancel(self._id)
            self._id = None
