"""The error tree. Leaves are named for what the client did or met; HTTP and gRPC codes live in gateway/ alone.

A message names the model, the instance or the input at fault, never a segment, a socket or a path of the host.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Dict, Type


class ErrorKind(IntEnum):
    """TRITONSERVER_Error_Code; also ``pb_utils.TritonError`` codes."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


# As Triton prints them in logs and in the repository index's ``reason``: "<text>: <message>".
KIND_TEXT = {
    ErrorKind.UNKNOWN: "Unknown",
    ErrorKind.INTERNAL: "Internal",
    ErrorKind.NOT_FOUND: "Not found",
    ErrorKind.INVALID_ARG: "Invalid argument",
    ErrorKind.UNAVAILABLE: "Unavailable",
    ErrorKind.UNSUPPORTED: "Unsupported",
    ErrorKind.ALREADY_EXISTS: "Already exists",
    ErrorKind.CANCELLED: "Cancelled",
}

# Triton's text for an inference while the server stops; the gateway and the broker both refuse with it.
STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"


class ServingError(Exception):
    """Any failure that a client may see. ``str(error)`` is the client's text."""

    kind = ErrorKind.UNKNOWN

    def status_text(self) -> str:
        """The form of logs and of the repository index: ``Invalid argument: must specify ...``."""
        return "{}: {}".format(KIND_TEXT[self.kind], self)


class InternalError(ServingError):
    kind = ErrorKind.INTERNAL


class NotFound(ServingError):
    kind = ErrorKind.NOT_FOUND


class InvalidArgument(ServingError):
    kind = ErrorKind.INVALID_ARG


class Unavailable(ServingError):
    kind = ErrorKind.UNAVAILABLE


class Unsupported(ServingError):
    kind = ErrorKind.UNSUPPORTED


class AlreadyExists(ServingError):
    kind = ErrorKind.ALREADY_EXISTS


class Cancelled(ServingError):
    kind = ErrorKind.CANCELLED


_BY_KIND: Dict[int, Type[ServingError]] = {leaf.kind: leaf for leaf in ServingError.__subclasses__()}


def error_of(kind: int, text: str) -> ServingError:
    """The leaf for a kind that came over the wire; an unknown number becomes the root (UNKNOWN)."""
    return _BY_KIND.get(kind, ServingError)(text)


class ProtocolError(Exception):
    """A peer sent bytes that are no message of ours. The peer is at fault: it is disconnected and logged."""
