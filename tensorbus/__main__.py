"""The command. ``tensorbus serve`` takes tritonserver's flags."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tensorbus.settings import UsageError, parse_serve, usage


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code. Usage goes to stderr, the reason last."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] != "serve":
        print("Usage: tensorbus serve [options]; tensorbus serve --help lists them", file=sys.stderr)
        return 1
    try:
        settings = parse_serve(arguments[1:])
    except UsageError as error:
        print(usage(), file=sys.stderr)
        print(error, file=sys.stderr)
        return 1
    return _run(settings)


def _run(settings: object) -> int:
    raise NotImplementedError


if __name__ == "__main__":
    sys.exit(main())
