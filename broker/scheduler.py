"""Which waiting request goes to which instance.

With dynamic batching, an idle instance gets the batch that batcher.py cuts from the queue. Without a batching choice in
the configuration every request is an execution of its own, first come first served. Several instances: each holds one
at a time, so none idles while work waits behind another. A single instance may hold a train of them (Instance.room),
which then travel in one message. A call that another model's execution waits for never stands in a train behind an
execution, which may itself come to wait for that model.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.batcher import cut
from broker.instance import Instance, InstanceState
from broker.model import ModelVersion
from broker.model_config import Scheduler
from broker.queue import Pending
from broker.settings import BrokerSettings


class Assignment(NamedTuple):
    """Batches for one instance, in order. ``why`` the batch was closed, with dynamic batching."""

    instance: Instance
    batches: list[list[Pending]]
    why: str = ""


class Round(NamedTuple):
    """``again_ns`` is when to look again, though nothing else has happened; 0 is never."""

    assignments: list[Assignment]
    again_ns: int = 0


def assign(version: ModelVersion, settings: BrokerSettings, now: int) -> Round:
    """Takes from the version's queue what its instances may have now."""
    if version.config.scheduler is Scheduler.DYNAMIC:
        return _assign_batches(version, now)
    alone = len(version.instances) == 1 and settings.rate_limits is None
    assignments = []
    for instance in _takers(version):
        room = instance.room(settings) if alone else 1 - len(instance.outstanding)
        batches = _take(version, room, len(instance.outstanding))
        if batches:
            assignments.append(Assignment(instance, batches))
    return Round(assignments)


def _takers(version: ModelVersion) -> list[Instance]:
    return [
        one for one in version.instances if one.state is InstanceState.READY and not one.spec.passive and not one.barred
    ]


def _assign_batches(version: ModelVersion, now: int) -> Round:
    """To idle instances only: what is cut later may be cut better."""
    assignments: list[Assignment] = []
    if version.held_back:
        if len(version.queue) < version.held_back:
            return Round(assignments)
        version.held_back = 0
    for instance in _takers(version):
        if instance.outstanding:
            continue
        count, again_ns, why = cut(version.queue, version.batching, now)
        if not count:
            return Round(assignments, again_ns)
        assignments.append(Assignment(instance, [version.queue.take(count)], why))
    return Round(assignments)


def _take(version: ModelVersion, room: int, held: int) -> list[list[Pending]]:
    """``held`` batches are with the instance already."""
    queue = version.queue
    batches: list[list[Pending]] = []
    while room > 0:
        pending = queue.pop()
        if pending is None:
            break
        if pending.waits and held + len(batches):
            queue.push_front([pending])
            break
        batches.append([pending])
        room -= 1
    return batches
