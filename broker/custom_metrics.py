"""What stubs say of metrics that their models make, done to the metrics that are exposed."""

from __future__ import annotations

from collections.abc import Iterable

from broker.events import Action, Send
from broker.instance import Instance
from broker.queue import Frames
from broker.roster import Roster
from metrics.custom import CustomMetrics, Labels, MetricRefused
from protocol.errors import ErrorKind
from protocol.messages import TOLD, DropMetrics, NewFamily, NewMetric, Told, UpdateMetric
from protocol.services import HeldMetric

_Asked = NewFamily | NewMetric | UpdateMetric


class MetricsOfModels:
    """A process is known by its key, so that what it held goes with it; a process that it has forked is part of it."""

    def __init__(self, exposed: CustomMetrics | None, roster: Roster) -> None:
        """Nothing is ``exposed`` if metrics are disabled."""
        self._exposed = exposed
        self._roster = roster
        self._former: dict[str, dict[tuple[str, Labels], HeldMetric]] = {}  # by host, and family and labels
        self._known: set[str] = set()  # hosts that were here before

    def host_joined(self, host: str, former: Iterable[HeldMetric]) -> None:
        """What its stubs have added so far: to metrics of another broker, or of this one if the host was lost. That is
        added again once they are made again, if it has gone with them."""
        found = {(one.family, tuple(one.labels)): one for one in former}
        if found:
            self._former[host] = found

    def host_gone(self, host: str) -> None:
        self._former.pop(host, None)
        self._known.add(host)

    def asked(self, key: str, message: _Asked, frames: Frames, now: int) -> list[Action]:
        found = self._roster.serving(key)
        if found is None:
            return []
        instance = found[1]
        try:
            told = Told(TOLD, message.call, None, self._carry_out(instance, message))
        except MetricRefused as refusal:
            text = f"Failed to process the request for model '{instance.spec.name}', message: {refusal}"
            told = Told(TOLD, message.call, (ErrorKind.INVALID_ARG, text))
        return [Send(key, told)] if message.call else []

    def dropped(self, key: str, message: DropMetrics, frames: Frames, now: int) -> list[Action]:
        found = self._roster.serving(key)
        if found is not None and self._exposed is not None:
            self._exposed.drop(found[1].key, message.families, message.metrics)
        return []

    def died(self, key: str) -> None:
        if self._exposed is not None:
            self._exposed.drop_owner(key)

    def check(self) -> None:
        if self._exposed is not None:
            self._exposed.check()

    def _carry_out(self, instance: Instance, message: _Asked) -> float:
        owner = instance.key
        if self._exposed is None:
            raise MetricRefused("metrics not supported")
        if isinstance(message, UpdateMetric):
            return self._exposed.update(owner, message.metric, message.operation, message.value)
        if isinstance(message, NewMetric):
            self._exposed.new_metric(owner, message.metric, message.family, message.labels, message.buckets)
            former = self._former.get(instance.host)
            if former:
                self._exposed.restore(owner, message.metric, former, only_new=instance.host in self._known)
        else:
            self._exposed.new_family(owner, message.family, message.name, message.description, message.metric_kind)
        return 0.0
