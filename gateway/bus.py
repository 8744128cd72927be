"""The seam between a gateway and its broker: what a gateway may ask, and what it is told.

``tensorbus.embedded`` joins both in one process by plain calls; a scaled stack joins them by ZeroMQ. Everything runs
on the gateway's event loop; no call blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from protocol.errors import ServingError
from protocol.messages import Request, Response
from protocol.signature import IndexEntry, Signature
from protocol.statistics import ModelStatistics

Frames = Sequence[memoryview | bytes]
Done = Callable[[ServingError | None], None]  # called once, with what went wrong
# Called once, now or within some seconds, with what was asked for or with why it cannot be told.
OnStatistics = Callable[[list[ModelStatistics] | ServingError], None]
OnIndex = Callable[[list[IndexEntry] | ServingError], None]


class ReplySink(Protocol):
    """Where the replies to a request go."""

    def on_response(self, response: Response, origin: str, frames: Frames) -> None:
        """One response; ``final`` is set on the last, after which the request's input lease is over unless
        ``retained``. ``frames`` hold the outputs that are not in shared memory. The sink must release
        ``response.lease`` (if not 0) to ``origin`` once it has read the outputs."""

    def on_inputs_released(self) -> None:
        """The lease of a request whose final response was ``retained`` is over now."""


class Bus(Protocol):
    """The broker as a gateway sees it. Lookups raise ServingError with Triton's texts."""

    def submit(self, request: Request, frames: Frames, sink: ReplySink) -> None:
        """Queue a request. Exactly one final response follows, an error if need be; never synchronously."""

    def refuse_when_full(self, model: str, version: int) -> None:
        """Raises the Unavailable with which a request would be refused now because too many wait."""

    def cancel(self, request_id: int) -> None:
        """The client is gone: drop the request if still queued. Its final response still follows."""

    def release(self, origin: str, lease: int) -> None:
        """The outputs of a response have been read."""

    def signature(self, model: str, version: int) -> Signature:
        """A READY version, the highest one for -1. Raises NotFound or Unavailable."""

    def versions(self, model: str) -> list[int]:
        """The READY versions, ascending. Raises NotFound."""

    def live(self) -> bool: ...

    def ready(self, done: Callable[[bool], None]) -> None:
        """``done`` is called once, now or within some seconds: models with ``is_ready`` are asked."""

    def model_ready(self, model: str, version: int, done: Callable[[bool], None]) -> None:
        """The same for one model. Raises NotFound for a model or version that is not known."""

    def statistics(self, model: str, version: int, done: OnStatistics) -> None:
        """All models for an empty name, all versions for -1; InvalidArgument for what is not READY."""

    def index(self, ready: bool, done: OnIndex) -> None:
        """The rows sorted by name; only READY ones with ``ready``."""

    def load(self, model: str, config: str | None, files: Mapping[str, bytes], done: Done) -> None:
        """Load a model, or load it again if it has changed. ``config`` is JSON text in place of its config.pbtxt;
        ``files``, by "file:<path>", take the place of its directory."""

    def unload(self, model: str, unload_dependents: bool, done: Done) -> None:
        """Once it is refused to new requests, ``done`` is called; the rest follows by itself."""
