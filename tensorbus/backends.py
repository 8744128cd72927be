"""The Python-based backends that there are: the operator's, then those that come with us."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import stub
from broker.backends import Backend, scan

_OURS = os.path.join(os.path.dirname(stub.__file__), "backends")


def _no_settings(backend: str) -> Mapping[str, str]:
    return {}


def find(directory: str, settings_of: Callable[[str], Mapping[str, str]] = _no_settings) -> dict[str, Backend]:
    """By name; one of ``directory`` comes before ours of that name. ``settings_of`` a backend are its --backend-config
    values."""
    return scan((directory, _OURS), settings_of)
