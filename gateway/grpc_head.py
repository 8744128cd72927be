"""The heads of gRPC calls over HTTP/2: what a request's headers say, and the blocks that answer it.

request    :method POST, :path, content-type, te, grpc-timeout?, grpc-encoding?, metadata ...
response   :status 200, content-type ... DATA ... grpc-status, grpc-message?
refusal    :status 200, content-type, grpc-status, grpc-message?      (no DATA: "Trailers-Only")
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from functools import lru_cache
from typing import NamedTuple

from gateway.http2.headers import Headers, encode
from gateway.status import GRPC_CODE
from protocol.errors import InternalError, ServingError

OK, UNIMPLEMENTED, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED = 0, 12, 8, 4
IDENTITY = b"identity"
_ACCEPTED = b"identity, deflate, gzip"
_CONTENT_TYPE = b"application/grpc"
_UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LONGEST_TIMEOUT_S = 3e8  # ten years; the loop's timers have an end
# Clients take 16 KiB of trailers by default, in which every byte but plain ASCII counts three times.
_LONGEST_DETAILS = 4000
_PLAIN = frozenset(range(0x20, 0x7F)) - {0x25}

Metadata = tuple[tuple[str, "str | bytes"], ...]


class Head(NamedTuple):
    """What a call's first headers say. ``http_status``: none of gRPC's requests, to be answered so; 0 for a call."""

    path: str
    timeout_s: float | None
    encoding: bytes
    metadata: Metadata
    http_status: int


class GrpcError(Exception):
    """A status that no ServingError stands for: what only the transport of gRPC knows."""

    def __init__(self, code: int, details: str) -> None:
        super().__init__(details)
        self.code = code


def read_head(headers: Headers) -> Head:
    """Never raises: what makes no sense is ignored, as grpcio does."""
    values = dict(headers)
    status = 0
    if values.get(b":method") != b"POST":
        status = 405
    elif not _is_grpc(values.get(b"content-type", b"")):
        status = 415
    return Head(
        values.get(b":path", b"").decode("latin-1"),
        _timeout_s(values.get(b"grpc-timeout", b"")),
        values.get(b"grpc-encoding", IDENTITY),
        tuple(_metadata(name, value) for name, value in headers if name[:1] != b":"),
        status,
    )


def _is_grpc(content_type: bytes) -> bool:
    return content_type.startswith(_CONTENT_TYPE) and content_type[len(_CONTENT_TYPE) :][:1] in (b"", b"+", b";")


def _timeout_s(value: bytes) -> float | None:
    digits, unit = value[:-1], _UNITS_S.get(value[-1:])
    if unit is None or not digits.isdigit() or len(digits) > 8:
        return None
    return min(int(digits) * unit, _LONGEST_TIMEOUT_S)


def _metadata(name: bytes, value: bytes) -> tuple[str, str | bytes]:
    key = name.decode("latin-1")
    if name.endswith(b"-bin"):
        try:
            return key, b64decode(value + b"=" * (-len(value) % 4), validate=True)
        except binascii.Error:
            return key, value
    return key, value.decode("latin-1")


# --- responses ----------------------------------------------------------------------------------------------------

_STATUS_200 = b"\x88"  # of HPACK's static table
RESPONSE = _STATUS_200 + encode(((b"content-type", _CONTENT_TYPE),))
OK_TRAILERS = encode(((b"grpc-status", b"0"),))


@lru_cache(64)
def http_refusal(status: int) -> bytes:
    """The whole answer to a request that is none of gRPC's."""
    return encode(((b":status", b"%d" % status),))


def trailers(error: BaseException | None) -> bytes:
    """The block that ends a call."""
    if error is None:
        return OK_TRAILERS
    code, details = _status(error)
    headers = [(b"grpc-status", b"%d" % code)]
    if details:
        headers.append((b"grpc-message", _percent_encoded(details)))
    if code == UNIMPLEMENTED and isinstance(error, GrpcError):
        headers.append((b"grpc-accept-encoding", _ACCEPTED))
    return encode(headers)


def trailers_only(error: BaseException | None) -> bytes:
    """The block that answers and ends a call which has sent nothing."""
    return RESPONSE + trailers(error)


def _status(error: BaseException) -> tuple[int, str]:
    if isinstance(error, GrpcError):
        return error.code, str(error)
    kind = error.kind if isinstance(error, ServingError) else InternalError.kind
    return GRPC_CODE[kind], str(error)[:_LONGEST_DETAILS]


def _percent_encoded(text: str) -> bytes:
    """What is not plain ASCII as %XX of its UTF-8."""
    data = text.encode(errors="replace")
    return b"".join(b"%c" % byte if byte in _PLAIN else b"%%%02X" % byte for byte in data)
