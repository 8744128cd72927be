"""What a caller of the Python API may send beside tensors: no more than a client can, for it goes the same way."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from protocol.errors import InvalidArgument
from protocol.messages import ParameterValue

_INT64 = range(-(1 << 63), 1 << 63)


def parameter(name: Any, value: Any) -> tuple[str, ParameterValue]:
    """NumPy's integers and floats are numbers, too. Raises InvalidArgument."""
    check_text("the name of a parameter", name)
    if isinstance(value, str):
        check_text(f"parameter '{name}'", value)
        return name, value
    if isinstance(value, bool):
        return name, value
    if isinstance(value, Integral):
        if int(value) not in _INT64:
            raise InvalidArgument(f"parameter '{name}' does not fit 64 bits: {value}")
        return name, int(value)
    if isinstance(value, Real):
        return name, float(value)
    raise InvalidArgument(f"parameter '{name}' is to be a bool, int, float or str, not {type(value).__name__}")


def check_text(what: str, value: Any) -> None:
    """Raises InvalidArgument."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} is to be a str, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{what} is no Unicode: {error}") from None
