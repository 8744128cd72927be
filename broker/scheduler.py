"""Which waiting request goes to which instance.

With dynamic batching, an instance gets the batch that batcher.py cuts from the queue. Without a batching choice in the
configuration every request is an execution of its own, first come first served. Several instances: each holds one
at a time, so none idles while work waits behind another. A single instance may hold a train of them (Instance.room),
which then travel in one message. A call that another model's execution waits for never stands in a train behind an
execution, which may itself come to wait for that model.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        return _assign_batches(version, settings, now)
    alone = len(version.instances) == 1 and settings.rate_limits is None
    assignments = []
    for instance in _takers(version, busy=alone):
        batches = _take(version, instance.room(settings) if alone else 1, len(instance.outstanding))
        if not batches:  # nothing waits that it may have, nor another one
            break
        assignments.append(Assignment(instance, batches))
    return Round(assignments)


def _takers(version: ModelVersion, busy: bool) -> Iterator[Instance]:
    """Those that are idle, and with ``busy`` the others, too. There may be hundreds, of which most are neither looked
    at nor idle."""
    for one in version.instances:
        if one.outstanding and not busy:
            continue
        if one.state is InstanceState.READY and not one.spec.passive and not one.barred:
            yield one


def _assign_batches(version: ModelVersion, settings: BrokerSettings, now: int) -> Round:
    """To idle instances: what is cut later may be cut better. The only instance of a model gets its next batch a moment
    before it is idle, unless time-outs, limits or priorities count on what waits here."""
    assignments: list[Assignment] = []
    if version.held_back:
        if len(version.queue) < version.held_back:
            return Round(assignments)
        version.held_back = 0
    leads = version.may_lead and len(version.instances) == 1 and settings.rate_limits is None
    for instance in _takers(version, busy=leads):
        if instance.outstanding:
            due_ns = instance.next_due_ns()
            if due_ns > now:
                return Round(assignments, due_ns)
            if not due_ns:
                continue
        count, again_ns, why = cut(version.queue, version.batching, now)
        if not count:
            return Round(assignments, again_ns)
        batch = version.queue.take(count)
        if instance.outstanding and any(pending.waits for pending in batch):
            version.queue.push_front(batch)
            continue
        assignments.append(Assignment(instance, [batch], why))
    return Round(assignments)


def _take(version: ModelVersion, room: int, held: int) -> list[list[Pending]]:
    """``held`` batches are with the instance already."""
    queue = version.queue
    batches: list[list[Pending]] = []
    while room > 0:
        pending = queue.pop()
        if pending is None:
            break
        if (held or batches) and pending.waits:
            queue.push_front([pending])
            break
        batches.append([pending])
        room -= 1
    return batches
