"""The metrics that models of a host have made, told by the messages that pass, for a broker that knows none. Pure.

They are kept as the broker keeps them, of this host alone: what other hosts have added to a metric they tell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from metrics.custom import CustomMetrics, MetricRefused
from protocol.codec import decode_from_stub, encode
from protocol.messages import DropMetrics, NewFamily, NewMetric, UpdateMetric
from protocol.services import HeldMetric


class MetricLedger:
    """Invariant: whatever there is a message of is in ``_metrics``."""

    def __init__(self) -> None:
        self._metrics = CustomMetrics()
        self._families: dict[str, dict[int, NewFamily]] = {}  # by the key of a stub, and number
        self._made: dict[str, dict[int, NewMetric]] = {}

    def said(self, key: str, header: bytes | memoryview) -> None:
        """What the broker refuses is refused here, too. Raises ProtocolError."""
        message = decode_from_stub(header)
        with contextlib.suppress(MetricRefused):
            if isinstance(message, UpdateMetric):
                self._metrics.update(key, message.metric, message.operation, message.value)
            elif isinstance(message, NewMetric):
                self._metrics.new_metric(key, message.metric, message.family, message.labels, message.buckets)
                self._made.setdefault(key, {})[message.metric] = message
            elif isinstance(message, NewFamily):
                name, description, kind = message.name, message.description, message.metric_kind
                self._metrics.new_family(key, message.family, name, description, kind)
                self._families.setdefault(key, {})[message.family] = message
            elif isinstance(message, DropMetrics):
                self._drop(key, message)

    def _drop(self, key: str, message: DropMetrics) -> None:
        self._metrics.drop(key, message.families, message.metrics)
        for held, numbers in ((self._families, message.families), (self._made, message.metrics)):
            for number in numbers:
                held.get(key, {}).pop(number, None)

    def remove(self, key: str) -> None:
        """It is dead."""
        self._metrics.drop_owner(key)
        self._families.pop(key, None)
        self._made.pop(key, None)

    def made(self, key: str) -> list[bytes]:
        """The messages that make what a stub has, asking for no answer."""
        families = self._families.get(key, {})
        metrics = [one for one in self._made.get(key, {}).values() if one.family in families]
        return [
            *(encode(one._replace(call=0)) for one in families.values()),
            *(encode(one._replace(call=0)) for one in metrics),
        ]

    def values(self) -> Iterator[HeldMetric]:
        for family in self._metrics:
            for one in family:
                yield HeldMetric(family.name, list(one.labels), one.value, one.is_set, one.counts, one.sum)

    def check(self) -> None:
        """Raises AssertionError if the invariant is broken."""
        self._metrics.check()
