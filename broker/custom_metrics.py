"""What stubs say of metrics that their models make, done to the metrics that are exposed."""

from __future__ import annotations

from broker.events import Action, Send
from broker.queue import Frames
from broker.roster import Roster
from metrics.custom import CustomMetrics, MetricRefused
from protocol.errors import ErrorKind
from protocol.messages import TOLD, DropMetrics, NewFamily, NewMetric, Told, UpdateMetric

_Asked = NewFamily | NewMetric | UpdateMetric


class MetricsOfModels:
    """A process is known by its key, so that what it held goes with it; a process that it has forked is part of it."""

    def __init__(self, exposed: CustomMetrics | None, roster: Roster) -> None:
        """Nothing is ``exposed`` if metrics are disabled."""
        self._exposed = exposed
        self._roster = roster

    def asked(self, key: str, message: _Asked, frames: Frames, now: int) -> list[Action]:
        found = self._roster.serving(key)
        if found is None:
            return []
        instance = found[1]
        try:
            told = Told(TOLD, message.call, None, self._carry_out(instance.key, message))
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

    def _carry_out(self, owner: str, message: _Asked) -> float:
        if self._exposed is None:
            raise MetricRefused("metrics not supported")
        if isinstance(message, UpdateMetric):
            return self._exposed.update(owner, message.metric, message.operation, message.value)
        if isinstance(message, NewMetric):
            self._exposed.new_metric(owner, message.metric, message.family, message.labels, message.buckets)
        else:
            self._exposed.new_family(owner, message.family, message.name, message.description, message.metric_kind)
        return 0.0
