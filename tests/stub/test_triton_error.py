from __future__ import annotations

import pytest
import triton_python_backend_utils as pb_utils
from _tensorbus_app.stub.shared import errors


def test_the_default_code_is_internal() -> None:
    error = pb_utils.TritonError("bad")
    assert (error.message(), error.code()) == ("bad", pb_utils.TritonError.INTERNAL)


def test_a_code_looks_like_the_originals_and_equals_its_number() -> None:
    code = pb_utils.TritonError("bad", pb_utils.TritonError.NOT_FOUND).code()
    assert repr(code) == "<__ErrorCode.NOT_FOUND: 2>"
    assert (code, int(code), hash(code)) == (2, 2, hash(2))
    assert type(code) is getattr(pb_utils.TritonError, "__ErrorCode")


def test_the_codes_are_the_kinds_of_the_protocol() -> None:
    for kind in errors.ErrorKind:
        assert int(getattr(pb_utils.TritonError, kind.name)) == kind


@pytest.mark.parametrize("arguments", [(), (None,), (3,), ("bad", 1), ("bad", None)])
def test_other_arguments_are_type_errors(arguments: tuple) -> None:
    with pytest.raises(TypeError):
        pb_utils.TritonError(*arguments)


def test_the_models_exception_is_an_ordinary_one() -> None:
    with pytest.raises(pb_utils.TritonModelException, match=r"^text$"):
        raise pb_utils.TritonModelException("text")
