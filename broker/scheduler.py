"""Which waiting request goes to which instance: the rule for models without a batching choice in their config.

Every request is an execution of its own, first come first served. Several instances: each holds one at a time, so none
idles while work waits behind another. A single instance may hold a train of them (Instance.room), which then travel
in one message. A call that another model's execution waits for never stands in a train behind an execution, which may
itself come to wait for that model.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.instance import Instance, InstanceState
from broker.model import ModelVersion
from broker.queue import Pending
from broker.settings import BrokerSettings


class Assignment(NamedTuple):
    """Batches for one instance, in order."""

    instance: Instance
    batches: list[list[Pending]]


def assign(version: ModelVersion, settings: BrokerSettings) -> list[Assignment]:
    """Takes from the version's queue what its instances may have now."""
    alone = len(version.instances) == 1
    assignments = []
    for instance in version.instances:
        if instance.state is not InstanceState.READY or instance.spec.passive:
            continue
        room = instance.room(settings) if alone else 1 - len(instance.outstanding)
        batches = _take(version, room, len(instance.outstanding))
        if batches:
            assignments.append(Assignment(instance, batches))
    return assignments


def _take(version: ModelVersion, room: int, held: int) -> list[list[Pending]]:
    """``held`` batches are with the instance already."""
    queue = version.queue
    batches: list[list[Pending]] = []
    while room > 0:
        pending = queue.pop()
        if pending is None:
            break
        if pending.caller is not None and pending.caller.waits and held + len(batches):
            queue.push_front([pending])
            break
        batches.append([pending])
        room -= 1
    return batches
