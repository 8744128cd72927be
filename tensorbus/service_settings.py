"""All that the services of a scaled stack can be told, with its defaults: ``tensorbus broker``, ``gateway``, ``stub``.

Each takes the flags of ``tensorbus serve`` that concern it and some of its own. A flag may also be given as a variable
of the environment, TENSORBUS_HTTP_PORT for --http-port, and in a file of TOML, by its name; the command line wins over
the environment, and that over the file.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tomllib

from tensorbus.command_line import Given, UsageError, bad_option, read
from tensorbus.flag_values import boolean, integer
from tensorbus.flags import Flag, flag_of, flags_of
from tensorbus.settings import ServeSettings, settings_of, usage_of
from tensorbus.tcp_address import tcp_address

if TYPE_CHECKING:
    from tensorbus.curve import Trust

_PREFIX = "TENSORBUS_"


@dataclass(frozen=True)
class BrokerServiceSettings(ServeSettings):
    """Of ``tensorbus broker``. A field is the flag of the same name; of those of ServeSettings that are not flags of
    this service only the defaults matter."""

    allow_http: bool = False
    allow_grpc: bool = False
    metrics_address: str = "0.0.0.0"

    bind: str = "tcp://127.0.0.1:8003"
    cluster_id: str = "tensorbus"
    trust: Trust | None = None  # --curve-key and --curve-authorized


@dataclass(frozen=True)
class GatewaySettings(ServeSettings):
    """Of ``tensorbus gateway``."""

    broker: str = "tcp://127.0.0.1:8003"
    cluster_id: str = "tensorbus"
    broker_wait_secs: int = 10
    broker_timeout_secs: int = 10
    exit_delay_secs: int = 0
    trust: Trust | None = None  # --curve-key and --curve-broker-key


@dataclass(frozen=True)
class StubHostSettings(ServeSettings):
    """Of ``tensorbus stub``."""

    allow_http: bool = False
    allow_grpc: bool = False
    metrics_address: str = "0.0.0.0"

    broker: str = "tcp://127.0.0.1:8003"
    cluster_id: str = "tensorbus"
    model: tuple[str, ...] = ("*",)
    host_name: str = field(default_factory=socket.gethostname)
    trust: Trust | None = None  # --curve-key and --curve-broker-key


# --- the tables ---------------------------------------------------------------------------------------------------

_STACK, _TRUST = "Stack", "Trust"


def _address(text: str) -> str:
    return str(tcp_address(text))


_CLUSTER = Flag("cluster-id", _STACK, str, "only services of one cluster join each other", "string")
_BROKER = Flag("broker", _STACK, _address, "where the broker listens", "tcp://host:port")
_KEY = Flag("curve-key", _TRUST, str, "file of the secret key of this service (tensorbus keys)", "path")
_BROKER_KEY = Flag("curve-broker-key", _TRUST, str, "file of the public key of the broker", "path")
_CONFIG_FILE = Flag("config-file", _STACK, str, "TOML file of further settings, by the names of flags", "path")

_NOT_OF_A_BROKER = ("exit-on-error",)  # nothing is loaded yet when it has started

_EVERY = (*map(flag_of, ("help", "exit-timeout-secs")), *flags_of("Logging"))
_METRICS = tuple(
    flag._replace(help="address to listen on") if flag.name == "metrics-address" else flag
    for flag in flags_of("Metrics")
)

FLAGS_OF: dict[type[ServeSettings], tuple[Flag, ...]] = {
    BrokerServiceSettings: (
        *_EVERY,
        Flag(
            "bind", _STACK, _address, "where services are listened for; port 0 takes a free one", "tcp://address:port"
        ),
        _CLUSTER,
        _CONFIG_FILE,
        _KEY,
        Flag(
            "curve-authorized",
            _TRUST,
            str,
            "file of the public key of the services that may join, or directory of such files, *.pub; it is read "
            "whenever one joins",
            "path",
        ),
        *(flag for flag in flags_of("Model Repository") if flag.name not in _NOT_OF_A_BROKER),
        *_METRICS,
        *flags_of("Backend", "Repository Agent", "Response Cache", "Rate Limiter"),
        *map(flag_of, ("max-queued-requests", "max-unread-bytes", "strict-model-config", "response-cache-byte-size")),
    ),
    GatewaySettings: (
        *map(flag_of, ("help", "id", "exit-timeout-secs")),
        *flags_of("Logging"),
        _BROKER,
        _CLUSTER,
        Flag(
            "broker-wait-secs",
            _STACK,
            integer(0),
            "how long new requests wait for a broker that is lost, before they are refused until there is one",
            "seconds",
        ),
        Flag(
            "broker-timeout-secs",
            _STACK,
            integer(0),
            "how long requests are kept whose answer the broker owes while it is away",
            "seconds",
        ),
        Flag(
            "exit-delay-secs",
            _STACK,
            integer(0),
            "how long requests are still taken after SIGTERM, by a gateway that says that it is not ready, so that a "
            "balancer sends them elsewhere",
            "seconds",
        ),
        _CONFIG_FILE,
        _KEY,
        _BROKER_KEY,
        *flags_of("HTTP", "GRPC", "Sagemaker", "Vertex", "Metrics", "Tracing", "Shared Memory"),
        *map(flag_of, ("backend-config", "max-queued-bytes")),
        *(flag for flag in flags_of("DEPRECATED") if flag.name.startswith("trace-")),
    ),
    StubHostSettings: (
        *_EVERY,
        _BROKER,
        _CLUSTER,
        Flag("host-name", _STACK, str, "name of this host in logs; that of the system unless given", "string"),
        _CONFIG_FILE,
        _KEY,
        _BROKER_KEY,
        Flag(
            "model",
            "Models",
            str,
            "models that run here, with * and ? as in file names; may be given several times",
            "pattern",
            repeatable=True,
        ),
        Flag(
            "model-repository",
            "Models",
            str,
            "where a repository of the broker's lies on this host; given once for each of its, in the same order; the "
            "same paths unless given",
            "path",
            repeatable=True,
        ),
        *_METRICS,
        flag_of("backend-directory"),
        *flags_of("Memory/Device Management"),
    ),
}
COMMANDS: dict[str, type[ServeSettings]] = {
    "broker": BrokerServiceSettings,
    "gateway": GatewaySettings,
    "stub": StubHostSettings,
}


# --- reading them -------------------------------------------------------------------------------------------------


def usage(command: str) -> str:
    """What --help and every error show first."""
    kind = COMMANDS[command]
    return usage_of(command, FLAGS_OF[kind], kind)


def parse(command: str, argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> ServeSettings:
    """The settings of ``tensorbus <command> <argv>``, of the kind in COMMANDS. Raises UsageError; its text is "" for
    --help."""
    kind = COMMANDS[command]
    given = _with_defaults_of(read(argv, FLAGS_OF[kind]), _in_environment(FLAGS_OF[kind], environ))
    files = [one.value for one in given if one.flag.name == _CONFIG_FILE.name]
    if files:
        given = _with_defaults_of(given, _in_file(command, FLAGS_OF[kind], files[-1]))
    last = {one.flag.name: one.value for one in given}
    if command == "broker":
        trust = _broker_trust(last)
        _check_bind(last.get("bind", BrokerServiceSettings.bind), trust)
    else:
        trust = _service_trust(last)
    return settings_of(kind, given, environ, trust=trust)


def _with_defaults_of(given: list[Given], others: Iterator[Given]) -> list[Given]:
    """``given``, and of ``others`` what is not given there."""
    names = {one.flag.name for one in given}
    return [*(one for one in others if one.flag.name not in names), *given]


def _in_environment(flags: Sequence[Flag], environ: Mapping[str, str]) -> Iterator[Given]:
    """Several values of one flag have white space between them. Other variables may be those of other programs."""
    for flag in flags:
        variable = _PREFIX + flag.name.upper().replace("-", "_")
        text = environ.get(variable)
        if text is not None and flag.name != "help":
            for one in text.split() if flag.repeatable else [text]:
                yield _read(flag, one, variable)


def _in_file(command: str, flags: Sequence[Flag], path: str) -> Iterator[Given]:
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise UsageError(f"cannot read the config file {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"the config file {path} is not TOML: {error}") from None
    by_name = {flag.name: flag for flag in flags if flag.name not in ("help", _CONFIG_FILE.name)}
    for name, value in values.items():
        if name not in by_name:
            raise UsageError(f"'{name}' in {path} is no setting of tensorbus {command}")
        yield from _in_toml(by_name[name], value, f"'{name}' in {path}")


def _in_toml(flag: Flag, value: Any, where: str) -> Iterator[Given]:
    values = value if flag.repeatable and isinstance(value, list) else [value]
    for one in values:
        if not isinstance(one, str | int | float):
            raise UsageError(
                f"{where}: {'a list' if isinstance(one, list) else 'a value of this type'} is not expected"
            )
        yield _read(flag, str(one).lower() if isinstance(one, bool) else str(one), where)


def _read(flag: Flag, text: str, where: str) -> Given:
    """A value that stands elsewhere than on the command line; a flag that takes none there is true or false here."""
    try:
        value = boolean(text) if flag.read is None else flag.read(text)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    return Given(flag, text, value)


# --- trust --------------------------------------------------------------------------------------------------------


def _broker_trust(last: Mapping[str, Any]) -> Trust | None:
    from tensorbus import curve

    key, authorized = _both(last, "curve-key", "curve-authorized")
    try:
        return curve.broker_trust(key, authorized) if key else None
    except curve.BadKey as error:
        raise UsageError(f"Error: {error}") from None


def _service_trust(last: Mapping[str, Any]) -> Trust | None:
    from tensorbus import curve

    key, broker = _both(last, "curve-key", "curve-broker-key")
    try:
        return curve.service_trust(key, broker) if key else None
    except curve.BadKey as error:
        raise UsageError(f"Error: {error}") from None


def _both(last: Mapping[str, Any], one: str, other: str) -> tuple[str, str]:
    values = last.get(one, ""), last.get(other, "")
    if bool(values[0]) != bool(values[1]):
        given, missing = (one, other) if values[0] else (other, one)
        raise UsageError(f"Error: --{given} requires --{missing} as well.")
    return values


def _check_bind(bind: str, trust: Trust | None) -> None:
    if trust is None and not tcp_address(bind).is_loopback:
        raise bad_option(
            "bind", f"Other hosts can reach {bind}: that requires --curve-key and --curve-authorized (tensorbus keys)."
        )
