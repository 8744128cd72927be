"""What is said of the requests of sequences, to clients and in the log, and when their responses take their turns."""

from __future__ import annotations

from collections.abc import Iterable

from broker.events import Say
from broker.model import ModelVersion
from broker.queue import Pending
from protocol.errors import ServingError

EXPIRED = "timeout of the corresponding sequence has been expired"


def refused(version: ModelVersion, pending: Pending, error: ServingError) -> Say:
    return Say("warning", "request refused", {**_fields(version, pending), "cause": str(error)})


def cut_short(version: ModelVersion, pending: Pending) -> Say:
    cause = (
        f"sequence {pending.request.correlation_id} for model '{version.name}' has a conflict. The previous sequence "
        "did not end before this sequence start. Previous sequence will be terminated early."
    )
    return Say("warning", "a sequence starts anew", {**_fields(version, pending), "cause": cause})


def take_turns(version: ModelVersion, requests: Iterable[Pending]) -> None:
    """They leave for their instance: with preserve_ordering, that is the order of their responses."""
    if version.order is not None:
        for pending in requests:
            if pending.sink is not None and pending.request.id not in version.order:
                version.order.join(pending)


def _fields(version: ModelVersion, pending: Pending) -> dict[str, object]:
    return {"model": version.name, "version": version.version, "request_id": pending.request.request_id}
