"""Each server is started once and replayed the whole corpus; the tests then compare case by case."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.conformance.corpus import CASES, REPOSITORIES
from tests.conformance.differences import KNOWN_DIFFERENCES
from tests.conformance.replay import Address, Answer, Replayer
from tests.conformance.servers import ours, theirs

Answers = dict[str, list[Answer]]


def replay_all(server: Callable[[str], AbstractContextManager[Address]], fatal_too: bool) -> Answers:
    answers: Answers = {}
    for repository in REPOSITORIES:
        with server(repository) as address:
            replayer = Replayer(address)
            for case in CASES:
                difference = KNOWN_DIFFERENCES.get(case.name)
                if case.repository == repository and (fatal_too or not (difference and difference.fatal)):
                    answers[case.name] = replayer.answers(case)
            replayer.close()
    return answers


@pytest.fixture(scope="session")
def our_answers() -> Answers:
    return replay_all(ours, fatal_too=True)


@pytest.fixture(scope="session")
def their_answers() -> Answers:
    return replay_all(theirs, fatal_too=False)
