"""Defaults that the original fills in and shows in the config endpoint. Works in place: callers own the message."""

from __future__ import annotations

from broker.proto import Message

SEQUENCE_IDLE_DEFAULT_US = 1_000_000


def normalize(message: Message) -> None:
    """Everything but instance groups; done once more after auto-completion, as max_batch_size may change."""
    if not message.HasField("version_policy"):
        message.version_policy.latest.num_versions = 1
    if message.HasField("dynamic_batching"):
        _prefer_full_batches(message.dynamic_batching, message.max_batch_size)
    if message.HasField("sequence_batching"):
        _normalize_sequence_batching(message.sequence_batching, message.max_batch_size)
    if not message.HasField("ensemble_scheduling"):
        for memory in ("input_pinned_memory", "output_pinned_memory"):
            if not message.optimization.HasField(memory):
                getattr(message.optimization, memory).enable = True


def _prefer_full_batches(batching: Message, max_batch_size: int) -> None:
    if not batching.preferred_batch_size and max_batch_size > 0:
        batching.preferred_batch_size.append(max_batch_size)


def _normalize_sequence_batching(batching: Message, max_batch_size: int) -> None:
    batching.max_sequence_idle_microseconds = batching.max_sequence_idle_microseconds or SEQUENCE_IDLE_DEFAULT_US
    if batching.HasField("oldest"):
        _prefer_full_batches(batching.oldest, max_batch_size)
