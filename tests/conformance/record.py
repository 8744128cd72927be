"""The record of what our server must answer, made from the real Triton so that tests can do without it.

``TENSORBUS_REAL_TRITON=<script> python -m tests.conformance.record [repository ...]`` makes it anew, of these alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.conformance.conftest import Answers, ask_theirs
from tests.conformance.corpus import CASES, REPOSITORIES
from tests.conformance.differences import expected

PATH = Path(__file__).with_name("recorded.json")


def load() -> Answers:
    answers: Answers = json.loads(PATH.read_text())
    return answers


def wanted(their_answers: Answers) -> Answers:
    return {case.name: expected(case.name, their_answers.get(case.name, [])) for case in CASES}


def recorded(repositories: list[str]) -> Answers:
    kept = load() if repositories else {}
    return {**kept, **ask_theirs(repositories or REPOSITORIES)}


def main() -> None:
    """One case a line, in the order of the corpus."""
    answers_of = wanted(recorded(sys.argv[1:]))
    lines = [f"{json.dumps(name)}: {json.dumps(answers)}" for name, answers in answers_of.items()]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"recorded {len(lines)} cases in {PATH.name}")


if __name__ == "__main__":
    main()
