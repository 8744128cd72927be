"""Model versions as text."""

from __future__ import annotations

import pytest

from protocol.errors import InvalidArgument
from protocol.versions import parse_version


@pytest.mark.parametrize(("text", "version"), [("", -1), ("1", 1), (" +12x", 12), ("007", 7), ("0", 0)])
def test_a_version_is_read_like_stol(text: str, version: int) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["x", "9223372036854775808", " ", "9" * 400])
def test_a_version_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_version(text)
    assert str(caught.value) == (
        f"failed to get model version from specified version string '{text}' (details: stol), "
        "version should be an integral value > 0"
    )


def test_a_negative_version_is_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_version("-1")
    assert str(caught.value) == "invalid model version specified '-1' , version should be an integral value > 0"
