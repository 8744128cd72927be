"""Which Python a stub runs in, where that is not the server's own; the launcher tells the fork server as JSON."""

from __future__ import annotations

import os
from typing import Dict, Mapping, NamedTuple, Sequence

_OF_THE_SERVERS_PYTHON = ("PYTHONPATH", "PYTHONHOME")


class Interpreter(NamedTuple):
    """An environment's interpreter. Its packages are the model author's: what is added comes behind them."""

    python: str  # path of the executable
    prefix: str  # the environment's directory
    packages: Sequence[str] = ()  # directories of what a stub needs and the environment lacks; last on sys.path


def bare(environ: Mapping[str, str]) -> Dict[str, str]:
    """Environment variables without those that lead another Python to the server's packages."""
    return {name: value for name, value in environ.items() if name not in _OF_THE_SERVERS_PYTHON}


def activated(environ: Mapping[str, str], prefix: str) -> Dict[str, str]:
    """The environment variables of a process that runs in the environment ``prefix``; as Triton sets them."""
    variables = bare(environ)
    variables["VIRTUAL_ENV"] = prefix
    for name, folder in (("PATH", "bin"), ("LD_LIBRARY_PATH", "lib")):
        variables[name] = os.pathsep.join(filter(None, [os.path.join(prefix, folder), variables.get(name)]))
    return variables
