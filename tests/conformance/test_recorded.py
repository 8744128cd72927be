"""Our server answers every case of the corpus as the record of the real Triton says."""

from __future__ import annotations

import pytest

from tests.conformance import record
from tests.conformance.conftest import Answers
from tests.conformance.corpus import CASES
from tests.conformance.differences import KNOWN_DIFFERENCES, agree

RECORD = record.load()
NAMES = [case.name for case in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_ours_answers_as_recorded(name: str, our_answers: Answers) -> None:
    assert agree(name, RECORD[name], our_answers[name]), f"\nwanted {RECORD[name]}\n   got {our_answers[name]}"


def test_the_record_holds_the_corpus() -> None:
    assert list(RECORD) == NAMES


def test_known_differences_name_cases_of_the_corpus() -> None:
    assert KNOWN_DIFFERENCES.keys() <= set(NAMES)
