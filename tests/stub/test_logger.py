from __future__ import annotations

import re
from typing import Iterator, List, Tuple

import pytest
import triton_python_backend_utils as pb_utils
from _tensorbus_app.stub import logger as module


@pytest.fixture
def lines() -> Iterator[List[Tuple[str, str, int, str]]]:
    collected: List[Tuple[str, str, int, str]] = []
    before = module._sink
    module.set_sink(lambda *line: collected.append(line))
    yield collected
    module.set_sink(before)


def test_each_function_has_its_level_and_the_callers_file(lines: List[Tuple[str, str, int, str]]) -> None:
    logger = pb_utils.Logger
    logger.log_info("i")
    logger.log_warn("w")
    logger.log_error("e")
    logger.log_verbose("v")
    logger.log("plain")
    logger.log("given", logger.ERROR)
    assert [(level, text) for level, _, _, text in lines] == [
        ("I", "i"),
        ("W", "w"),
        ("E", "e"),
        ("V", "v"),
        ("I", "plain"),
        ("E", "given"),
    ]
    assert {file for _, file, _, _ in lines} == {"test_logger.py"}
    assert lines[1][2] == lines[0][2] + 1


def test_other_arguments_are_type_errors() -> None:
    for message, level in ((None, pb_utils.Logger.INFO), (3, pb_utils.Logger.INFO), ("x", 1), ("x", None)):
        with pytest.raises(TypeError):
            pb_utils.Logger.log(message, level)


def test_it_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="No constructor defined"):
        pb_utils.Logger()


def test_without_a_server_lines_go_to_stderr_in_its_format(capsys: pytest.CaptureFixture[str]) -> None:
    pb_utils.Logger.log_info('hello "q" \n x')
    pb_utils.Logger.log_verbose("unseen")
    text = capsys.readouterr().err
    assert re.fullmatch(r'I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ test_logger\.py:\d+\] "hello \\"q\\" \\n x"\n', text)
