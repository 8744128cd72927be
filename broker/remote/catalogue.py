"""What gateways are told of the models: all of it as they join, then what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from broker.model import ModelVersion, VersionState
from broker.queue import Frames
from broker.registry import Registry
from broker.remote.members import Member, Members
from protocol.errors import ServingError
from protocol.services import CATALOGUE, STUB_HOST, Catalogue, Row, ToService

Rows = Mapping[str, list[Row]]
_NONE = Row(-1, VersionState.UNAVAILABLE.value)
SendTo = Callable[[str, ToService, Frames], bool]  # False if the service cannot be reached


class _Told:
    """What one gateway knows; ``models`` None: nothing."""

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self.models: Rows | None = None
        self.hosts: list[str] = []


class Catalogues:
    def __init__(self, registry: Registry, members: Members, send: SendTo) -> None:
        self._registry = registry
        self._members = members
        self._send = send
        self._gateways: dict[str, _Told] = {}
        self._is_due = False

    def joined(self, member: Member) -> None:
        self._gateways[member.service] = _Told(member.domain)
        self.push()

    def gone(self, service: str) -> None:
        self._gateways.pop(service, None)

    def push_soon(self) -> None:
        """At the end of this turn of the loop: before anybody is told that a model is loaded."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.push)

    def push(self) -> None:
        """Whenever something may have changed."""
        self._is_due = False
        hosts = [member.service for member in self._members.of_role(STUB_HOST)]
        by_domain: dict[str, Rows] = {}
        for service, told in self._gateways.items():
            if told.domain not in by_domain:
                by_domain[told.domain] = self._rows(told.domain)
            rows, former = by_domain[told.domain], told.models or {}
            changed = {model: of for model, of in rows.items() if former.get(model) != of}
            changed.update({model: [] for model in former if model not in rows})
            if changed or hosts != told.hosts or told.models is None:
                told.models, told.hosts = rows, hosts
                self._send(service, Catalogue(CATALOGUE, changed, hosts, self._registry.has_namespaces), ())

    def _rows(self, domain: str) -> Rows:
        """As a gateway of this domain sees them."""
        rows: dict[str, list[Row]] = {model: [] for model in self._registry.failures}
        for version in self._registry.listed():
            rows.setdefault(version.name, []).append(self._row(version, domain))
        for name in self._registry.names_in_namespaces():
            try:
                rows[name] = rows[self._registry.meant(name)]
            except ServingError as error:
                rows[name] = [_NONE._replace(error=(int(error.kind), str(error)))]
        return {model: of or [_NONE] for model, of in rows.items()}

    def _row(self, version: ModelVersion, domain: str) -> Row:
        state = version.state.value
        if version.state is not VersionState.READY:
            return Row(version.version, state)
        parts, domains = self._registry.with_models(version), self._members.domains
        instances = (instance for one in parts for instance in (*one.instances, *one.joining, *one.arriving))
        readers = {instance.host for instance in instances}
        if any(one.cached for one in parts):
            readers.add(domains.own)  # looks at what it is asked
        shared = all(domains.of(reader) == domain for reader in readers)
        return Row(version.version, state, version.signature, shared)
