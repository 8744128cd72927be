"""A request to an ensemble while anything of it is left: its run, what runs for it, and what its client has unread."""

from __future__ import annotations

from broker.ensemble import Memory, Run
from broker.model import ModelVersion
from broker.queue import Pending
from protocol.errors import ErrorKind, InvalidArgument, ServingError


class Flow:
    """Invariant: ``own`` has a use until the request is answered, besides those that the run counts."""

    __slots__ = ("ahead", "members", "own", "pending", "retained", "run", "steps", "unread", "version")

    def __init__(self, version: ModelVersion, pending: Pending, run: Run) -> None:
        self.version = version
        self.pending = pending
        self.members: list[ModelVersion] = []  # by step
        self.run = run
        self.own = Memory("", 0, 1)  # what the inputs of the request lie in
        self.steps: dict[int, Pending] = {}  # what runs
        self.ahead: dict[int, tuple[str, int]] = {}  # by step: the stub that streams, its responses without credit
        self.unread = 0  # bytes of responses
        self.retained = False  # it was answered while steps still looked at its inputs

    def wrapped(self, error: ServingError) -> ServingError:
        """What the client is told of it."""
        if error.kind == ErrorKind.CANCELLED and not str(error):
            return error
        return type(error)(f"in ensemble '{self.version.name}', {error}")

    def with_id(self, error: InvalidArgument) -> InvalidArgument:
        return InvalidArgument(f"[request id: {self.pending.request.request_id or '<id_unknown>'}] {error}")
