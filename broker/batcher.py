"""Dynamic batching: which of the waiting requests make one execution, and how long it is worth to wait for more.

The rules are Triton's. Going through the queue in order, a batch grows until the next request does not fit: it would
exceed the largest size, or its inputs differ in a way that a model cannot stack. The largest preferred size that was
reached on the way leaves at once. A batch that cannot grow leaves as it is, and so does one whose oldest request has
waited for the queue delay. Otherwise the instance waits. Requests are never split, and never concatenated by us.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker.model_config import ModelConfig
from broker.queue import Pending
from protocol.messages import Request


class Batching(NamedTuple):
    """What a configuration says of it."""

    max_size: int  # inferences of one execution
    preferred: frozenset[int]
    delay_ns: int
    stacked: frozenset[str]  # inputs of variable shape that must be equal in a batch
    optional: bool  # an input may be missing: then all must have the same ones


def batching(config: ModelConfig) -> Batching:
    rules = config.message.dynamic_batching
    return Batching(
        max(1, config.max_batch_size),
        frozenset(rules.preferred_batch_size),
        rules.max_queue_delay_microseconds * 1000,
        frozenset(spec.name for spec in config.inputs if -1 in spec.dims and not spec.ragged),
        any(spec.optional for spec in config.inputs),
    )


class Cut(NamedTuple):
    """So many of those who wait leave now, the first ones; if none do, look again at ``again_ns``."""

    requests: int
    again_ns: int = 0


def cut(waiting: Iterable[Pending], rules: Batching, now: int) -> Cut:
    """``waiting`` are in the order of their arrival."""
    size, count, preferred = 0, 0, 0
    first: Pending | None = None
    full = False
    for pending in waiting:
        if first is None:
            first = pending
        elif size + _size(pending) > rules.max_size or not _stack(first.request, pending.request, rules):
            full = True
            break
        size += _size(pending)
        count += 1
        if size in rules.preferred:
            preferred = count
    if first is None:
        return Cut(0)
    late = first.arrived_ns + rules.delay_ns <= now
    if preferred and not (late and rules.delay_ns):
        return Cut(preferred)
    if full or late or size >= max(rules.preferred, default=rules.max_size):
        return Cut(count)
    return Cut(0, first.arrived_ns + rules.delay_ns)


def _size(pending: Pending) -> int:
    """A client's own batch may be empty."""
    return max(1, pending.batch_size)


def _stack(one: Request, other: Request, rules: Batching) -> bool:
    """Whether a model can make one array of both requests' inputs."""
    if not rules.stacked and not rules.optional:
        return True
    return _shapes(one, rules) == _shapes(other, rules)


def _shapes(request: Request, rules: Batching) -> dict[str, tuple[int, ...]]:
    """Without the batch dimension; () for an input that need not be equal."""
    return {tensor.name: tensor.shape[1:] if tensor.name in rules.stacked else () for tensor in request.inputs}
