"""Finds calls between models that could never end: each of them waits for an instance that waits for it.

A call waits for its instance, or in the queue for any instance of its version; an instance waits for every call that
its running batch cannot end without. A request to an ensemble waits for all its running steps, as an instance does for
its calls. With a rate limiter, what waits in a queue also waits for those that execute with the resources that its
instance needs. What can go on is what this graph reaches from instances that wait for nothing.
"""

from __future__ import annotations

from collections.abc import Container

from broker.calls import Calls
from broker.ensembles import Ensembles
from broker.instance import Instance
from broker.model import ModelVersion
from broker.queue import Pending
from broker.rate_limiter import RateLimiter

Living = dict[int, tuple[ModelVersion, Pending]]  # requests by id
Taker = tuple[str, int]  # ("instance", its index) or ("ensemble", id of the request)
_CACHE = ("cache", 0)


def why_stuck(
    call: Pending,
    calls: Calls,
    ensembles: Ensembles,
    living: Living,
    going: Container[int] = frozenset(),
    limiter: RateLimiter | None = None,
) -> str:
    """Why the call waits in vain, and what to do about it, as a clause; "" if it does not. ``going`` are requests that
    wait for no other. Cheap unless instances of its model wait for calls themselves."""
    graph = _Graph(calls, ensembles, living, going, limiter)
    graph.explore(call)
    moving = graph.moving()
    if graph.goes_on(call, moving):
        return ""
    return graph.why(call, moving)


def awaited(calls: Calls, ensembles: Ensembles, living: Living) -> set[ModelVersion]:
    """The versions in whose queues something is that an execution of another model waits for."""
    found: set[ModelVersion] = set()
    to_visit = calls.waited_for()
    while to_visit:
        pending = to_visit.pop()
        version = living[pending.request.id][0]
        if version.plan is not None:
            to_visit += ensembles.running(pending.request.id)
        elif not pending.holder:
            found.add(version)
    return found


class _Graph:
    def __init__(
        self, calls: Calls, ensembles: Ensembles, living: Living, going: Container[int], limiter: RateLimiter | None
    ) -> None:
        self._calls = calls
        self._ensembles = ensembles
        self._living = living
        self._going = going
        self._limiter = limiter
        self._needs: dict[Taker, list[Pending]] = {}  # what each of them waits for
        self._takers: dict[int, list[Taker]] = {}  # any of these is enough for a request, by its id
        self._instances: dict[Taker, Instance] = {}

    def explore(self, call: Pending) -> None:
        to_visit = [call]
        while to_visit:
            pending = to_visit.pop()
            if pending.request.id not in self._takers:
                to_visit += self._visit(pending)

    def _visit(self, pending: Pending) -> list[Pending]:
        """What those wait for that it waits for."""
        id = pending.request.id
        if id in self._going:
            self._takers[id], self._needs[_CACHE] = [_CACHE], []
            return []
        if self._living[id][0].plan is not None:
            taker = ("ensemble", id)
            self._takers[id], self._needs[taker] = [taker], self._ensembles.running(id)
            return self._needs[taker]
        instances = _waited_for(pending, self._living)
        self._takers[id] = [("instance", one.index) for one in instances]
        rivals = []
        if self._limiter is not None and not pending.holder:
            rivals = [rival for one in instances for rival in self._limiter.rivals(one)]
        found: list[Pending] = []
        for instance in (*instances, *rivals):
            taker = ("instance", instance.index)
            if taker not in self._needs:
                self._instances[taker] = instance
                self._needs[taker] = _waits_for(instance, self._calls)
                found += self._needs[taker]
        return found

    def moving(self) -> set[Taker]:
        """The least fixed point: an instance goes on if all that it needs does, a call if any of its takers does."""
        moving: set[Taker] = set()
        while True:
            more = {
                taker
                for taker, needed in self._needs.items()
                if taker not in moving and all(self.goes_on(one, moving) for one in needed)
            }
            if not more:
                return moving
            moving |= more

    def goes_on(self, pending: Pending, moving: set[Taker]) -> bool:
        takers = moving.intersection(self._takers[pending.request.id])
        if pending.holder:
            return bool(takers)
        return any(not self._withheld(taker, moving) for taker in takers)

    def _withheld(self, taker: Taker, moving: set[Taker]) -> str:
        """The resource for want of which an instance never executes again."""
        if self._limiter is None or taker not in self._instances:
            return ""
        return self._limiter.withheld(self._instances[taker], self._stuck(moving))

    def _stuck(self, moving: set[Taker]) -> list[Instance]:
        return [instance for taker, instance in self._instances.items() if taker not in moving]

    def why(self, call: Pending, moving: set[Taker]) -> str:
        """Of a call that does not go on."""
        model = self._living[call.request.id][0].name
        takers = sorted(moving.intersection(self._takers[call.request.id]))
        if not takers:
            return f"every instance of model '{model}' waits for it; add instances to its instance_group"
        resource = self._withheld(takers[0], moving)
        holders = [one for one in self._stuck(moving) if resource in {need.name for need in one.spec.resources}]
        names = sorted({one.outstanding[0].requests[0].request.model for one in holders if one.outstanding})
        return (
            f"model '{model}' needs resource '{resource}', which {' and '.join(map(repr, names))} "
            f"{'holds while it waits' if len(names) == 1 else 'hold while they wait'}; give them different resources, "
            "or more with --rate-limit-resource"
        )


def _waited_for(pending: Pending, living: Living) -> list[Instance]:
    version = living[pending.request.id][0]
    if pending.holder:
        return [one for one in version.every_instance() if one.index == pending.holder]
    seat = version.sequences.seat_of(pending) if version.sequences is not None else None
    if seat is not None:
        return [seat]
    return [one for one in version.instances if not one.spec.passive]


def _waits_for(instance: Instance, calls: Calls) -> list[Pending]:
    """Nothing, while it executes nothing: what it has merely open ends by itself."""
    if not instance.outstanding:
        return []
    return [one for one in calls.of(instance.index) if one.waits]
