"""Metrics that models make: families, their metrics, and which process holds them.

A model makes a family and, of the family, metrics; both are objects of its own process, known here by the process (the
owner) and a number. What is exposed is shared: families of one name and kind are one, and so are their metrics of equal
labels, whoever holds them. A metric lives as long as one of the family objects that it was made of, a family as long as
one of its objects; what a dead process held goes with it.

One event loop writes, any thread may read, as in metrics/recorder.py.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

from metrics import catalogue

Labels = tuple[tuple[str, str], ...]  # in order of their names

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_SUPPORTED = {COUNTER: {"increment", "value"}, GAUGE: {"increment", "set", "value"}, HISTOGRAM: {"observe"}}
_METRIC_NAME = re.compile(r"(?!__)[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_OURS = {family.name for family in catalogue.CATALOGUE}


class MetricRefused(Exception):
    """Its text is for the model's author."""


class Metric:
    """The value of a counter or gauge; of a histogram how many observations each bucket has, not counting those in the
    buckets before it, and their sum. The last bucket has no bound."""

    __slots__ = ("bounds", "counts", "holders", "is_set", "labels", "sum", "value")

    def __init__(self, labels: Labels, bounds: Sequence[float]) -> None:
        self.labels = labels
        self.value = 0.0
        self.is_set = False  # and not only added to
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.holders = 0  # family objects that it was made of

    def observe(self, value: float) -> None:
        bucket = len(self.bounds) if math.isnan(value) else bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.sum += value


class Former(Protocol):
    """A metric as another process knew it."""

    @property
    def value(self) -> float: ...

    @property
    def is_set(self) -> bool: ...

    @property
    def counts(self) -> Sequence[int]: ...

    @property
    def sum(self) -> float: ...


F = TypeVar("F", bound=Former)


class CustomFamily:
    __slots__ = ("_metrics", "help", "holders", "kind", "name")

    def __init__(self, name: str, help: str, kind: str) -> None:
        self.name = name
        self.help = help
        self.kind = kind
        self.holders = 0  # family objects
        self._metrics: dict[Labels, Metric] = {}

    def __iter__(self) -> Iterator[Metric]:
        return iter(list(self._metrics.values()))  # a snapshot in one step: the endpoint has a thread of its own

    def metric(self, labels: Labels, bounds: Sequence[float]) -> Metric:
        """The one with these labels, made if there is none."""
        return self._metrics.setdefault(labels, Metric(labels, bounds))

    def remove(self, metric: Metric) -> None:
        del self._metrics[metric.labels]


class _Held:
    """A family object of a model, and the metrics that were made of it."""

    __slots__ = ("alive", "family", "metrics")

    def __init__(self, family: CustomFamily) -> None:
        self.family = family
        self.metrics: dict[Labels, Metric] = {}
        self.alive = True


class _Owner:
    __slots__ = ("families", "metrics")

    def __init__(self) -> None:
        self.families: dict[int, _Held] = {}
        self.metrics: dict[int, tuple[_Held, Metric]] = {}


