"""Finds calls between models that could never end: each of them waits for an instance that waits for it.

A call waits for its instance, or in the queue for any instance of its version; an instance waits for every call that
its running batch cannot end without. What can go on is what this graph reaches from instances that wait for nothing.
"""

from __future__ import annotations

from broker.calls import Calls
from broker.instance import Instance
from broker.model import ModelVersion
from broker.queue import Pending

Living = dict[int, tuple[ModelVersion, Pending]]  # requests by id


def is_stuck(call: Pending, calls: Calls, living: Living) -> bool:
    """Whether the call waits in vain. Cheap unless instances of its model wait for calls themselves."""
    needs: dict[int, list[Pending]] = {}  # what each instance waits for
    takers: dict[int, list[int]] = {}  # the instances that each call waits for, by request id
    to_visit = [call]
    while to_visit:
        pending = to_visit.pop()
        takers[pending.request.id] = []
        for instance in _waited_for(pending, living):
            takers[pending.request.id].append(instance.index)
            if instance.index not in needs:
                needs[instance.index] = _waits_for(instance, calls)
                to_visit += [one for one in needs[instance.index] if one.request.id not in takers]
    return not _goes_on(call, needs, takers)


def _waited_for(pending: Pending, living: Living) -> list[Instance]:
    version = living[pending.request.id][0]
    if pending.holder:
        return [one for one in version.instances if one.index == pending.holder]
    return [one for one in version.instances if not one.spec.passive]


def _waits_for(instance: Instance, calls: Calls) -> list[Pending]:
    """Nothing, while it executes nothing: what it has merely open ends by itself."""
    if not instance.outstanding:
        return []
    return [one for one in calls.of(instance.index) if one.caller is not None and one.caller.waits]


def _goes_on(call: Pending, needs: dict[int, list[Pending]], takers: dict[int, list[int]]) -> bool:
    """The least fixed point: an instance goes on if all that it needs does, a call if any of its takers does."""
    going: set[int] = set()
    while True:
        more = {
            index
            for index, needed in needs.items()
            if index not in going and all(going.intersection(takers[one.request.id]) for one in needed)
        }
        if not more:
            return bool(going.intersection(takers[call.request.id]))
        going |= more
