"""What went wrong in a model, as its clients are told, and what of it only the log may know."""

from __future__ import annotations

import os
from typing import Callable

from .exception_text import exception_text, full_traceback, user_frames
from .logger import LogSink


def on_raised(error: BaseException) -> None:
    """``execute`` has raised it; a model in the foreground puts something in the place of this."""


class Failures:
    """The texts name the instance. Whoever answers the client logs them; here only what they leave out is logged."""

    details_every_ns = 1_000_000_000  # at most; a model in the foreground has all of them

    def __init__(self, instance: str, model_file: str, log: LogSink, clock_ns: Callable[[], int]) -> None:
        self._instance = instance
        self._model_file = model_file
        self._log = log
        self._clock_ns = clock_ns
        self._next_details_ns = 0

    def text(self, cause: str) -> str:
        """The client's."""
        return "Failed to process the request(s) for model '{}', message: {}".format(self._instance, cause)

    def before_execute(self, error: BaseException, cause: str) -> str:
        """The client's text when the inputs could not be had."""
        text = "Failed to process the request(s) for model instance '{}', message: {}".format(self._instance, cause)
        self.log_details(text, error)
        return text

    def hidden(self, cause: str, error: BaseException) -> str:
        """The client's text; ``error`` is for the log alone, since its own text may name segments and paths."""
        text = self.text(cause)
        self.log_details(text, error)
        return text

    def raised(self, error: BaseException) -> str:
        """The client's text of what ``execute`` raised. The log has the traceback, if it has not had too many."""
        on_raised(error)
        if self._due():
            self.log_traceback(error)
        return self.text(exception_text(error))

    def log_traceback(self, error: BaseException) -> None:
        """Of what the model raised: the lines of its source, and the causes."""
        file, line, _ = next(iter(user_frames(error)), (self._model_file, 0, ""))
        self._log("E", os.path.basename(file), line, full_traceback(error))

    def log_details(self, text: str, error: BaseException) -> None:
        if self._due():
            self.log("{}\n{}".format(text, full_traceback(error)))

    def _due(self) -> bool:
        """Once a second at most: ten thousand bad requests are not ten thousand tracebacks."""
        now_ns = self._clock_ns()
        due = now_ns >= self._next_details_ns
        if due:
            self._next_details_ns = now_ns + self.details_every_ns
        return due

    def warn(self, text: str) -> None:
        self._log("W", os.path.basename(self._model_file), 0, "model instance '{}': {}".format(self._instance, text))

    def log(self, text: str) -> None:
        """What no client is told."""
        self._log("E", os.path.basename(self._model_file), 0, text)
