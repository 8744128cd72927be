"""All that ``tensorbus serve`` can be told, with its defaults, and how a command line becomes that."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, TypeVar

from protocol.messages import SMALL_NBYTES
from shm.segment import default_directory
from tensorbus.cloud_location import CloudSettings, cloud_settings
from tensorbus.command_line import Given, UsageError, arguments, bad_option, read
from tensorbus.flag_values import BackendSetting, CacheSetting, RateLimitResource, integer
from tensorbus.flags import FLAGS, Flag
from tensorbus.logs import LogSettings

__all__ = ["ServeSettings", "UsageError", "parse_serve", "settings_of", "usage", "usage_of"]


EVERY_MODEL = "*"  # of --load-model


@dataclass(frozen=True)
class ServeSettings:
    """A field is the flag of the same name; the last ones are what the command line leaves to be said."""

    id: str = "triton"
    exit_timeout_secs: int = 30

    log_verbose: int = 0
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_format: str = "default"
    log_file: str = ""
    escape_log_messages: bool = True  # TRITON_SERVER_ESCAPE_LOG_MESSAGES=0 in the environment

    delay_scheduler: int = 0  # TRITONSERVER_DELAY_SCHEDULER in the environment; for tests that need exact batches
    backlog_delay_scheduler: int = 0  # TRITONSERVER_BACKLOG_DELAY_SCHEDULER
    small_nbytes: int = SMALL_NBYTES  # TENSORBUS_SMALL_NBYTES: tensors of fewer bytes go with their messages
    # TENSORBUS_CACHE in the environment; for what is built once for models' environments
    cache_directory: str = field(default_factory=lambda: _cache_directory(os.environ))

    model_repository: tuple[str, ...] = ()  # in the order given, each once
    cloud: CloudSettings = field(default_factory=lambda: cloud_settings(os.environ))  # for those in object stores
    exit_on_error: bool = True
    disable_auto_complete_config: bool = False
    reload: bool = False
    strict_readiness: bool = True
    model_control_mode: str = "none"
    repository_poll_secs: int = 15  # in poll mode; 0: what is there at the start stays
    load_model: tuple[str, ...] = ()  # in explicit mode, those to begin with
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_config_name: str = ""
    model_namespacing: bool = False

    allow_http: bool = True
    http_address: str = "0.0.0.0"
    http_port: int = 8000
    http_max_input_size: int = 67108864
    http_header_forward_pattern: str = ""

    allow_grpc: bool = True
    grpc_address: str = "0.0.0.0"
    grpc_port: int = 8001
    grpc_header_forward_pattern: str = ""

    allow_metrics: bool = True
    metrics_address: str = ""  # "": http_address; parse_serve never leaves it so
    metrics_port: int = 8002
    allow_cpu_metrics: bool = True
    metrics_interval_ms: int = 2000

    rate_limit: str = "off"
    rate_limit_resource: tuple[RateLimitResource, ...] = ()

    max_queued_requests: int = 16384
    max_queued_bytes: int = field(default_factory=lambda: max(_shared_memory_nbytes() // 2, 1 << 30))
    max_unread_bytes: int = field(default_factory=lambda: min(_shared_memory_nbytes() // 16, 64 << 20))

    cache_config: tuple[CacheSetting, ...] = ()
    response_cache_byte_size: int = 0

    backend_directory: str = "/opt/tritonserver/backends"
    backend_config: tuple[BackendSetting, ...] = ()

    # Accepted without effect, but shown among the options.
    pinned_memory_pool_byte_size: int = 268435456
    min_supported_compute_capability: float = 6.0

    deprecations: tuple[str, ...] = ()  # lines for stderr
    ignored_flags: tuple[str, ...] = ()  # without dashes; each deserves a warning in the log

    @property
    def models_at_start(self) -> tuple[str, ...] | None:
        """None is all."""
        return None if self.model_control_mode != "explicit" or self.load_model == (EVERY_MODEL,) else self.load_model

    @property
    def namespaces(self) -> tuple[str, ...]:
        """One for each repository, if models of one name are told apart by theirs."""
        return self.model_repository if self.model_namespacing else ()

    def backend_values(self, backend: str) -> dict[str, str]:
        """The --backend-config values that concern a backend; its own win over those of every backend."""
        every = {setting.key: setting.value for setting in self.backend_config if not setting.backend}
        return every | {setting.key: setting.value for setting in self.backend_config if setting.backend == backend}

    @property
    def response_cache_nbytes(self) -> int:
        """0: there is none."""
        sizes = [int(setting.value) for setting in self.cache_config if setting.key == "size"]
        return sizes[-1] if sizes else self.response_cache_byte_size

    @property
    def shm_default_byte_size(self) -> int:
        """The first size of a shared memory segment (the Python backend's setting of that name)."""
        return int(self.backend_values("python").get("shm-default-byte-size", 1 << 20))

    def log_settings(self) -> LogSettings:
        return LogSettings(
            self.log_file, self.log_info, self.log_warning, self.log_error, self.log_verbose, self.log_format
        )


S = TypeVar("S", bound=ServeSettings)


def parse_serve(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> ServeSettings:
    """The settings of ``tensorbus serve <argv>``. Raises UsageError; its text is "" for --help."""
    return settings_of(ServeSettings, read(argv), environ)


def settings_of(kind: type[S], given: list[Given], environ: Mapping[str, str], **others: Any) -> S:
    """What is given, checked, as a ServeSettings or one of its kinds; ``others`` are fields that are no flags. Raises
    UsageError."""
    _check_combinations(given)
    _check_offered(given)
    settings = kind(
        **_fields(kind, given),
        **others,
        escape_log_messages=environ.get("TRITON_SERVER_ESCAPE_LOG_MESSAGES") != "0",
        delay_scheduler=_count(environ.get("TRITONSERVER_DELAY_SCHEDULER", "")),
        backlog_delay_scheduler=_count(environ.get("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", "")),
        small_nbytes=_count(environ.get("TENSORBUS_SMALL_NBYTES", str(SMALL_NBYTES))),
        cache_directory=_cache_directory(environ),
        cloud=cloud_settings(environ),
        deprecations=tuple(_deprecations(given)),
        ignored_flags=_once(one.flag.name for one in given if one.flag.ignored),
    )
    settings = dataclasses.replace(settings, metrics_address=settings.metrics_address or settings.http_address)
    _check_ports(settings)
    _check_cache(settings)
    _check_python_backend(settings)
    return settings


def from_values(values: Mapping[str, Any]) -> ServeSettings:
    """The same from Python: values by the names of flags, with "_" for "-"; lists for those that may be given several
    times. Raises TypeError for a name that is none, and UsageError."""
    fields = {name: value for name, value in values.items() if name in _NO_FLAGS}
    argv = [argument for name, value in values.items() if name not in fields for argument in arguments(name, value)]
    return dataclasses.replace(parse_serve(argv), **fields)


# Fields that the environment sets.
_NO_FLAGS = (
    "backlog_delay_scheduler",
    "cache_directory",
    "cloud",
    "delay_scheduler",
    "escape_log_messages",
    "small_nbytes",
)


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _cache_directory(environ: Mapping[str, str]) -> str:
    user_cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return os.path.abspath(environ.get("TENSORBUS_CACHE") or os.path.join(user_cache, "tensorbus"))


def _shared_memory_nbytes() -> int:
    """What there is of it, used or not."""
    try:
        found = os.statvfs(default_directory())
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


def _fields(kind: type[ServeSettings], given: list[Given]) -> dict[str, Any]:
    """Field values: the last of a flag wins, all of a repeatable one count."""
    values: dict[str, Any] = {}
    names = {field.name for field in dataclasses.fields(kind)} - set(_NO_FLAGS)
    for flag, _, value in given:
        name = {"model-store": "model_repository"}.get(flag.name, flag.name.replace("-", "_"))
        if name in names:
            values[name] = (*values.get(name, ()), value) if flag.repeatable else value
    for name in {"model_repository", "load_model"} & values.keys():
        values[name] = _once(values[name])
    strict = [one.value for one in given if one.flag.name == "strict-model-config"]
    if strict and strict[-1]:
        values["disable_auto_complete_config"] = True
    return values


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _deprecations(given: list[Given]) -> Iterator[str]:
    for flag, _, value in given:
        if flag.name == "strict-model-config":
            yield (
                "Warning: '--strict-model-config' has been deprecated! "
                "Please use '--disable-auto-complete-config' instead."
            )
        elif flag.name == "response-cache-byte-size":
            yield (
                "Warning: '--response-cache-byte-size' has been deprecated! This will default to the 'local' cache "
                "implementation with the provided byte size for its config. Please use '--cache-config' instead. "
                f"The equivalent --cache-config CLI args would be: '--cache-config=local,size={value}'"
            )
        elif flag.instead:
            yield (
                f"Warning: '--{flag.name}' has been deprecated and will be removed in future releases. "
                f"Please use '{flag.instead}' instead."
            )
    last = {one.flag.name: one.value for one in given}
    if "disable-auto-complete-config" in last and last.get("strict-model-config") is False:
        yield (
            "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of "
            "'--disable-auto-complete-config'!"
        )


# --- checks -------------------------------------------------------------------------------------------------------


def _check_combinations(given: list[Given]) -> None:
    last = {one.flag.name: one.value for one in given}
    if "load-model" in last and last.get("model-control-mode") != "explicit":
        raise UsageError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    at_start = {one.value for one in given if one.flag.name == "load-model"}
    if EVERY_MODEL in at_start and len(at_start) > 1:
        raise UsageError("Wildcard model name '*' must be the ONLY startup model if specified at all.")
    if "response-cache-byte-size" in last and "cache-config" in last:
        raise UsageError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other."
        )


def _check_offered(given: list[Given]) -> None:
    for flag, text, value in given:
        if flag.inert is not None and value not in flag.inert:
            raise bad_option(flag.name, f"--{flag.name}={text} asks for something that tensorbus does not offer yet.")


def _check_ports(settings: ServeSettings) -> None:
    listeners = [
        ("HTTP", settings.allow_http, settings.http_address, settings.http_port),
        ("GRPC", settings.allow_grpc, settings.grpc_address, settings.grpc_port),
        ("metrics", settings.allow_metrics, settings.metrics_address, settings.metrics_port),
    ]
    open_ones = [(name, address, port) for name, allowed, address, port in listeners if allowed and port]
    for (one, *place), (other, *other_place) in combinations(open_ones, 2):
        if place == other_place:
            raise UsageError(
                f"The server cannot listen to {one} requests and {other} requests "
                f"at the same address and port {place[0]}:{place[1]}"
            )


def _check_cache(settings: ServeSettings) -> None:
    names = {setting.cache for setting in settings.cache_config}
    if len(names) > 1:
        raise UsageError("found multiple cache configurations, but only a single cache is currently supported")
    if names - {"local"}:
        library = f"libtritoncache_{names.pop()}.so"
        raise UsageError(f"unable to find '{library}' for cache. The only cache is 'local'")
    sizes = [setting.value for setting in settings.cache_config if setting.key == "size"]
    if names and not sizes:
        raise UsageError("Failed to initialize LocalCache: config didn't contain a valid 'size' field.")
    for size in sizes:
        if not re.fullmatch("[0-9]{1,18}", size, re.ASCII) or not int(size):
            raise UsageError(f"Failed to initialize LocalCache: 'size' must be a number of bytes above 0. Got {size}")


# The Python backend's own limits and texts; the first text and its limit disagree in the original too.
_PYTHON_LIMITS = (
    ("shm-default-byte-size", 1 << 20, "shm-default-byte-size can't be smaller than 4 MiBs"),
    ("shm-growth-byte-size", 1, "shm-growth-byte-size can't be smaller than or equal to zero."),
    ("stub-timeout-seconds", 1, "stub-timeout-seconds can't be smaller than or equal to zero."),
    ("thread-pool-size", 1, "thread-pool-size can't be less than 1."),
    ("shm_message_queue_size", -(2**63), ""),
)


def _check_python_backend(settings: ServeSettings) -> None:
    # A value of every backend is not checked: it may be another backend's.
    values = {setting.key: setting.value for setting in settings.backend_config if setting.backend == "python"}
    for key, minimum, reason in _PYTHON_LIMITS:
        if key in values and _size(key, values[key]) < minimum:
            raise bad_option("backend-config", reason)


def _size(key: str, text: str) -> int:
    try:
        value: int = integer(-(2**63), 2**63 - 1)(text)
    except ValueError:
        raise bad_option("backend-config", f"invalid argument for python,{key}. Got {text}") from None
    return value


# --- usage --------------------------------------------------------------------------------------------------------


def usage() -> str:
    """What --help and every error show first."""
    return usage_of("serve", FLAGS, ServeSettings)


def usage_of(command: str, flags: Sequence[Flag], kind: type[ServeSettings]) -> str:
    """The same of a command that takes ``flags``, whose defaults are those of ``kind``."""
    lines = [f"Usage: tensorbus {command} [options]"]
    group = ""
    for flag in (flag for flag in flags if flag.help):
        if flag.group != group:
            group = flag.group
            lines += ["", f"{group}:"]
        lines.append(f"  --{flag.name}" + (f" <{flag.shape}>" if flag.shape else ""))
        lines.append(f"\t{flag.help}{_default(flag, kind)}")
    ignored = (flag for flag in flags if flag.ignored and not flag.instead)
    later = (flag for flag in flags if flag.inert is not None and not flag.help and not flag.instead)
    for title, some in (
        ("Accepted without effect:", ignored),
        ("Not offered yet, accepted only with a value that asks for nothing:", later),
        ("Deprecated:", (flag for flag in flags if flag.instead)),
    ):
        names = _names(some)
        lines += ["", title, *names] if names else []
    return "\n".join(lines) + "\n"


def _default(flag: Flag, kind: type[ServeSettings]) -> str:
    default = getattr(kind, flag.name.replace("-", "_"), None)
    if flag.read is None or default in (None, "", ()):
        return ""
    text = " ".join(default) if isinstance(default, tuple) else default
    return f" [{str(default).lower() if isinstance(default, bool) else text}]"


def _names(flags: Iterable[Flag]) -> list[str]:
    return [f"  --{flag.name}" for flag in flags]
