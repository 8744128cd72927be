from __future__ import annotations

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from _tensorbus_app.stub.exception_text import exception_text, full_traceback

HERE = str(Path(__file__))


def caught(call: object) -> BaseException:
    try:
        call()  # type: ignore[operator]
    except BaseException as error:
        return error
    raise AssertionError


def inner() -> None:
    raise ValueError("boom")


def outer() -> None:
    inner()


def test_frames_come_innermost_first() -> None:
    text = exception_text(caught(outer))
    first, second = inner.__code__.co_firstlineno + 1, outer.__code__.co_firstlineno + 1
    assert text.startswith(f"ValueError: boom\n\nAt:\n  {HERE}({first}): inner\n  {HERE}({second}): outer\n")


def test_without_a_traceback_there_are_no_frames() -> None:
    assert exception_text(KeyError("k")) == "KeyError: 'k'"


def test_an_empty_text_is_said_to_be() -> None:
    assert exception_text(KeyboardInterrupt()) == "KeyboardInterrupt: <EMPTY MESSAGE>"


def test_our_own_frames_are_not_shown() -> None:
    text = exception_text(caught(lambda: pb_utils.Tensor("", np.zeros(1))))
    assert text.startswith("TritonModelException: Tensor name cannot be an empty string.\n\nAt:\n  " + HERE)
    assert "stub/" not in text.replace(HERE, "")


def test_text_that_cannot_be_encoded_is_escaped() -> None:
    assert exception_text(ValueError("\ud800")) == "ValueError: \\ud800"


def test_an_exception_whose_text_fails_has_a_text() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert exception_text(Bad()) == "Bad: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"


def test_causes_are_not_in_the_text_but_in_the_traceback() -> None:
    def chained() -> None:
        try:
            inner()
        except ValueError as error:
            raise KeyError("k") from error

    error = caught(chained)
    assert "boom" not in exception_text(error)
    assert "ValueError: boom" in full_traceback(error)
    assert 'raise KeyError("k") from error' in full_traceback(error)


def test_a_traceback_begins_with_the_users_lines() -> None:
    text = full_traceback(caught(lambda: pb_utils.Tensor("", np.zeros(1))))
    assert text.startswith(f'Traceback (most recent call last):\n  File "{HERE}", line ')
    assert 'pb_utils.Tensor("", np.zeros(1))' in text
