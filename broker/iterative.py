"""Iterative sequences: a request that its model asks to be executed again, until it is answered.

Triton gives each such request a sequence of its own unless the client did: numbers from 1, the start flag on the first
execution. The inputs of the next execution are those of the first: what the model writes to them must not stay.
"""

from __future__ import annotations

from broker.model import ModelVersion
from broker.queue import Pending
from protocol.messages import SEQUENCE_START


def begin(version: ModelVersion, pending: Pending) -> None:
    """Before its first execution."""
    request = pending.request
    if not request.correlation_id:
        assert version.sequences is not None
        request = request._replace(correlation_id=version.sequences.new_id(), flags=SEQUENCE_START)
    pending.request = request._replace(inputs=[tensor._replace(shared=True) for tensor in request.inputs])


def again(pending: Pending) -> None:
    """Before the next."""
    pending.request = pending.request._replace(flags=0)
