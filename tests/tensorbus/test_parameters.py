"""Parameters of the Python API: what a client could send, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.errors import InvalidArgument
from tensorbus.parameters import check_text, parameter


@pytest.mark.parametrize("value", [True, False, 0, -(1 << 63), (1 << 63) - 1, 0.5, "", "é"])
def test_what_a_client_can_send_goes_as_it_is(value: Any) -> None:
    name, sent = parameter("p", value)

    assert (name, sent, type(sent)) == ("p", value, type(value))


@pytest.mark.parametrize(("value", "sent"), [(np.float32(0.5), 0.5), (np.int64(3), 3), (np.uint8(4), 4)])
def test_those_of_numpy_are_numbers(value: Any, sent: Any) -> None:
    _, plain = parameter("p", value)

    assert (plain, type(plain)) == (sent, type(sent))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "parameter 'p' is to be a bool, int, float or str, not NoneType"),
        (object(), "parameter 'p' is to be a bool, int, float or str, not object"),
        ([1], "parameter 'p' is to be a bool, int, float or str, not list"),
        (b"x", "parameter 'p' is to be a bool, int, float or str, not bytes"),
        (1 << 63, "parameter 'p' does not fit 64 bits: 9223372036854775808"),
        ("\ud800", "parameter 'p' is no Unicode"),
    ],
)
def test_anything_else_is_refused(value: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        parameter("p", value)


@pytest.mark.parametrize("name", [1, None, "\ud800"])
def test_so_is_a_name_that_is_no_text(name: Any) -> None:
    with pytest.raises(InvalidArgument, match="the name of a parameter is"):
        parameter(name, 1)


def test_an_id_is_text() -> None:
    check_text("request_id", "é")

    with pytest.raises(InvalidArgument, match="request_id is to be a str, not int"):
        check_text("request_id", 5)
