import pytest

from protocol.errors import KIND_TEXT, ErrorKind, NotFound, ServingError, Unavailable, error_of


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_every_kind_has_an_error_and_a_text(kind):
    error = error_of(kind, "a text")
    assert error.kind is kind
    assert str(error) == "a text"
    assert error.status_text() == f"{KIND_TEXT[kind]}: a text"


def test_a_plain_number_from_the_wire_finds_its_error():
    assert type(error_of(4, "")) is Unavailable


@pytest.mark.parametrize("number", [-1, 8, 2**63])
def test_a_number_that_is_no_kind_becomes_the_root(number):
    error = error_of(number, "a text")
    assert type(error) is ServingError
    assert error.kind is ErrorKind.UNKNOWN


def test_errors_read_as_the_original_prints_them():
    assert NotFound("no model 'x'").status_text() == "Not found: no model 'x'"
