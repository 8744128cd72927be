"""What the texts of flags' values mean. Each reader raises ValueError with the reason, in Triton's words where scripts
look for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

Reader = Callable[[str], Any]


class BackendSetting(NamedTuple):
    """``--backend-config=<backend>,<key>=<value>``; backend "" is every backend."""

    backend: str
    key: str
    value: str


class CacheSetting(NamedTuple):
    """``--cache-config=<cache>,<key>=<value>``."""

    cache: str
    key: str
    value: str


class RateLimitResource(NamedTuple):
    name: str
    available: int
    device: int | None


def boolean(text: str) -> bool:
    value = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}.get(text.lower())
    if value is None:
        raise ValueError(f"invalid value for bool option: {text}")
    return value


def integer(minimum: int = -(2**31), maximum: int = 2**31 - 1) -> Reader:
    def read(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]+", text):
            raise ValueError(f"Invalid option value. Got {text}")
        if len(text) > 20 or not minimum <= int(text) <= maximum:
            raise ValueError(f"Provided option value is out of bound. Got {text}")
        return int(text)

    return read


def verbosity(text: str) -> int:
    level = {"true": 1, "false": 0}.get(text.lower())
    return max(0, integer()(text)) if level is None else level


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"Invalid option value. Got {text}") from None


def above_zero(flag: str, maximum: int) -> Reader:
    def read(text: str) -> int:
        value: int = integer(-(2**63), maximum)(text)
        if value <= 0:
            raise ValueError(f"Error: --{flag} must be greater than 0.")
        return value

    return read


def one_of(flag: str, *values: str) -> Reader:
    """One of ``values``, in any case when they are lower case themselves."""

    def read(text: str) -> str:
        for value in values:
            if text == value or text.lower() == value:
                return value
        raise ValueError(f"invalid argument for --{flag}")

    return read


def grpc_threads(text: str) -> int:
    value: int = integer()(text)
    if not 2 <= value <= 128:
        raise ValueError("invalid argument for --grpc_infer_thread_count. Must be in the range 2 to 128.")
    return value


def name_of_config(text: str) -> str:
    if not text:
        raise ValueError("Error: empty argument for --model-config-name")
    return text


def pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"invalid regular expression '{text}': {error}") from None
    return text


def _scoped(text: str) -> tuple[str | None, str, str]:
    """``scope,key=value`` or ``key=value`` (scope None); a part that is missing is ""."""
    left, _, value = text.partition("=")
    scope, comma, key = left.partition(",")
    return (scope, key, value) if comma else (None, left, value)


def backend_setting(text: str) -> BackendSetting:
    backend, key, value = _scoped(text)
    if backend == "":
        raise ValueError(
            "No backend specified. --backend-config option format is "
            f"<backend name>,<setting>=<value> or <setting>=<value>. Got {text}"
        )
    if not (key and value):
        raise ValueError(f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}")
    return BackendSetting(backend or "", key, value)


def cache_setting(text: str) -> CacheSetting:
    cache, key, value = _scoped(text)
    if not cache:
        raise ValueError(
            f"No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got {text}"
        )
    if not (key and value):
        raise ValueError(f"--cache-config option format is '<cache name>,<setting>=<value>'. Got {text}")
    return CacheSetting(cache, key, value)


def rate_limit_resource(text: str) -> RateLimitResource:
    name, *numbers = text.lower().split(":")
    if not 1 <= len(numbers) <= 2:
        raise ValueError(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text.lower()}"
        )
    count, *device = map(integer(), numbers)
    return RateLimitResource(name, count, device[0] if device else None)


def metrics_setting(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    if not key or not value or "," in key:
        raise ValueError(f"--metrics-config option format is <setting>=<value>. Got {text}")
    return key, value.lower()


def starts_tracing(text: str) -> bool:
    """Whether a ``--trace-config`` turns tracing on: only ``level`` does."""
    mode, key, value = _scoped(text)
    if mode == "" or not (key and value):
        raise ValueError(f"--trace-config option format is '<trace mode>,<setting>=<value>'. Got {text}")
    return key == "level" and traces_level(value)


def traces_level(text: str) -> bool:
    if text.lower() in ("off", "false"):
        return False
    if text.lower() in ("on", "true", "min", "max", "timestamps", "tensors"):
        return True
    raise ValueError(f"invalid value for trace level option: {text}")
