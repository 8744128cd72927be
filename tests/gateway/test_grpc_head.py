"""What the headers of a call say, and those that answer it."""

from __future__ import annotations

import hpack
import pytest

from gateway.grpc_head import (
    OK_TRAILERS,
    RESPONSE,
    GrpcError,
    http_refusal,
    read_head,
    trailers,
    trailers_only,
)
from protocol.errors import NotFound

CALL = ((b":method", b"POST"), (b":path", b"/a/B"), (b"content-type", b"application/grpc"))


def decoded(block: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in hpack.Decoder().decode(block)}


def test_a_call_is_read() -> None:
    head = read_head((*CALL, (b"grpc-encoding", b"gzip"), (b"triton_grpc_error", b"true")))
    assert (head.path, head.timeout_s, head.encoding, head.http_status) == ("/a/B", None, b"gzip", 0)
    assert ("triton_grpc_error", "true") in head.metadata


@pytest.mark.parametrize(
    "value, timeout_s",
    [
        (b"1S", 1),
        (b"2M", 120),
        (b"3H", 10800),
        (b"250m", 0.25),
        (b"10u", 1e-5),
        (b"10n", 1e-8),
        (b"0m", 0),
        (b"99999999H", 3e8),
        (b"", None),
        (b"5", None),
        (b"S", None),
        (b"-1S", None),
        (b"123456789S", None),
    ],
)
def test_timeouts_have_units(value: bytes, timeout_s: float | None) -> None:
    assert read_head((*CALL, (b"grpc-timeout", value))).timeout_s == pytest.approx(timeout_s)


@pytest.mark.parametrize(
    "value, status",
    [
        (b"application/grpc", 0),
        (b"application/grpc+proto", 0),
        (b"application/grpc;charset=utf-8", 0),
        (b"application/grpc-web", 415),
        (b"application/json", 415),
        (b"", 415),
    ],
)
def test_other_content_is_refused(value: bytes, status: int) -> None:
    head = read_head((*CALL[:2], (b"content-type", value)))
    assert head.http_status == status
    assert not status or decoded(http_refusal(status)) == {":status": str(status)}


def test_only_post_is_a_call() -> None:
    assert read_head(((b":method", b"GET"), *CALL[1:])).http_status == 405


def test_binary_metadata_are_decoded() -> None:
    head = read_head((*CALL, (b"a-bin", b"AAEC"), (b"b-bin", b"AA"), (b"c-bin", b"***")))
    assert head.metadata[-3:] == (("a-bin", b"\0\1\2"), ("b-bin", b"\0"), ("c-bin", b"***"))


def test_statuses_are_spelled_out() -> None:
    assert decoded(RESPONSE) == {":status": "200", "content-type": "application/grpc"}
    assert decoded(OK_TRAILERS) == {"grpc-status": "0"}
    assert decoded(trailers(NotFound("100% übel"))) == {"grpc-status": "5", "grpc-message": "100%25 %C3%BCbel"}
    assert decoded(trailers_only(None)) == {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}
    unknown = decoded(trailers(GrpcError(12, "what?")))
    assert unknown["grpc-accept-encoding"] == "identity, deflate, gzip"


def test_a_long_text_is_cut_to_what_clients_take() -> None:
    assert len(trailers_only(NotFound("\n" * 100_000))) < 16384
