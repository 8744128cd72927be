"""Finds calls between models that could never end: each of them waits for an instance that waits for it.

A call waits for its instance, or in the queue for any instance of its version; an instance waits for every call that
its running batch cannot end without. A request to an ensemble waits for all its running steps, as an instance does for
its calls. What can go on is what this graph reaches from instances that wait for nothing.
"""

from __future__ import annotations

from collections.abc import Container

from broker.calls import Calls
from broker.ensembles import Ensembles
from broker.instance import Instance
from broker.model import ModelVersion
from broker.queue import Pending

Living = dict[int, tuple[ModelVersion, Pending]]  # requests by id
Taker = tuple[str, int]  # ("instance", its index) or ("ensemble", id of the request)
_CACHE = ("cache", 0)


def is_stuck(
    call: Pending, calls: Calls, ensembles: Ensembles, living: Living, going: Container[int] = frozenset()
) -> bool:
    """Whether the call waits in vain. Cheap unless instances of its model wait for calls themselves. ``going`` are
    requests that wait for none."""
    needs: dict[Taker, list[Pending]] = {}  # what each instance waits for
    takers: dict[int, list[Taker]] = {}  # the instances that each call waits for, by request id
    to_visit = [call]
    while to_visit:
        pending = to_visit.pop()
        id = pending.request.id
        takers[id] = []
        if id in going:
            takers[id].append(_CACHE)
            needs[_CACHE] = []
            continue
        if living[id][0].plan is not None:
            takers[id].append(("ensemble", id))
            needs["ensemble", id] = ensembles.running(id)
            to_visit += [one for one in needs["ensemble", id] if one.request.id not in takers]
        for instance in _waited_for(pending, living):
            taker = ("instance", instance.index)
            takers[id].append(taker)
            if taker not in needs:
                needs[taker] = _waits_for(instance, calls)
                to_visit += [one for one in needs[taker] if one.request.id not in takers]
    return not _goes_on(call, needs, takers)


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
    return [one for one in calls.of(instance.index) if one.caller is not None and one.caller.waits]


def _goes_on(call: Pending, needs: dict[Taker, list[Pending]], takers: dict[int, list[Taker]]) -> bool:
    """The least fixed point: an instance goes on if all that it needs does, a call if any of its takers does."""
    going: set[Taker] = set()
    while True:
        more = {
            taker
            for taker, needed in needs.items()
            if taker not in going and all(going.intersection(takers[one.request.id]) for one in needed)
        }
        if not more:
            return bool(going.intersection(takers[call.request.id]))
        going |= more
