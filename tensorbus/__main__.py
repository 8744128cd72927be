"""The command: ``tensorbus serve`` takes tritonserver's flags, ``tensorbus run-model`` runs one model to debug it, and
``tensorbus broker``, ``gateway`` and ``stub`` are what serve does in one process, each for itself."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tensorbus import service_settings
from tensorbus.logs import configure
from tensorbus.settings import ServeSettings, UsageError, parse_serve, usage

_OPEN_FILES = 65536
_USAGE = """Usage: tensorbus serve [options]            serve repositories of models; takes tritonserver's flags
       tensorbus run-model DIR [options]    run one model in this process, to debug it
   or, over several hosts (docs/services.md):
       tensorbus broker [options]           schedule requests; once
       tensorbus gateway [options]          serve HTTP and gRPC; any number
       tensorbus stub [options]             run models; any number
       tensorbus keys DIR                   make the keys by which those know each other
Each has --help."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code. Usage goes to stderr, the reason last."""
    _open_standard_streams()
    command, *arguments = list(sys.argv[1:] if argv is None else argv) or [""]
    if command == "run-model":
        from tensorbus.run_model import run_model

        return run_model(arguments)
    if command == "keys":
        from tensorbus.keys import keys

        return keys(arguments)
    if command in ("-h", "--help"):
        print(_USAGE)
        return 0
    if command != "serve" and command not in service_settings.COMMANDS:
        print(_USAGE, file=sys.stderr)
        return 1
    return _parse_and_run(command, arguments)


def _parse_and_run(command: str, arguments: Sequence[str]) -> int:
    try:
        settings = parse_serve(arguments) if command == "serve" else service_settings.parse(command, arguments)
    except UsageError as error:
        shown = usage() if command == "serve" else service_settings.usage(command)
        print("\n".join(filter(None, (shown, str(error)))), file=sys.stderr)
        return 1
    return _run(command, settings)


def _open_standard_streams() -> None:
    """Those that are closed, as long as no socket or file of ours has got the number of one and with it the log."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _allow_open_files() -> None:
    """As many as the system lets us have: each client and each stub takes some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _service(command: str) -> Callable[[Any], Awaitable[int]]:
    """What runs it; each needs much that the others do not."""
    if command == "broker":
        from tensorbus.broker_service import run as run_broker

        return run_broker
    if command == "gateway":
        from tensorbus.gateway_service import run as run_gateway

        return run_gateway
    if command == "stub":
        from tensorbus.stub_service import run as run_stub_host

        return run_stub_host
    from tensorbus.serve import serve

    return serve


def _run(command: str, settings: ServeSettings) -> int:
    import uvloop  # a model in the foreground does not need it

    service = _service(command)
    for line in settings.deprecations:
        print(line, file=sys.stderr)
    try:
        log = configure(settings.log_settings(), settings.escape_log_messages)
    except OSError as error:
        print(f"error: cannot open the log file: {error}", file=sys.stderr)
        return 1
    _allow_open_files()
    try:
        status: int = uvloop.run(service(settings))
        return status
    finally:
        log.close()


if __name__ == "__main__":
    sys.exit(main())
