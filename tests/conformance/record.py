"""The record of what our server must answer, made from the real Triton so that tests can do without it.

``TENSORBUS_REAL_TRITON=<script> python -m tests.conformance.record`` makes it anew.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.conformance.conftest import Answers, ask_theirs
from tests.conformance.corpus import CASES
from tests.conformance.differences import expected

PATH = Path(__file__).with_name("recorded.json")


def load() -> Answers:
    answers: Answers = json.loads(PATH.read_text())
    return answers


def wanted(their_answers: Answers) -> Answers:
    return {case.name: expected(case.name, their_answers.get(case.name, [])) for case in CASES}


def main() -> None:
    """One case a line, in the order of the corpus."""
    lines = [f"{json.dumps(name)}: {json.dumps(answers)}" for name, answers in wanted(ask_theirs()).items()]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"recorded {len(lines)} cases in {PATH.name}")


if __name__ == "__main__":
    main()
