"""The settings of the logging extension, which clients may read and change while the server runs.

The log is not the gateway's: its owner hands over the settings, and heeds whatever they are when it writes a line.
"""

from __future__ import annotations

from typing import Any, Protocol

FORMATS = ("default", "ISO8601")
SWITCHES = ("log_info", "log_warning", "log_error")
FILE_IS_FIXED = "log file location can not be updated through network protocol"
_NAMES = ("log_file", *SWITCHES, "log_verbose_level", "log_format")  # in the order in which they are shown


class LogSettings(Protocol):
    """Invariant: ``log_format`` is one of FORMATS; ``log_file`` never changes."""

    log_file: str
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: int
    log_format: str


def shown(settings: LogSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in _NAMES}


def change(settings: LogSettings, changes: dict[str, Any]) -> None:
    """Of fields by name. All have been checked before the first is changed."""
    for name, value in changes.items():
        setattr(settings, name, value)
