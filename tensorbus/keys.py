"""``tensorbus keys DIR``: the keys by which the services of a scaled stack know each other."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tensorbus.curve import make_keys

_USAGE = """Usage: tensorbus keys DIR

Makes a key pair for the broker and one for all gateways and stub hosts, in four files in DIR, which is made if it is
not there: broker.key, broker.pub, service.key and service.pub. No file is overwritten."""
_DONE = """Keys are in {directory}. The .key files are secret.
  to the broker:                     broker.key, service.pub    --curve-key=broker.key --curve-authorized=service.pub
  to each gateway and stub host:     service.key, broker.pub    --curve-key=service.key --curve-broker-key=broker.pub"""


def keys(arguments: Sequence[str]) -> int:
    """The exit code."""
    if list(arguments) in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(_USAGE, file=sys.stderr)
        return 1
    try:
        make_keys(arguments[0])
    except FileExistsError as error:
        print(f"error: {error.filename} exists already; nothing was written", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: cannot write keys to {arguments[0]}: {error.strerror}", file=sys.stderr)
        return 1
    print(_DONE.format(directory=arguments[0]))
    return 0
