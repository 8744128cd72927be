"""What stands around the body of an answer: status line, headers, chunks. No socket.

A head is made in steps: ``begin_head`` or one of those that are ready-made, further headers, ``end_head``.
"""

from __future__ import annotations

from functools import lru_cache

_REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Not Allowed",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
}
_STATUS_LINES = {status: b"HTTP/1.1 %d %b\r\nContent-Type: " % (status, reason) for status, reason in _REASONS.items()}
JSON_HEAD = _STATUS_LINES[200] + b"application/json\r\n"
CHUNKED, _LAST_CHUNK = b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def begin_head(status: int, content_type: bytes) -> bytes:
    return _STATUS_LINES[status] + content_type + b"\r\n"


# Sizes recur from reply to reply.
@lru_cache(maxsize=1024)
def binary_head(json_nbytes: int) -> bytes:
    """Of a body that is so much JSON and then binary tensors."""
    return _STATUS_LINES[200] + b"application/octet-stream\r\nInference-Header-Content-Length: %d\r\n" % json_nbytes


@lru_cache(maxsize=1024)
def content_length(nbytes: int) -> bytes:
    return b"Content-Length: %d\r\n" % nbytes


def end_head(head: bytes, http_1_0: bool, goes_on: bool) -> bytes:
    """``goes_on``: another request may follow on the connection."""
    if http_1_0:
        head = head.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    if not goes_on:
        return head + b"Connection: close\r\n\r\n"
    return head + (b"Connection: keep-alive\r\n\r\n" if http_1_0 else b"\r\n")


def chunk(data: bytes, last: bool) -> bytes:
    """Without data none, since an empty one is the last."""
    return (b"%x\r\n%b\r\n" % (len(data), data) if data else b"") + (_LAST_CHUNK if last else b"")
