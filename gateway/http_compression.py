"""gzip and deflate bodies of infer requests and replies (``Content-Encoding``, ``Accept-Encoding``)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from protocol.errors import InvalidArgument, Unsupported

_WINDOW_BITS = {"gzip": 31, "deflate": 15}
_DETECT = 47  # gzip or zlib, whichever the body is: clients mix the names up


class UnsupportedEncoding(Unsupported):
    """The reply carries an ``Accept-Encoding`` header."""

    def __init__(self) -> None:
        super().__init__("Unsupported compression type")


def is_compressed(content_encoding: bytes) -> bool:
    """Raises UnsupportedEncoding."""
    if content_encoding == b"identity":
        return False
    if content_encoding not in (b"gzip", b"deflate"):
        raise UnsupportedEncoding
    return True


def inflate(body: bytes | memoryview, max_input_size: int) -> bytes:
    """Never makes more than ``max_input_size`` + 1 bytes. What follows the first stream is ignored."""
    if not body:
        raise InvalidArgument("nothing to be decompressed")
    inflater = zlib.decompressobj(_DETECT)
    try:
        data = inflater.decompress(body, max_input_size + 1)
    except zlib.error:
        raise InvalidArgument("unable to decompress the request body") from None
    if len(data) > max_input_size:
        raise InvalidArgument(
            f"Decompressed data size exceeds the maximum allowed value of {max_input_size} bytes. Use "
            "--http-max-input-size to increase the limit."
        )
    if not inflater.eof:
        raise InvalidArgument("unable to decompress the request body: it ends too early")
    return data


def deflate(buffers: Iterable[bytes | memoryview], encoding: str) -> bytes:
    deflater = zlib.compressobj(wbits=_WINDOW_BITS[encoding])
    return b"".join([*map(deflater.compress, buffers), deflater.flush()])


def choose_encoding(accept_encoding: bytes) -> str:
    """The highest weight wins, the first listed among equals; all but gzip and deflate mean identity."""
    best, best_weight = "identity", 0.0
    for item in accept_encoding.decode("latin-1").split(","):
        name, _, rest = item.partition(";")
        name = name.strip()
        if name == "identity" or name in _WINDOW_BITS:
            weight = _weight(rest)
            if weight > best_weight:
                best, best_weight = name, weight
    return best


def _weight(parameters: str) -> float:
    name, separator, value = parameters.split(";")[0].partition("=")
    if not separator or name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
