"""Which hosts there are for instances to run on, and which models each of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from broker.events import HostJoined
from broker.instance import LOCAL


class _Host(NamedTuple):
    models: Sequence[str]  # patterns
    gpus: Sequence[int]


class HostTable:
    """In the order in which they have joined; models are known by their names, without namespaces. With the instances
    of a server that has no other there is one host, its own, which runs all models."""

    def __init__(self, hosted: bool, gpus: Sequence[int] = ()) -> None:
        self._hosts: dict[str, _Host] = {} if hosted else {LOCAL: _Host(("*",), gpus)}

    def __contains__(self, host: str) -> bool:
        return host in self._hosts

    def add(self, event: HostJoined) -> None:
        self._hosts[event.host] = _Host(event.models, event.gpus)

    def remove(self, host: str) -> None:
        self._hosts.pop(host, None)

    def running(self, model: str) -> list[str]:
        """The hosts that run a model."""
        return [host for host in self._hosts if self.runs(host, model)]

    def runs(self, host: str, model: str) -> bool:
        """``host`` is in the table."""
        return any(fnmatchcase(model, one) for one in self._hosts[host].models)

    def gpus(self, model: str) -> list[int]:
        """The CUDA device ids that all hosts of a model have."""
        sets = [set(self._hosts[name].gpus) for name in self.running(model)]
        return sorted(set.intersection(*sets)) if sets else []
