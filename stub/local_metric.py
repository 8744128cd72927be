"""A metric without a server: of a model under a unit test, or while the model's configuration is completed."""

from __future__ import annotations

import threading

from .triton_error import TritonModelException

_SUPPORTED = {
    "COUNTER": ("increment", "value"),
    "GAUGE": ("increment", "set", "value"),
    "HISTOGRAM": ("observe",),
}


class LocalMetric:
    """Only what a model can see of it: what a histogram has observed it cannot."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._value = 0.0
        self._lock = threading.Lock()

    def update(self, operation: str, value: float, failed: str) -> float:
        """Returns the value for "value", else 0. Raises TritonModelException; its text begins with ``failed``."""
        kind = "TRITONSERVER_METRIC_KIND_" + self._kind
        if operation not in _SUPPORTED[self._kind]:
            raise TritonModelException("{}{} does not support {}".format(failed, kind, operation.capitalize()))
        if operation == "increment" and self._kind == "COUNTER" and not value >= 0:
            text = "{}{} can only be incremented monotonically by non-negative values."
            raise TritonModelException(text.format(failed, kind))
        with self._lock:
            if operation == "set":
                self._value = value
            elif operation == "increment":
                self._value += value
            return self._value if operation == "value" else 0.0
