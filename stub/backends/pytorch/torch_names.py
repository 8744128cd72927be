"""Which argument or result of ``forward`` a configured name means: ``INPUT__0`` is the first, ``x`` is called so."""

from __future__ import annotations

import re
from typing import Dict, Sequence

_INDEXED = re.compile(r".*__(\d+)", re.DOTALL)


def places(names: Sequence[str], arguments: Sequence[str] = ()) -> Dict[str, int]:
    """By name, if all are names of arguments; by index, if all have one; else in the order of the configuration.

    Raises ValueError if two names mean the same.
    """
    indices = [int(match.group(1)) for match in map(_INDEXED.fullmatch, names) if match]
    if all(name in arguments for name in names):
        found = [arguments.index(name) for name in names]
    else:
        found = indices if len(indices) == len(names) else list(range(len(names)))
    if len(set(found)) < len(names):
        raise ValueError("two of the names {} mean the same argument or result".format(", ".join(names)))
    return dict(zip(names, found))
