"""Enums that look like those of the original's C++ module: ``repr`` and ``str`` name the member, ``==`` takes ints."""

from __future__ import annotations

from enum import IntEnum


class PybindEnum(IntEnum):
    """Members compare and hash as their numbers."""

    def __str__(self) -> str:  # as before Python 3.11; models print codes and levels
        return "{}.{}".format(type(self).__name__, self.name)
