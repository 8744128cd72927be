"""``pb_utils.MetricFamily``: counters, gauges and histograms of a model's own, exposed by the server.

The values are the server's, where models and instances share what has the same name and labels. Without a server (a
unit test of a model) they are in stub/local_metric.py.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from typing import Any, Dict, List, NoReturn, Optional, cast

from . import calls
from .arguments import as_double, incompatible, not_castable, text_argument
from .local_metric import LocalMetric, refusal
from .pybind_enum import PybindEnum
from .shared import messages
from .told import NoServer, tell, value_of
from .triton_error import TritonModelException

_FAMILY_GONE = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)
_NO_FAMILY = "Error when creating MetricFamily: "
_NO_METRIC = "Error when creating Metric: "
_NOT_DONE = "Failed to {} metric value: "
_REFUSED = "Failed to process the request for model '{}', message: {}"
_NOBODY = "no server is listening"
_SIGNATURE = "c_python_backend_utils.MetricFamily(name: str, description: str, kind: c_python_backend_utils.MetricKind)"
_counter = itertools.count(1)
_instance = ""


def set_instance(name: str) -> None:
    """By the stub's main program, for texts."""
    global _instance
    _instance = name


class MetricKind(PybindEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


MetricKind.__module__ = "c_python_backend_utils"


class _Object:
    """A family or metric as the server knows it, by number; it is told when the model has let go of it.

    Processes that the model forks draw numbers, too, and use each other's metrics; only who has made one drops it.
    """

    __slots__ = ("is_family", "number", "pid", "served")

    def __init__(self, is_family: bool) -> None:
        self.is_family = is_family
        self.pid = os.getpid()
        self.number = self.pid << 32 | next(_counter)
        self.served = False  # known to a server, and not only here

    def __del__(self) -> None:
        if self.served and os.getpid() == self.pid:
            calls.drop_metric(self.is_family, self.number)


class _Family:
    """What a family object shares with its metrics; these may outlive it."""

    __slots__ = ("kind", "local", "object")

    def __init__(self, kind: MetricKind) -> None:
        self.kind = kind
        self.object: Optional[_Object] = _Object(is_family=True)  # None: the family object has gone
        self.local: Dict[str, LocalMetric] = {}  # by labels


class Metric:
    """Made by a MetricFamily only. What cannot fail at the server is told to it without waiting, yet in order with all
    that the model says: who has a response finds in the metrics what came before it."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_family", "_local", "_object")

    _family: _Family
    _local: Optional[LocalMetric]
    _object: _Object

    def __new__(cls) -> NoReturn:
        raise TypeError("c_python_backend_utils.Metric: No constructor defined!")

    def increment(self, value: float, /) -> None:
        self._update("increment", "increment", self._double("increment", value))

    def set(self, value: float, /) -> None:
        self._update("set", "set", self._double("set", value))

    def observe(self, value: float, /) -> None:
        """Of a histogram."""
        self._update("observe", "observe", self._double("observe", value))

    def value(self) -> float:
        return self._update("value", "get", 0.0)

    def _double(self, function: str, value: Any) -> float:
        try:
            return as_double(value)
        except (TypeError, OverflowError):
            signature = "(self: c_python_backend_utils.Metric, arg0: float) -> None"
            raise incompatible(function, signature, self, value) from None

    def _update(self, operation: str, verb: str, value: float) -> float:
        failed = _NOT_DONE.format(verb)
        if self._family.object is None:
            raise TritonModelException(failed + _FAMILY_GONE)
        why = refusal(self._family.kind.name, operation, value)
        if self._local is not None:
            if why is not None:
                raise TritonModelException(failed + why)
            return self._local.update(operation, value)
        if why is not None:
            raise TritonModelException(failed + _REFUSED.format(_instance, why))
        number = self._object.number

        def make(call: int) -> messages.UpdateMetric:
            return messages.UpdateMetric(messages.UPDATE_METRIC, call, number, operation, value)

        if operation == "value" or calls.forked():  # there its maker may have dropped it
            return value_of(make, failed, _NOBODY)
        tell(make(0), failed, _NOBODY)
        return 0.0


_Metric = Metric  # in the class below that is the name of a method


class MetricFamily:
    """Keeps what was made of it: its metrics are exposed until it has gone, and cannot be used after."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_family")

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        try:
            texts = text_argument("__init__", name), text_argument("__init__", description)
        except TypeError:
            raise incompatible("__init__", _SIGNATURE, name, description, kind) from None
        if not isinstance(kind, MetricKind):
            raise incompatible("__init__", _SIGNATURE, name, description, kind)
        self._family = family = _Family(kind)
        assert family.object is not None
        number = family.object.number

        def make(call: int) -> messages.NewFamily:
            return messages.NewFamily(messages.NEW_FAMILY, call, number, *texts, kind.name.lower())

        with contextlib.suppress(NoServer):
            value_of(make, _NO_FAMILY, _NOBODY)
            family.object.served = True

    def Metric(self, labels: Optional[Dict[str, str]] = None, buckets: Optional[List[float]] = None) -> _Metric:
        """The metric with these labels; ``buckets``, of a histogram, are the upper bounds in ascending order."""
        family = self._family
        texts = _labels(labels)
        bounds = _buckets(family.kind, buckets)
        made: _Metric = object.__new__(cast("Any", _Metric))
        made._family = family
        made._object = _Object(is_family=False)
        made._local = None
        assert family.object is not None
        if not family.object.served:
            made._local = family.local.setdefault(json.dumps(texts, sort_keys=True), LocalMetric())
            return made
        number, of = made._object.number, family.object.number
        value_of(
            lambda call: messages.NewMetric(messages.NEW_METRIC, call, number, of, texts, bounds), _NO_METRIC, _NOBODY
        )
        made._object.served = True
        return made

    def __del__(self) -> None:
        family = getattr(self, "_family", None)
        if family is not None:
            family.object = None


def _labels(labels: Any) -> Dict[str, str]:
    """As JSON makes them: keys become str, values must be."""
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
    texts: Dict[str, str] = json.loads(json.dumps(labels))
    if not all(isinstance(text, str) for text in texts.values()):
        raise TritonModelException(
            _NO_METRIC + _REFUSED.format(_instance, "attempt to access JSON non-string as string")
        )
    return texts


def _buckets(kind: MetricKind, buckets: Any) -> Optional[List[float]]:
    if buckets is None:
        if kind is MetricKind.HISTOGRAM:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        return None
    if not isinstance(buckets, list):
        raise TritonModelException("Failed to create metric. Buckets must be a list.")
    if kind is not MetricKind.HISTOGRAM:
        raise TritonModelException("Failed to create metric. Unexpected buckets found.")
    try:
        return [as_double(bound) for bound in buckets]
    except (TypeError, OverflowError):
        raise not_castable() from None
