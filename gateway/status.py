"""Error kinds to wire codes: the only place that knows HTTP statuses and gRPC codes."""

from __future__ import annotations

from protocol.errors import ErrorKind

HTTP_STATUS: dict[ErrorKind, int] = {
    ErrorKind.UNKNOWN: 400,
    ErrorKind.INTERNAL: 500,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.INVALID_ARG: 400,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.UNSUPPORTED: 501,
    ErrorKind.ALREADY_EXISTS: 400,
    ErrorKind.CANCELLED: 400,
}

GRPC_CODE: dict[ErrorKind, int] = {
    ErrorKind.UNKNOWN: 2,
    ErrorKind.INTERNAL: 13,
    ErrorKind.NOT_FOUND: 5,
    ErrorKind.INVALID_ARG: 3,
    ErrorKind.UNAVAILABLE: 14,
    ErrorKind.UNSUPPORTED: 12,
    ErrorKind.ALREADY_EXISTS: 6,
    ErrorKind.CANCELLED: 1,
}
