from __future__ import annotations

import pytest

from broker.model_config import from_message, parse_text
from broker.sequence_rules import sequence_rules


def slots(batching: str) -> int:
    text = f"max_batch_size: 4 sequence_batching {{ {batching} }}"
    return sequence_rules(from_message(parse_text(text.encode(), "config.pbtxt"))).slots


@pytest.mark.parametrize(("candidates", "expected"), [(7, 7), (0, 4), (-2, 4)])
def test_candidates_that_are_no_number_of_sequences_are_as_many_as_a_batch_holds(candidates, expected):
    assert slots(f"oldest {{ max_candidate_sequences: {candidates} }}") == expected


def test_direct_has_as_many_slots_as_a_batch_has_places():
    assert slots("direct { }") == slots("") == 4
