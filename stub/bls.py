"""Calls from a model to other models. A later capability: for now each call ends in a clear exception."""

from __future__ import annotations

from typing import NoReturn

from .triton_error import TritonModelException


class Execution:
    """Whether this process is inside ``execute``; it runs one instance."""

    running = False


def call() -> NoReturn:
    if not Execution.running:
        raise TritonModelException("BLS is only supported during the 'execute' function.")
    raise TritonModelException("BLS is not supported by this version of tensorbus.")
