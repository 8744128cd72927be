"""docs/model-surface.md and docs/server-surface.md name tests and recorded cases that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.conformance.corpus import CASES

TESTS = Path(__file__).parent
PAGES = ("model-surface.md", "server-surface.md")
ROW = re.compile(r"\| (?P<promise>.+) \| (?P<shown>.+) \|")


def rows(page: str) -> list[tuple[str, str]]:
    text = (TESTS.parent / "docs" / page).read_text()
    lines = [ROW.fullmatch(line) for line in text.splitlines() if line.startswith("| ")]
    assert all(lines), "a row has two cells"
    return [(row["promise"], row["shown"]) for row in lines if row and row["shown"] != "shown by"]


def functions_in(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.fixture(scope="module")
def names() -> set[str]:
    found = {f"recorded: {case.name}" for case in CASES}
    for file in TESTS.rglob("test_*.py"):
        found |= {
            f"{file.relative_to(TESTS.parent)}::{name}" for name in functions_in(file) if name.startswith("test_")
        }
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_row_names_a_test_that_exists_or_says_what_is_missing(page: str, names: set[str]) -> None:
    lost = [shown for _, shown in rows(page) if shown not in names and not shown.startswith("not yet")]
    assert not lost, "\n".join(lost)


@pytest.mark.parametrize("page", PAGES)
def test_nothing_is_promised_twice(page: str) -> None:
    promises = [promise for promise, _ in rows(page)]
    assert len(set(promises)) == len(promises), sorted({one for one in promises if promises.count(one) > 1})


@pytest.mark.parametrize("page", PAGES)
def test_the_rows_are_short(page: str) -> None:
    assert [promise for promise, _ in rows(page) if len(promise) > 70] == []
