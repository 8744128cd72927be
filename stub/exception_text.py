"""A Python exception as the text a client sees, in the form of the original's C++ module (pybind11):

    ValueError: boom

    At:
      /repo/probe/1/helper.py(12): inner
      /repo/probe/1/model.py(16): execute

Innermost frame first, without our own frames and the import system's.
"""

from __future__ import annotations

import os
import traceback
from typing import List, Tuple

_NOT_OF_USER = (os.path.dirname(os.path.abspath(__file__)) + os.sep, "<frozen importlib")

Frame = Tuple[str, int, str]  # file, line, function


def exception_text(error: BaseException) -> str:
    frames = user_frames(error)
    at = "".join("  {}({}): {}\n".format(*frame) for frame in frames)
    text = "{}: {}{}".format(type(error).__name__, _message(error), "\n\nAt:\n" + at if at else "")
    return text.encode("utf-8", "backslashreplace").decode()


def user_frames(error: BaseException) -> List[Frame]:
    """The frames of the user's code and of what it called, innermost first."""
    frames: List[Frame] = []
    link = error.__traceback__
    while link is not None:
        code = link.tb_frame.f_code
        if not code.co_filename.startswith(_NOT_OF_USER):
            frames.append((code.co_filename, link.tb_lineno, code.co_name))
        link = link.tb_next
    return frames[::-1]


def full_traceback(error: BaseException) -> str:
    """As Python prints it: the lines of the source, and the exceptions that this one was raised from or during. It
    begins with the first frame that is not ours."""
    link = error.__traceback__
    while link is not None and link.tb_frame.f_code.co_filename.startswith(_NOT_OF_USER):
        link = link.tb_next
    text = "".join(traceback.format_exception(type(error), error, link))
    return text.encode("utf-8", "backslashreplace").decode()


def _message(error: BaseException) -> str:
    try:
        return str(error) or "<EMPTY MESSAGE>"
    except Exception:
        return "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"
