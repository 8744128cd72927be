"""Rules for dynamic batching. Raises InvalidArgument with the original's sentences."""

from __future__ import annotations

from broker.proto import Message, QueuePolicyMessage
from protocol.errors import InvalidArgument


def check_dynamic_batching(message: Message) -> None:
    batching = message.dynamic_batching
    check_preferred_sizes(batching.preferred_batch_size, message, "dynamic batching preferred size")
    if batching.priority_levels:
        _check_priorities(batching, message.name)
    if batching.preserve_ordering:
        _check_order_can_hold(batching, message.name)


def check_preferred_sizes(sizes: list[int], message: Message, what: str) -> None:
    for size in sizes:
        if size <= 0:
            raise InvalidArgument(f"{what} must be positive for {message.name}")
        if size > message.max_batch_size:
            raise InvalidArgument(f"{what} must be <= max batch size for {message.name}")


def _check_priorities(batching: Message, model: str) -> None:
    levels = batching.priority_levels
    if not 1 <= batching.default_priority_level <= levels:
        raise InvalidArgument(f"default priority level must be in range [1, {levels}] for {model}")
    if not all(1 <= level <= levels for level in batching.priority_queue_policy):
        raise InvalidArgument(f"priority queue policy must have priority level in range [1, {levels}] for {model}")


def _check_order_can_hold(batching: Message, model: str) -> None:
    """Priorities and delayed requests would both let a later request overtake."""
    if batching.priority_levels > 1:
        raise InvalidArgument(f"Only one priority level is allowed when 'preserve_ordering' is true for {model}")
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.default_timeout_microseconds and policy.timeout_action == QueuePolicyMessage.DELAY:
            raise InvalidArgument(
                f"Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {model}"
            )
