"""The argument rules of the original's C++ module (pybind11), which models and their tests rely on.

``str`` parameters take bytes too, integer parameters anything with ``__index__``, list parameters any sequence but str;
what does not fit is a TypeError that begins as pybind11's does.
"""

from __future__ import annotations

import ctypes
from operator import index
from typing import Any, List, Mapping


def incompatible(function: str, signature: str, *arguments: object) -> TypeError:
    """The TypeError for arguments that fit no signature of ``function``."""
    what = "constructor" if function == "__init__" else "function"
    return TypeError(
        "{}(): incompatible {} arguments. The following argument types are supported:\n"
        "    1. {}\n\nInvoked with: {}".format(function, what, signature, ", ".join(map(_short_repr, arguments)))
    )


def not_castable() -> RuntimeError:
    """For a value that an ``object`` parameter took, and that is then not what it has to be."""
    return RuntimeError(
        "Unable to cast Python instance to C++ type (#define PYBIND11_DETAILED_ERROR_MESSAGES or compile in debug mode "
        "for details)"
    )


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."


def text_argument(function: str, value: Any) -> str:
    """A str parameter. bytes and bytearray are decoded; subclasses (np.str_, np.bytes_) become plain str."""
    if type(value) is str and value.isascii():
        return value
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode()
    if not isinstance(value, str):
        raise incompatible(function, "str", value)
    try:
        return value.encode().decode()
    except UnicodeEncodeError:  # a lone surrogate: no such text can go over the wire
        raise incompatible(function, "str", value) from None


def int_argument(function: str, value: Any, low: int, high: int) -> int:
    """An integer parameter within [low, high]. float and str are refused, bool and np.int32 taken."""
    try:
        number = index(value)
    except TypeError:
        raise incompatible(function, "int", value) from None
    if not low <= number <= high:
        raise incompatible(function, "int in [{}, {}]".format(low, high), value)
    return number


def as_double(value: Any) -> float:
    """Takes what C takes for a double: float, int, bool, np.float32; not str. Raises TypeError and OverflowError."""
    return value if type(value) is float else ctypes.c_double(value).value


def list_argument(function: str, value: Any) -> List[Any]:
    """A list parameter: any sequence (list, tuple, ndarray), not str, bytes, set, dict or a generator."""
    if type(value) is list:
        return value[:]
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(type(value), "__getitem__"):
        raise incompatible(function, "List", value)
    try:
        return list(value)
    except TypeError:  # a 0-d array
        raise incompatible(function, "List", value) from None
