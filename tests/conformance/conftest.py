"""Each server is started once and replayed the whole corpus; the tests then compare case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, closing

import pytest

from tests.conformance.corpus import CASES, REPOSITORIES
from tests.conformance.differences import KNOWN_DIFFERENCES
from tests.conformance.replay import Address, Answer, Ended, Replayer
from tests.conformance.requests import Case
from tests.conformance.servers import ours, theirs

Answers = dict[str, list[Answer]]
Server = Callable[[str], AbstractContextManager[Address]]
UNANSWERED = ("closed", "no answer")
ATTEMPTS = 12  # of the real Triton, which now and then dies of what it answers at the next try


def ask_ours() -> Answers:
    answers: Answers = {}
    for repository, cases in _by_repository(CASES).items():
        _ask(ours, repository, cases, answers)
    return answers


def ask_theirs(repositories: Iterable[str] = REPOSITORIES) -> Answers:
    """All but what is sure to kill it."""
    answers: Answers = {}
    fatal = {name for name, difference in KNOWN_DIFFERENCES.items() if difference.fatal}
    cases_of = _by_repository([case for case in CASES if case.name not in fatal])
    for repository in repositories:
        cases = cases_of[repository]
        for attempts_left in reversed(range(ATTEMPTS)):
            try:
                _ask(theirs, repository, cases, answers)
                break
            except Ended:
                if not attempts_left:
                    raise
    return answers


def _by_repository(cases: list[Case]) -> dict[str, list[Case]]:
    return {name: [case for case in cases if case.repository == name] for name in REPOSITORIES}


def _ask(server: Server, repository: str, cases: list[Case], answers: Answers) -> None:
    """Those that have no answer yet. Raises Ended, without the answer of the case that did it."""
    with server(repository) as address, closing(Replayer(address)) as replayer:
        for case in cases:
            if case.name not in answers:
                answer = replayer.answers(case)
                replayer.check()
                if any(one.get("status") in UNANSWERED for one in answer):
                    raise Ended(f"{case.name!r} has no answer")
                answers[case.name] = answer


@pytest.fixture(scope="session")
def our_answers() -> Answers:
    return ask_ours()


@pytest.fixture(scope="session")
def their_answers() -> Answers:
    return ask_theirs()
