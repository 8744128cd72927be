"""gzip and deflate bodies of infer requests and replies (``Content-Encoding``, ``Accept-Encoding``).

What takes no more than a few milliseconds is done where it is, the rest in a thread, while others are served: 64 MiB of
zeros, which come in 64 KiB, take a few tenths of a second, and to compress as much takes seconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from protocol.errors import InvalidArgument, Unsupported

_WINDOW_BITS = {"gzip": 31, "deflate": 15}
AT_ONCE_NBYTES = 256 << 10  # of what is not compressed
_PIECE_NBYTES = 64 << 10  # of what is: the rest of a piece is copied for each step
_STEP_NBYTES = 1 << 20
_DETECT = 47  # gzip or zlib, whichever the body is: clients mix the names up


Buffer = bytes | memoryview


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


def inflate_little(body: Buffer, max_input_size: int) -> bytes | None:
    """``inflate``, if that makes little; else None."""
    if len(body) > AT_ONCE_NBYTES:
        return None
    inflater = zlib.decompressobj(_DETECT)
    data = _step(inflater, body, AT_ONCE_NBYTES)
    return data if inflater.eof and len(data) <= max_input_size else None


def inflate(body: Buffer, max_input_size: int) -> bytearray:
    """Never makes more than ``max_input_size`` + 1 bytes. What follows the first stream is ignored. In any thread."""
    if not body:
        raise InvalidArgument("nothing to be decompressed")
    inflater = zlib.decompressobj(_DETECT)
    data = bytearray()
    for start in range(0, len(body), _PIECE_NBYTES):
        piece: Buffer = body[start : start + _PIECE_NBYTES]
        while piece and not inflater.eof:
            data += _step(inflater, piece, min(_STEP_NBYTES, max_input_size + 1 - len(data)))
            if len(data) > max_input_size:
                raise InvalidArgument(
                    f"Decompressed data size exceeds the maximum allowed value of {max_input_size} bytes. Use "
                    "--http-max-input-size to increase the limit."
                )
            piece = inflater.unconsumed_tail
    if not inflater.eof:
        raise InvalidArgument("unable to decompress the request body: it ends too early")
    return data


def _step(inflater: zlib._Decompress, data: Buffer, nbytes: int) -> bytes:
    try:
        return inflater.decompress(data, nbytes)
    except zlib.error:
        raise InvalidArgument("unable to decompress the request body") from None


def deflate(buffers: Iterable[Buffer], encoding: str) -> bytes:
    """In any thread."""
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