class CustomMetrics:
    """Invariant: ``holders`` counts the living ``_Held`` objects; what nobody holds is not here."""

    def __init__(self) -> None:
        self._families: dict[str, CustomFamily] = {}
        self._owners: dict[str, _Owner] = {}

    def __iter__(self) -> Iterator[CustomFamily]:
        return iter(list(self._families.values()))

    def new_family(self, owner: str, number: int, name: str, description: str, kind: str) -> None:
        """Raises MetricRefused."""
        if not _METRIC_NAME.fullmatch(name):
            raise MetricRefused("Invalid metric name")
        if kind not in _SUPPORTED:
            raise MetricRefused("Unsupported metric kind")
        family = self._families.get(name)
        if (family is not None and family.kind != kind) or name in _OURS:
            raise MetricRefused("Family name already exists" + (" with different type" if family else ""))
        if family is None:
            family = self._families[name] = CustomFamily(name, description, kind)
        family.holders += 1
        self._owners.setdefault(owner, _Owner()).families[number] = _Held(family)

    def new_metric(
        self, owner: str, number: int, family: int, labels: Mapping[str, str], buckets: Sequence[float] | None
    ) -> None:
        """``buckets`` are the bounds of a histogram, in ascending order. Raises MetricRefused."""
        owned = self._owners.setdefault(owner, _Owner())
        held = owned.families.get(family)
        if held is None:
            raise MetricRefused("There is no such metric family")
        reserved = ("le",) if held.family.kind == HISTOGRAM else ()
        if any(not _LABEL_NAME.fullmatch(name) or name in reserved for name in labels):
            raise MetricRefused("Invalid label name")
        bounds = _bounds(held.family.kind, buckets)
        metric = held.family.metric(tuple(sorted(labels.items())), bounds)
        if metric.labels not in held.metrics:
            held.metrics[metric.labels] = metric
            metric.holders += 1
        owned.metrics[number] = held, metric

    def restore(self, owner: str, number: int, former: dict[tuple[str, Labels], F], only_new: bool) -> None:
        """Adds what ``former`` has of the metric, and takes it from there; ``only_new``: unless others hold it, too."""
        held, metric = self._owners[owner].metrics[number]
        found = former.pop((held.family.name, metric.labels), None)
        if found is None or (only_new and metric.holders > 1):
            return
        metric.value = found.value if found.is_set else metric.value + found.value
        if len(found.counts) == len(metric.counts):
            metric.counts = [one + other for one, other in zip(metric.counts, found.counts, strict=True)]
            metric.sum += found.sum

    def update(self, owner: str, number: int, operation: str, value: float) -> float:
        """Returns the metric's value for "value", else 0. Raises MetricRefused."""
        owned = self._owners.get(owner)
        if owned is None or number not in owned.metrics or not owned.metrics[number][0].alive:
            raise MetricRefused("There is no such metric")
        held, metric = owned.metrics[number]
        kind = f"TRITONSERVER_METRIC_KIND_{held.family.kind.upper()}"
        if operation not in _SUPPORTED[held.family.kind]:
            raise MetricRefused(f"{kind} does not support {operation.capitalize()}")
        if operation == "value":
            return metric.value
        if operation == "observe":
            metric.observe(value)
        elif operation == "set":
            metric.value = value
            metric.is_set = True
        elif held.family.kind == COUNTER and not value >= 0:
            raise MetricRefused(f"{kind} can only be incremented monotonically by non-negative values.")
        else:
            metric.value += value
        return 0.0

    def drop(self, owner: str, families: Sequence[int], metrics: Sequence[int]) -> None:
        """The owner has let go of these objects; unknown ones are fine."""
        owned = self._owners.get(owner)
        if owned is None:
            return
        for number in metrics:
            owned.metrics.pop(number, None)
        for number in families:
            held = owned.families.pop(number, None)
            if held is not None:
                self._let_go(held)

    def drop_owner(self, owner: str) -> None:
        """A process has died. It may never have made any."""
        owned = self._owners.pop(owner, None)
        for held in owned.families.values() if owned is not None else ():
            self._let_go(held)

    def _let_go(self, held: _Held) -> None:
        held.alive = False
        family = held.family
        for metric in held.metrics.values():
            metric.holders -= 1
            if not metric.holders:
                family.remove(metric)
        family.holders -= 1
        if not family.holders:
            del self._families[family.name]

    def check(self) -> None:
        """Raises AssertionError if what is exposed is not exactly what is held."""
        held = [one for owned in self._owners.values() for one in owned.families.values()]
        for family in self:
            assert family.holders == sum(one.family is family for one in held) > 0, family.name
            for metric in family:
                assert metric.holders == sum(one.metrics.get(metric.labels) is metric for one in held) > 0
        assert all(self._families[one.family.name] is one.family and one.alive for one in held)


def _bounds(kind: str, buckets: Sequence[float] | None) -> Sequence[float]:
    if kind != HISTOGRAM:
        if buckets is not None:
            raise MetricRefused("Unexpected buckets found.")
        return ()
    if buckets is None:
        raise MetricRefused("Missing required buckets.")
    if any(not before < after for before, after in pairwise(buckets)) or any(map(math.isnan, buckets)):
        raise MetricRefused("Bucket Boundaries must be strictly sorted")
    return buckets[:-1] if buckets and buckets[-1] == math.inf else buckets  # there is one without bound anyway
