"""``pb_utils.Logger``: lines for the server's log, with the caller's file and line.

Until the stub names a sink (and in a unit test of a model) lines go to stderr in the server's format.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime
from typing import Any, Callable

from .arguments import incompatible, text_argument
from .pybind_enum import PybindEnum

LogSink = Callable[[str, str, int, str], None]  # level ("I", "W", "E", "V"), file's base name, line, text


class _LogLevel(PybindEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_LogLevel.__name__ = _LogLevel.__qualname__ = "LogLevel"
_LETTER = {_LogLevel.INFO: "I", _LogLevel.WARNING: "W", _LogLevel.ERROR: "E", _LogLevel.VERBOSE: "V"}


def _to_stderr(level: str, file: str, line: int, text: str) -> None:
    if level == "V":  # off by default, as in the server
        return
    now = datetime.now().strftime("%m%d %H:%M:%S.%f")
    quoted = json.dumps(text, ensure_ascii=False)
    sys.stderr.write("{}{} {} {}:{}] {}\n".format(level, now, os.getpid(), file, line, quoted))


_sink: LogSink = _to_stderr


def set_sink(sink: LogSink) -> None:
    """Where lines go from now on; called from any thread of the model."""
    global _sink
    _sink = sink


def write(level: str, file: str, line: int, text: str) -> None:
    """A line of the stub's own."""
    _sink(level, os.path.basename(file), line, text)


def _write_for_caller(function: str, level: _LogLevel, message: Any) -> None:
    text = text_argument(function, message)
    frame = sys._getframe(2)
    write(_LETTER[level], frame.f_code.co_filename, frame.f_lineno, text)


class Logger:
    """Static methods only."""

    __module__ = "c_python_backend_utils"

    LogLevel = _LogLevel
    INFO = _LogLevel.INFO
    WARNING = _LogLevel.WARNING
    ERROR = _LogLevel.ERROR
    VERBOSE = _LogLevel.VERBOSE

    def __new__(cls) -> Logger:
        raise TypeError("c_python_backend_utils.Logger: No constructor defined!")

    @staticmethod
    def log(message: str, level: _LogLevel = _LogLevel.INFO) -> None:
        if not isinstance(level, _LogLevel):
            raise incompatible("log", "log(message: str, level: LogLevel = LogLevel.INFO)", message, level)
        _write_for_caller("log", level, message)

    @staticmethod
    def log_info(message: str) -> None:
        _write_for_caller("log_info", _LogLevel.INFO, message)

    @staticmethod
    def log_warn(message: str) -> None:
        _write_for_caller("log_warn", _LogLevel.WARNING, message)

    @staticmethod
    def log_error(message: str) -> None:
        _write_for_caller("log_error", _LogLevel.ERROR, message)

    @staticmethod
    def log_verbose(message: str) -> None:
        _write_for_caller("log_verbose", _LogLevel.VERBOSE, message)
