"""Our server and the real Triton, started on the same repositories, answer every case of the corpus alike.

Needs TENSORBUS_REAL_TRITON (see servers.py); differences.py lists what is meant to differ.
"""

from __future__ import annotations

import pytest

from tests.conformance import record
from tests.conformance.conftest import Answers
from tests.conformance.corpus import CASES
from tests.conformance.differences import KNOWN_DIFFERENCES, agree, expected
from tests.conformance.servers import real_triton

if not real_triton():
    pytest.skip("TENSORBUS_REAL_TRITON is not set: no real Triton to compare with", allow_module_level=True)

NAMES = [case.name for case in CASES]
pytestmark = pytest.mark.timeout(1800)  # the first one waits until the real server has answered all


@pytest.mark.parametrize("name", NAMES)
def test_ours_answers_as_the_real_triton(name: str, our_answers: Answers, their_answers: Answers) -> None:
    wanted = expected(name, their_answers.get(name, []))
    assert agree(name, wanted, our_answers[name]), f"\nwanted {wanted}\n   got {our_answers[name]}"


def test_the_real_triton_answers_as_recorded(their_answers: Answers) -> None:
    assert record.wanted(their_answers) == record.load()


def test_known_differences_are_differences(their_answers: Answers) -> None:
    for name, difference in KNOWN_DIFFERENCES.items():
        if not difference.fatal:
            assert not agree(name, list(difference.ours), their_answers[name]), name
