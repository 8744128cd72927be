"""What a client is told that asks for a model or version which is not there, as Triton says it.

Broker and gateway both look models up: the one in its registry, the other in what it was told of that.
"""

from __future__ import annotations

from .errors import NotFound, Unavailable

_UNKNOWN = "Request for unknown model: "


def unknown_model(model: str) -> NotFound:
    """No load of it was ever tried."""
    return NotFound("{}'{}' is not found".format(_UNKNOWN, model))


def unknown_version(model: str, version: int) -> NotFound:
    return NotFound("{}'{}' version {} is not found".format(_UNKNOWN, model, version))


def version_not_ready(model: str, version: int) -> Unavailable:
    return Unavailable("{}'{}' version {} is not at ready state".format(_UNKNOWN, model, version))


def no_version_ready(model: str) -> NotFound:
    """Any version was asked for."""
    return NotFound("{}'{}' has no available versions".format(_UNKNOWN, model))
