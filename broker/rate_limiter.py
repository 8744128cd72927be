"""Which instance may execute next where models share what there is too little of (``--rate-limit=execution_count``).

An instance executes only while it has all the resources that its group names; those of a device are the device's own,
global ones the server's. Of a resource there is what the command line says, else what the neediest instance needs. Of
those that could execute, the one with the least executions times priority comes first, of two the one of the better
priority. One that has to wait for a resource keeps those behind it from that resource, and from no other: the needy are
not overtaken for ever. Only what an execution waits for goes past it: that execution may hold what the needy one lacks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence

from broker.events import Action, Say
from broker.instance import Instance, InstanceState
from broker.model import ModelVersion
from broker.model_config import InstanceSpec
from broker.settings import ResourceLimit
from protocol.errors import InvalidArgument

ResourceKey = tuple[int, str]  # device and name of a resource
Needs = dict[ResourceKey, int]

_GLOBAL = -2
_FORGET_NS = 1_000_000_000


class RateLimiter:
    """Invariant: every instance that is known and does not execute is barred, and ``_used`` is the sum of the needs of
    those that execute."""

    def __init__(self, limits: Sequence[ResourceLimit]) -> None:
        """With any ``limits`` there is nothing of a resource that is not among them."""
        self._limits = limits
        self._needs: dict[Instance, Needs] = {}
        self._executions: dict[Instance, int] = {}
        self._pools: Needs = {}
        self._said: Needs = {}
        self._used: Needs = {}
        self._executing: dict[Instance, None] = {}  # ordered sets
        self._waiting: dict[ModelVersion, None] = {}
        self._forget_ns = 0

    def add(self, instances: Sequence[Instance]) -> None:
        """Before they start. Raises InvalidArgument if one could never execute; then none is added."""
        self._forget()
        needs = {one: needs_of(one.spec) for one in instances if not one.spec.passive}
        self._pools = self._pools_for([*self._needs.values(), *needs.values()])
        self._needs.update(needs)
        for instance in needs:
            self._executions[instance] = 0
            instance.barred = True

    def _pools_for(self, needs: Iterable[Needs]) -> Needs:
        pools: Needs = {}
        for one in needs:
            for key, count in one.items():
                pools[key] = max(count, pools.get(key, 0))
        if self._limits:
            pools = {key: self._limited(key, pools[key]) for key in sorted(pools)}
        for device, name in pools:
            if device != _GLOBAL and (_GLOBAL, name) in pools:
                raise InvalidArgument(
                    f'Resource "{name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )
        return pools

    def _limited(self, key: ResourceKey, needed: int) -> int:
        device, name = key
        counts = [
            limit.available
            for limit in self._limits
            if limit.name == name.lower() and (device == _GLOBAL or limit.device in (None, device))
        ]
        count = max(counts, default=0)
        if count < needed:
            raise InvalidArgument(
                f'Resource count for "{name}" is limited to {count} which will prevent scheduling of one or more model '
                f"instances, the minimum required count is {needed}"
            )
        return count

    def news(self) -> list[Action]:
        """How much there is of each resource, if that has changed."""
        if self._pools == self._said:
            return []
        self._said = dict(self._pools)
        return [
            Say("debug", "resource", {"resource": name, "device": _name(device), "count": count})
            for (device, name), count in sorted(self._pools.items())
        ]

    def turns(
        self, versions: Iterable[ModelVersion], awaited: Container[ModelVersion], now: int
    ) -> Iterator[ModelVersion]:
        """Each version to give work to, while one of its instances is let through; ``versions`` are those that may have
        got work, or an instance for it, since the last time. What is kept from others is not kept from ``awaited``:
        an execution waits for them, and perhaps those who come first wait for that one."""
        self._settle(now)
        self._waiting.update(dict.fromkeys(versions))
        for version in [one for one in self._waiting if not one.recorder.pending]:
            del self._waiting[version]
        kept: set[ResourceKey] = set()  # for those who come first
        for version, instance in self._candidates():
            needs = self._needs[instance]
            if self._are_free(needs) and (version in awaited or kept.isdisjoint(needs)):
                instance.barred = False
                yield version
                instance.barred = True
                if instance.outstanding:
                    self._begin(instance, needs)
            else:
                kept.update(needs)

    def _candidates(self) -> list[tuple[ModelVersion, Instance]]:
        found = [
            (version, instance)
            for version in self._waiting
            for instance in (*version.instances, *version.leaving)
            if instance in self._needs and instance.state is InstanceState.READY and not instance.outstanding
        ]
        return sorted(found, key=lambda one: self._rank(one[1]))

    def _rank(self, instance: Instance) -> tuple[int, int]:
        priority = max(1, instance.spec.priority)
        return self._executions[instance] * priority, priority

    def _are_free(self, needs: Needs) -> bool:
        return all(self._used.get(key, 0) + count <= self._pools[key] for key, count in needs.items())

    def _begin(self, instance: Instance, needs: Needs) -> None:
        self._executions[instance] += 1
        self._executing[instance] = None
        for key, count in needs.items():
            self._used[key] = self._used.get(key, 0) + count

    def rivals(self, instance: Instance) -> list[Instance]:
        """Those that execute with something that it needs."""
        needs = self._needs.get(instance, {})
        return [one for one in self._executing if not needs.keys().isdisjoint(self._needs[one])]

    def withheld(self, instance: Instance, stuck: Sequence[Instance]) -> str:
        """The resource of which there is too little for it if all ``stuck`` execute for ever; "" if there is none."""
        holding = [self._needs[one] for one in stuck if one is not instance and one in self._executing]
        for key, count in self._needs.get(instance, {}).items():
            if count + sum(needs.get(key, 0) for needs in holding) > self._pools[key]:
                return key[1]
        return ""

    def _settle(self, now: int) -> None:
        """Takes back from those whose execution has ended, however it did."""
        for instance in [one for one in self._executing if not one.outstanding]:
            del self._executing[instance]
            for key, count in self._needs[instance].items():
                self._used[key] -= count
        if now >= self._forget_ns:
            self._forget_ns = now + _FORGET_NS
            self._forget()

    def _forget(self) -> None:
        """Instances that have gone need nothing any more."""
        gone = [one for one in self._needs if one.state is InstanceState.GONE and one not in self._executing]
        for instance in gone:
            del self._needs[instance], self._executions[instance]
        if gone:
            self._pools = self._pools_for(self._needs.values())

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        used: Needs = {}
        for instance in self._executing:
            for key, count in self._needs[instance].items():
                used[key] = used.get(key, 0) + count
        assert used == {key: count for key, count in self._used.items() if count}, (used, self._used)
        for instance in self._needs:
            assert instance.barred
            assert not instance.outstanding or instance in self._executing


def _name(device: int) -> str:
    return "GLOBAL" if device == _GLOBAL else str(device)


def needs_of(spec: InstanceSpec) -> Needs:
    return {(_GLOBAL if one.is_global else spec.device_id, one.name): one.needed for one in spec.resources}
