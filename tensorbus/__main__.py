"""The command. ``tensorbus serve`` takes tritonserver's flags; ``tensorbus run-model`` runs one model to debug it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence

from tensorbus.logs import configure
from tensorbus.settings import ServeSettings, UsageError, parse_serve, usage

_OPEN_FILES = 65536
_USAGE = """Usage: tensorbus serve [options]            serve repositories of models; takes tritonserver's flags
       tensorbus run-model DIR [options]    run one model in this process, to debug it
Each has --help."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code. Usage goes to stderr, the reason last."""
    _open_standard_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["run-model"]:
        from tensorbus.run_model import run_model

        return run_model(arguments[1:])
    if arguments[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    if arguments[:1] != ["serve"]:
        print(_USAGE, file=sys.stderr)
        return 1
    try:
        settings = parse_serve(arguments[1:])
    except UsageError as error:
        print("\n".join(filter(None, (usage(), str(error)))), file=sys.stderr)
        return 1
    return _run(settings)


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


def _run(settings: ServeSettings) -> int:
    import uvloop  # a model in the foreground needs neither

    from tensorbus.serve import serve

    for line in settings.deprecations:
        print(line, file=sys.stderr)
    try:
        log = configure(settings.log_settings(), settings.escape_log_messages)
    except OSError as error:
        print(f"error: cannot open the log file: {error}", file=sys.stderr)
        return 1
    _allow_open_files()
    try:
        status: int = uvloop.run(serve(settings))
        return status
    finally:
        log.close()


if __name__ == "__main__":
    sys.exit(main())
