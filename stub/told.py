"""What the broker tells a model that asks for something other than inference, or the exception for the model."""

from __future__ import annotations

from typing import Callable

from . import calls
from .shared import messages
from .triton_error import TritonModelException


class NoServer(TritonModelException):
    """There is none to ask, or it has done with this instance."""


def tell(message: messages.ToBroker, failed: str, no_server: str) -> None:
    """What needs no answer. Raises NoServer, as ``value_of`` does."""
    try:
        calls.tell(message)
    except calls.NotServing:
        raise NoServer(failed + no_server) from None


def value_of(make: Callable[[int], messages.ToBroker], failed: str, no_server: str) -> float:
    """Of the Told to the message that ``make`` makes of a number.

    Raises TritonModelException with a text that begins with ``failed``; where there is nobody to ask it is a NoServer,
    whose text ends with ``no_server``."""
    try:
        told = calls.ask(make)
    except calls.NotServing:
        raise NoServer(failed + no_server) from None
    if told.error is not None:
        raise TritonModelException(failed + told.error[1])
    return told.value
