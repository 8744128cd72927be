from __future__ import annotations

import gzip
import zlib

import pytest

from gateway.http_compression import UnsupportedEncoding, choose_encoding, deflate, inflate, is_compressed
from protocol.errors import InvalidArgument


@pytest.mark.parametrize("packed", [gzip.compress(b"body"), zlib.compress(b"body"), gzip.compress(b"body") + b"more"])
def test_gzip_and_deflate_are_told_apart_by_their_content(packed: bytes) -> None:
    assert inflate(packed, 100) == b"body"


def test_a_bomb_is_not_inflated() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    with pytest.raises(InvalidArgument) as caught:
        inflate(bomb, 1000)
    assert str(caught.value) == (
        "Decompressed data size exceeds the maximum allowed value of 1000 bytes. Use --http-max-input-size to increase "
        "the limit."
    )


def test_exactly_the_limit_is_allowed() -> None:
    assert len(inflate(zlib.compress(bytes(1000)), 1000)) == 1000


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (b"", "nothing to be decompressed"),
        (b"{}", "unable to decompress the request body"),
        (gzip.compress(b"body")[:-9], "unable to decompress the request body: it ends too early"),
    ],
)
def test_what_cannot_be_inflated_is_refused(packed: bytes, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        inflate(packed, 100)
    assert str(caught.value) == text


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_replies_are_one_stream_over_all_buffers(encoding: str) -> None:
    packed = deflate([b"{}", memoryview(b"tensor")], encoding)
    assert (gzip if encoding == "gzip" else zlib).decompress(packed) == b"{}tensor"


def test_only_identity_gzip_and_deflate_are_understood() -> None:
    assert is_compressed(b"gzip") and is_compressed(b"deflate") and not is_compressed(b"identity")
    for encoding in (b"br", b"GZIP", b"gzip, deflate", b""):
        with pytest.raises(UnsupportedEncoding):
            is_compressed(encoding)


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        (b"gzip", "gzip"),
        (b"gzip, deflate", "gzip"),
        (b"deflate, gzip", "deflate"),
        (b"gzip;q=0.5,deflate", "deflate"),
        (b"gzip; q=0.5 , deflate;q=0.7", "deflate"),
        (b"identity, gzip", "identity"),
        (b"identity;q=0.5, gzip;q=0.4", "identity"),
        (b"br;q=1,gzip;q=0.1", "gzip"),
        (b"gzip;q=1.0;x", "gzip"),
        (b"gzip;q=0", "identity"),
        (b"gzip;q=abc", "identity"),
        (b"*", "identity"),
        (b"GZIP", "identity"),
        (b"", "identity"),
    ],
)
def test_the_heaviest_known_encoding_is_chosen(accepted: bytes, encoding: str) -> None:
    assert choose_encoding(accepted) == encoding
