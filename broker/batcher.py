"""Dynamic batching: which of the waiting requests make one execution, and how long it is worth to wait for more.

The rules are Triton's. Going through the queue in order, a batch grows until the next request does not fit: it would
exceed the largest size, or its inputs differ in a way that a model cannot stack. The largest preferred size that was
reached on the way leaves at once; if none was, what there is before the largest of them would be exceeded. A batch that
cannot grow leaves as it is, and so does one whose oldest request has waited for the queue delay. Otherwise the instance
waits. Requests are never split, and never concatenated by us.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker.model_config import ModelConfig
from broker.policy_queue import PolicyQueue
from broker.queue import Pending, RequestQueue
from broker.queue_policy import queue_policy
from protocol.messages import Request

# Why a batch is closed: it has a preferred size; no more fit; the next request has other shapes or other inputs; its
# oldest request has waited for the queue delay; there is none.
PREFERRED, FULL, SHAPE, DELAY, NO_DELAY = "preferred_size", "full", "shape", "delay", "no_delay"
REASONS = (DELAY, FULL, NO_DELAY, PREFERRED, SHAPE)


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


def queue(config: ModelConfig) -> RequestQueue | PolicyQueue:
    """For the requests of a model with dynamic batching."""
    rules = config.message.dynamic_batching
    default = queue_policy(rules.default_queue_policy)
    if not rules.priority_levels and not default.delays:
        return RequestQueue(default)
    policies = {level: queue_policy(message) for level, message in rules.priority_queue_policy.items()}
    return PolicyQueue(default, rules.priority_levels, rules.default_priority_level, policies)


class Cut(NamedTuple):
    """So many of those who wait leave now, the first ones; if none do, look again at ``again_ns``."""

    requests: int
    again_ns: int = 0
    why: str = ""


def cut(waiting: Iterable[Pending], rules: Batching, now: int) -> Cut:
    """``waiting`` are in the order in which they leave the queue."""
    size, count, preferred, oldest_ns = 0, 0, 0, now
    largest = max(rules.preferred, default=rules.max_size)
    first: Request | None = None
    why = ""
    for pending in waiting:
        inferences = pending.batch_size or 1  # a client's own batch may be empty
        if first is None:
            first = pending.request
        else:
            if not preferred and size + inferences > largest:
                preferred = count
            if size + inferences > rules.max_size:
                why = FULL
                break
            if (rules.stacked or rules.optional) and _shapes(first, rules) != _shapes(pending.request, rules):
                why = SHAPE
                break
        size += inferences
        count += 1
        if pending.arrived_ns < oldest_ns:
            oldest_ns = pending.arrived_ns
        if size in rules.preferred:
            preferred = count
    if first is None:
        return Cut(0)
    late = oldest_ns + rules.delay_ns <= now
    if preferred and not (late and rules.delay_ns):
        return Cut(preferred, why=FULL if preferred == count and size >= rules.max_size else PREFERRED)
    if why or size >= largest:
        return Cut(count, why=why or FULL)
    if late:
        return Cut(count, why=DELAY if rules.delay_ns else NO_DELAY)
    return Cut(0, oldest_ns + rules.delay_ns)


def _shapes(request: Request, rules: Batching) -> dict[str, tuple[int, ...]]:
    """Without the batch dimension; () for an input that need not be equal."""
    return {tensor.name: tensor.shape[1:] if tensor.name in rules.stacked else () for tensor in request.inputs}
