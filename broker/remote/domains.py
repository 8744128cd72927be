"""Which services share memory: those of one domain can read each other's segments. Proved by nonces, never assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from protocol.messages import Handle


class _Probe(NamedTuple):
    handle: Handle
    nonce: bytes


class Domains:
    """A domain is known by the service that was its first; a service without shared memory is one by itself."""

    def __init__(self) -> None:
        self._probes: dict[str, _Probe] = {}  # by service
        self._domains: dict[str, str] = {}  # by service
        self.own = ""  # the broker's id, if it has memory that others may look at

    def probes(self) -> dict[str, Handle]:
        """By service, one of each domain: who can read it is of that domain."""
        found = {
            domain: (service, self._probes[service].handle)
            for service, domain in self._domains.items()
            if self._probes[service].handle.segment
        }
        return dict(found.values())

    def add(self, service: str, probe: Handle, nonce: bytes) -> None:
        """A domain by itself, until it proves another one. Those that come next can prove that they are of its."""
        self._probes[service] = _Probe(probe, nonce)
        self._domains[service] = service

    def prove(self, service: str, read: Mapping[str, bytes]) -> str:
        """Its domain, by what it has ``read`` of the probes of those that came before it."""
        for other, said in read.items():
            known = self._probes.get(other)
            if known is not None and other != service and known.nonce == said != b"":
                self._domains[service] = self._domains[other]
                break
        return self._domains[service]

    def remove(self, service: str) -> None:
        self._probes.pop(service, None)
        self._domains.pop(service, None)

    def of(self, service: str) -> str:
        """ "" for one that is not known."""
        return self._domains.get(service, "")
