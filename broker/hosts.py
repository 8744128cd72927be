"""Where instances run: on the server's own host, or on the stub hosts that have joined.

A version has on each host that runs its model the instances of its configuration. On a host that comes later they
start beside those that serve, and each serves as soon as it is up; those of a host that leaves end what they hold.
A version that no host runs waits for one.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.adoption import Adoption, FilesAreLost
from broker.events import Action, Dismiss, HostJoined, HostLeaves, HostLost, Override, Say, StubDied
from broker.host_table import HostTable
from broker.instance import Instance
from broker.instance_update import compare
from broker.leaving import Leaving
from broker.model import ModelVersion, VersionState
from broker.recovery import Recovery
from broker.registry import Registry
from broker.roster import Roster
from broker.startup import Startup


class Hosts:
    """Invariant: every process runs on a host that is in the table, or that leaves."""

    def __init__(
        self,
        table: HostTable,
        registry: Registry,
        roster: Roster,
        startup: Startup,
        adoption: Adoption,
        leaving: Leaving,
        recovery: Recovery,
        died: Callable[[StubDied, int], list[Action]],
        touch: Callable[[ModelVersion], None],
        load: Callable[[str, Override | None, int], list[Action]],
        is_loading: Callable[[str], bool],
    ) -> None:
        """``load`` is for a model that another broker had loaded because somebody had asked for it."""
        self._table = table
        self._registry = registry
        self._roster = roster
        self._startup = startup
        self._adoption = adoption
        self._leaving = leaving
        self._recovery = recovery
        self._died = died
        self._touch = touch
        self._load = load
        self._is_loading = is_loading
        self._going: dict[str, None] = {}  # hosts on which something may still run; an ordered set

    def joined(self, event: HostJoined, now: int) -> list[Action]:
        self._table.add(event)
        actions: list[Action] = []
        if event.sink is not None:
            actions += self._adoption.add(event.host, event.held, event.sink, now)
            for model in sorted(self._adoption.models()):
                if not self._registry.knows(model) and not self._is_loading(model):
                    actions += self._load_again(model, now)
        actions += self._startup.resume(now)
        for version in self._registry.serving():
            if self._table.runs(event.host, version.config.name):
                actions += self._fill(version, [event.host], now)
        return actions

    def _load_again(self, model: str, now: int) -> list[Action]:
        try:
            return self._load(model, self._adoption.override(model), now)
        except FilesAreLost:
            lost = "the files that it was loaded with are lost with the broker that had them: load it again"
            return [Say("error", "a model is gone", {"model": model, "cause": lost})]

    @property
    def awaits_models(self) -> bool:
        """Whether models are being read again whose stubs are to be taken over then."""
        models = self._adoption.models() if self._adoption else ()
        return any(self._is_loading(model) and not self._registry.knows(model) for model in models)

    def fill(self, version: ModelVersion, now: int) -> list[Action]:
        """Has a version that serves get, on each of its hosts, what it lacks of the instances of its configuration."""
        return self._fill(version, self._table.running(version.config.name), now)

    def _fill(self, version: ModelVersion, hosts: list[str], now: int) -> list[Action]:
        actions: list[Action] = []
        if version.plan is not None or version.update is not None:  # fills up once it is over
            return actions
        for host in hosts:
            there = [one for one in (*version.instances, *version.arriving) if one.host == host]
            missing, surplus = compare(there, version.config.instances)
            actions += self._startup.arrive(version, missing, host, now)
            for instance in surplus:
                self._send_away(version, instance)
        return actions

    def leaves(self, event: HostLeaves, now: int) -> list[Action]:
        self._going[event.host] = None
        return self._withdraw(event.host, now) + self._fail_hopeless(now)

    def lost(self, event: HostLost, now: int) -> list[Action]:
        host = event.host
        self._going.pop(host, None)
        self._adoption.remove(host)
        actions = self._withdraw(host, now)
        for key in self._roster.on(host):
            actions += self._died(StubDied(key, -9, None, lost=True), now)
        return actions + self._fail_hopeless(now)

    def _fail_hopeless(self, now: int) -> list[Action]:
        actions: list[Action] = []
        for version in self._registry:
            if version.plan is None:
                actions += self._recovery.fail_hopeless(version, now)
        return actions

    def _withdraw(self, host: str, now: int) -> list[Action]:
        """Its instances get no new work, and none comes up on it any more."""
        self._table.remove(host)
        actions: list[Action] = []
        for version in list(self._registry):
            here = [one for one in (*version.instances, *version.joining, *version.arriving) if one.host == host]
            configures = version.configuring is not None and self._roster.host_of(version.configuring) == host
            if version.state is VersionState.LOADING and (here or configures):
                actions += self._startup.begin_again(version, now)
            elif version.state is VersionState.READY:
                for instance in here:
                    self._send_away(version, instance)
                actions += self._startup.joins_no_longer(version, now)
        return actions

    def _send_away(self, version: ModelVersion, instance: Instance) -> None:
        for place in (version.instances, version.joining, version.arriving):
            if instance in place:
                place.remove(instance)
        version.leaving.append(instance)
        self._leaving.add(version)
        self._touch(version)

    def leave(self) -> list[Action]:
        """Whatever can go does, at the end of a turn."""
        actions: list[Action] = []
        for model in self._adoption.models() if self._adoption else ():
            if not self._is_loading(model):
                actions += self._adoption.drop(model)
        gone = [host for host in self._going if not self._roster.on(host)]
        for host in gone:
            del self._going[host]
        return actions + [Dismiss(host) for host in gone]

    def __bool__(self) -> bool:
        """Whether anything may leave."""
        return bool(self._going or self._adoption)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        for version in self._registry:
            if version.state in (VersionState.LOADING, VersionState.READY):
                for instance in (*version.instances, *version.joining, *version.arriving):
                    assert instance.host in self._table, instance.host
            assert not version.arriving or version.plan is None
