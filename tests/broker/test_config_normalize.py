from __future__ import annotations

from broker.config_normalize import normalize
from broker.model_config import parse_text


def normalized(text: str):
    message = parse_text(text.encode(), "config.pbtxt")
    normalize(message)
    return message


def test_the_latest_version_is_served_unless_told_otherwise():
    assert normalized("").version_policy.latest.num_versions == 1
    assert normalized("version_policy { all { } }").version_policy.WhichOneof("policy_choice") == "all"


def test_full_batches_are_preferred_when_none_are_named():
    assert list(normalized("max_batch_size: 4 dynamic_batching { }").dynamic_batching.preferred_batch_size) == [4]
    assert list(normalized("dynamic_batching { }").dynamic_batching.preferred_batch_size) == []
    named = normalized("max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 2 ] }")
    assert list(named.dynamic_batching.preferred_batch_size) == [2]
    oldest = normalized("max_batch_size: 4 sequence_batching { oldest { } }").sequence_batching.oldest
    assert list(oldest.preferred_batch_size) == [4]


def test_sequences_time_out_after_a_second():
    assert normalized("sequence_batching { }").sequence_batching.max_sequence_idle_microseconds == 1_000_000


def test_pinned_memory_is_on_unless_switched_off():
    optimization = normalized("optimization { input_pinned_memory { enable: false } }").optimization
    assert (optimization.input_pinned_memory.enable, optimization.output_pinned_memory.enable) == (False, True)


def test_an_ensemble_gets_no_optimization():
    assert not normalized("ensemble_scheduling { }").HasField("optimization")


def test_normalising_twice_changes_nothing():
    once = normalized("max_batch_size: 4 dynamic_batching { }")
    twice = type(once)()
    twice.CopyFrom(once)
    normalize(twice)
    assert twice == once
