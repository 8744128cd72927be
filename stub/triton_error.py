"""``pb_utils.TritonError``, its codes, and ``pb_utils.TritonModelException``."""

from __future__ import annotations

from .arguments import incompatible, text_argument
from .pybind_enum import PybindEnum


class TritonModelException(Exception):
    """Raised by pb_utils for errors of use; a model may raise it too. Out of ``execute`` it is like any exception."""


class ErrorCode(PybindEnum):
    """The same numbers as protocol.errors.ErrorKind."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7


ErrorCode.__name__ = ErrorCode.__qualname__ = "__ErrorCode"  # the original's: repr gives <__ErrorCode.INTERNAL: 1>


class TritonError:
    """The error of one response; its message reaches the client unchanged."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_code", "_message")

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        if not isinstance(code, ErrorCode):
            raise incompatible("__init__", "TritonError(message: str, code: TritonError.__ErrorCode)", message, code)
        self._message = text_argument("__init__", message)
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> ErrorCode:
        return self._code


# Outside the class body, where the name would be mangled.
setattr(TritonError, "__ErrorCode", ErrorCode)
