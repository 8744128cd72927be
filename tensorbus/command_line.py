"""Command lines of flags, read and written. Texts are Triton's where scripts look for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tensorbus.flag_values import BackendSetting
from tensorbus.flags import BY_NAME, FLAGS, Flag


class UsageError(Exception):
    """The command line is wrong; the text is the reason, "" for --help."""


class Given(NamedTuple):
    flag: Flag
    text: str
    value: Any


def read(argv: Sequence[str], flags: Iterable[Flag] = FLAGS) -> list[Given]:
    """Those of ``flags`` that are given, in that order: ``--flag=value`` or ``--flag value``, names in full. Raises
    UsageError."""
    by_name = {flag.name: flag for flag in flags}
    return [_given(flag, text) for flag, text in _split(argv, by_name)]


def _split(argv: Sequence[str], by_name: Mapping[str, Flag]) -> Iterator[tuple[Flag, str]]:
    arguments = iter(argv)
    for argument in arguments:
        if not argument.startswith("--"):
            raise UsageError(f"Unexpected argument: {argument}")
        name, equals, text = argument[2:].partition("=")
        flag = by_name.get(name)
        if flag is None:
            raise UsageError(f"unrecognized option '{argument}'")
        if flag.read is None:
            if equals:
                raise UsageError(f"option '--{name}' doesn't allow an argument")
        elif not equals:
            following = next(arguments, None)
            if following is None:
                raise UsageError(f"option '--{name}' requires an argument")
            text = following
        if name == "help":
            raise UsageError("")
        yield flag, text


def _given(flag: Flag, text: str) -> Given:
    try:
        return Given(flag, text, True if flag.read is None else flag.read(text))
    except ValueError as error:
        raise bad_option(flag.name, str(error)) from None


def bad_option(name: str, reason: str) -> UsageError:
    return UsageError(f'Bad option: "--{name}".\n{reason}')


def arguments(name: str, value: Any) -> list[str]:
    """What sets the flag of that name, with "_" for "-", to a value of Python's; None leaves it as it is.
    Raises TypeError if there is no such flag."""
    flag = BY_NAME.get(name.replace("_", "-"))
    if flag is None or name == "help":
        raise TypeError(f"there is no setting '{name}'")
    if flag.read is None:
        return [f"--{flag.name}"] if value else []
    if value is None:
        return []
    values = value if isinstance(value, (list, tuple)) and not isinstance(value, BackendSetting) else [value]
    return [f"--{flag.name}={_text(one)}" for one in values]


def _text(value: Any) -> str:
    if isinstance(value, BackendSetting):
        return f"{value.backend},{value.key}={value.value}" if value.backend else f"{value.key}={value.value}"
    return str(value).lower() if isinstance(value, bool) else str(value)
