from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from tensorbus.tool import ToolFailed, run


def python(code: str, timeout_s: float = 20, **options) -> str:
    return asyncio.run(run([sys.executable, "-c", code], os.environ, timeout_s, **options))


def test_lines_are_told_as_they_come_and_the_last_is_the_result() -> None:
    told: list[str] = []
    assert python("import sys\nprint('one')\nprint('two', file=sys.stderr)", told=told.append) in ("one", "two")
    assert sorted(told) == ["one", "two"]


def test_a_line_may_be_of_any_length_and_need_no_end() -> None:
    assert python("print('x' * 300_000, end='')") == "x" * 300_000


def test_of_a_failure_the_last_lines_are_told() -> None:
    with pytest.raises(ToolFailed) as failed:
        python("import sys\nfor number in range(100): print(number)\nsys.exit(3)")
    assert str(failed.value).split("\n")[-2:] == ["98", "99"]


def test_a_failure_without_a_word_has_its_status() -> None:
    with pytest.raises(ToolFailed, match="ended with status 3"):
        python("raise SystemExit(3)")


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(ToolFailed, match="/nowhere/uv cannot be run: No such file or directory"):
        asyncio.run(run(["/nowhere/uv"], os.environ, 20))


STARTS_ANOTHER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
with open({path!r} + ".new", "w") as file:
    file.write(str(child.pid))
import os
os.rename({path!r} + ".new", {path!r})
time.sleep(1000)
"""


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_one_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with pytest.raises(ToolFailed, match="was ended after 2 s"):
        python(STARTS_ANOTHER.format(path=str(path)), timeout_s=2)
    assert is_gone(int(path.read_text()))


def test_nothing_goes_on_after_the_caller_was_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "pid"

    async def main() -> None:
        code = STARTS_ANOTHER.format(path=str(path))
        running = asyncio.create_task(run([sys.executable, "-c", code], os.environ, 100))
        while not path.exists():
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(main(), 20))
    assert is_gone(int(path.read_text()))


LEAVES_ONE_BEHIND = """
import subprocess, sys
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({path!r}, "w").write(str(other.pid))
"""


def test_what_an_ended_program_has_left_with_its_output_is_ended_too(tmp_path: Path) -> None:
    path = tmp_path / "pid"

    async def too_long() -> None:
        with pytest.raises(ToolFailed, match="was ended after 2 s"):
            await run([sys.executable, "-c", LEAVES_ONE_BEHIND.format(path=str(path))], os.environ, 2)
        assert await asyncio.to_thread(is_gone, int(path.read_text()))

    asyncio.run(too_long())
