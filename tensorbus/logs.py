"""The server's log: structlog events as Triton's lines, one line each.

    I1129 20:36:28.129911 5002 core.py:604] "loading" model=add_sub version=1      --log-format=default
    2026-11-29T20:36:28Z I 5002 core.py:604] "loading" model=add_sub version=1     --log-format=ISO8601

    I1129 20:36:28.129911 5002 add_sub:1 add_sub_0_0] hello                        what a model printed

The message is a JSON string, so that no text of a client or a model can forge a line; only what models print stands
there as it was printed, one line for each of theirs. Every module logs through
``structlog.get_logger()``; ``configure`` alone knows where that ends. A logger that was bound once (``log.bind(...)``
kept in an object) turns a filtered event away in 0.2 us; the module's unbound one looks its binding up at each call.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from tensorbus.log_outlet import Outlet
from tensorbus.rate_limit import RateLimit

# A line of the log, and what stubs say, has a letter; our own code calls structlog's methods (_Logger).
LEVELS = {"I": "info", "W": "warning", "E": "error", "V": "debug"}

_EVENTS_PER_SECOND = 10  # of one warning or error of one model; the rest is counted
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BARE = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\x9f]+")  # values that need no quotes


@dataclass(slots=True)
class LogSettings:
    """What is logged and how. The fields are those of the logging extension; all but ``log_file`` may change while
    the server runs."""

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"


class ServerLog:
    """Formats lines and writes them: information to stdout, warnings and errors to stderr, or all to the file.

    A line is one write(2) of the whole, so lines of several threads and of the stubs do not mix. It may be dropped if
    nobody reads (log_outlet.py).
    """

    def __init__(self, settings: LogSettings, escape: bool = True) -> None:
        """Raises OSError if the log file cannot be opened. ``escape`` False prints messages as they are."""
        self.settings = settings
        self.rate_limit = RateLimit(_EVENTS_PER_SECOND)
        self._escape = escape
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = Outlet(os.open(settings.log_file, flags, 0o644)) if settings.log_file else None
        self._streams = (Outlet(1), Outlet(2))

    def enabled(self, level: str) -> bool:
        """Whether lines of a level ("I", "W", "E", or "V" for verbose ones) are shown now."""
        settings = self.settings
        if level == "I":
            return settings.log_info
        if level == "V":
            return settings.log_verbose_level >= 1
        return settings.log_warning if level == "W" else settings.log_error

    def line(self, level: str, file: str, line: int, text: str) -> None:
        if self.enabled(level):
            self.write(level, file, line, self._quoted(text))

    def event(self, level: str, file: str, line: int, event: str, fields: dict[str, Any]) -> None:
        """An event of ours; ``exc_info`` among the fields (an exception, or True) adds its traceback."""
        exc_info = fields.pop("exc_info", None)
        if exc_info:
            error = exc_info if isinstance(exc_info, BaseException) else sys.exception()
            event += "\n" + "".join(traceback.format_exception(error)).rstrip()
        self.write(level, file, line, " ".join((self._quoted(event), *(f"{k}={_value(v)}" for k, v in fields.items()))))

    def write(self, level: str, file: str, line: int, text: str) -> None:
        outlet = self._file or self._streams[level in "WE"]
        if outlet.dropped:
            self._tell_dropped(outlet)
        outlet.write(self._line(level, file, line, text))

    def _tell_dropped(self, outlet: Outlet) -> None:
        count, outlet.dropped = outlet.dropped, 0
        text = self._quoted("log lines were dropped: nobody read them")
        outlet.write(self._line("W", __file__, sys._getframe().f_lineno, f"{text} count={count}"))
        if outlet.dropped:
            outlet.dropped = count

    def _line(self, level: str, file: str, line: int, text: str) -> bytes:
        place = _value(os.path.basename(file))
        return f"{self._stamp(level)} {os.getpid()} {place}:{line}] {text}\n".encode(errors="backslashreplace")

    def printed(self, source: str, lines: Sequence[str]) -> bool:
        """What a model printed: as it is, whatever the settings say. False if whoever reads the log is behind."""
        outlet = self._file or self._streams[0]
        if outlet.dropped and lines:
            self._tell_dropped(outlet)
        source = json.dumps(source) if _CONTROL.search(source) else source
        preamble = f"{self._stamp('I')} {os.getpid()} {source}] "
        for line in lines:
            outlet.write(f"{preamble}{line}\n".encode(errors="backslashreplace"))
        return outlet.takes_more()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file.fd)
            self._file = None

    def _stamp(self, level: str) -> str:
        letter = "I" if level == "V" else level
        seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        utc = time.gmtime(seconds)
        if self.settings.log_format == "ISO8601":
            return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', utc)} {letter}"
        return f"{letter}{time.strftime('%m%d %H:%M:%S', utc)}.{nanoseconds // 1000:06d}"

    def _quoted(self, text: str) -> str:
        return json.dumps(text, ensure_ascii=False) if self._escape else text


class _Logger(structlog.BoundLoggerBase):
    """What ``structlog.get_logger()`` gives."""

    _logger: ServerLog

    def debug(self, event: str, **fields: Any) -> None:
        """A verbose line."""
        if self._logger.enabled("V"):
            self._emit("V", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        if self._logger.settings.log_info:
            self._emit("I", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        if self._logger.settings.log_warning:
            self._emit_limited("W", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        if self._logger.settings.log_error:
            self._emit_limited("E", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        if self._logger.settings.log_error:
            self._emit_limited("E", event, {"exc_info": True, **fields})

    def _emit_limited(self, level: str, event: str, fields: dict[str, Any]) -> None:
        # 10,000 bad requests are not 10,000 tracebacks.
        key = (event, fields.get("model") or self._context.get("model"))
        turned_away = self._logger.rate_limit.admit(key, time.monotonic())
        if turned_away is not None:
            self._emit(level, event, {**fields, "suppressed": turned_away} if turned_away else fields, depth=3)

    def _emit(self, level: str, event: str, fields: dict[str, Any], depth: int = 2) -> None:
        caller = sys._getframe(depth)
        self._logger.event(level, caller.f_code.co_filename, caller.f_lineno, event, {**self._context, **fields})


class _Bridge(logging.Handler):
    """Brings the warnings and errors of libraries that use the standard logging (asyncio, grpc) into this log."""

    def __init__(self, log: ServerLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = "E" if record.levelno >= logging.ERROR else "W"
        if self._log.rate_limit.admit((record.name, record.msg), time.monotonic()) is not None:
            self._log.line(level, record.filename, record.lineno, self.format(record))


_log = ServerLog(LogSettings())  # of this process, as structlog's configuration is


def configure_as_guest(settings: LogSettings) -> ServerLog:
    """The log of a server in a process that is not its own: how others log there stays as it is. Raises OSError."""
    global _log
    log = _log = ServerLog(settings)
    if not structlog.is_configured():
        structlog.configure(processors=[], wrapper_class=_Logger, logger_factory=lambda *_: _log)
    return log


def configure(settings: LogSettings, escape: bool = True) -> ServerLog:
    """Send every event of this process to the log that is returned. Raises OSError (the log file)."""
    global _log
    log = _log = ServerLog(settings, escape)
    structlog.configure(
        processors=[], wrapper_class=_Logger, logger_factory=lambda *_: log, cache_logger_on_first_use=True
    )
    bridge = _Bridge(log)
    bridge.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logging.basicConfig(handlers=[bridge], level=logging.WARNING, force=True)
    return log


def current_settings() -> LogSettings:
    """Of this process's log, which heeds what they are changed to."""
    return _log.settings


def log_line(level: str, file: str, line: int, text: str) -> None:
    """A line that comes from a model's Logger, with the model's file and line. ``level`` is "I", "W", "E" or "V"."""
    _log.line(level, file, line, text)


def log_printed(source: str, lines: Sequence[str]) -> bool:
    """Lines that the model of ``source`` has printed. False if whoever reads the log is behind."""
    return _log.printed(source, lines)


def log_table(table: str) -> None:
    """A table of ours (tensorbus.tables), as information below an empty heading; it is not escaped."""
    if _log.enabled("I"):
        caller = sys._getframe(1)
        _log.write("I", caller.f_code.co_filename, caller.f_lineno, "\n" + table)


def _value(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)
