"""A metric without a server: of a model under a unit test, or while the model's configuration is completed."""

from __future__ import annotations

import threading
from typing import Optional

_SUPPORTED = {
    "COUNTER": ("increment", "value"),
    "GAUGE": ("increment", "set", "value"),
    "HISTOGRAM": ("observe",),
}


def refusal(kind: str, operation: str, value: float) -> Optional[str]:
    """Why this cannot be done to a metric of that kind; the server's own rules."""
    name = "TRITONSERVER_METRIC_KIND_" + kind
    if operation not in _SUPPORTED[kind]:
        return "{} does not support {}".format(name, operation.capitalize())
    if operation == "increment" and kind == "COUNTER" and not value >= 0:
        return name + " can only be incremented monotonically by non-negative values."
    return None


class LocalMetric:
    """Only what a model can see of it: what a histogram has observed it cannot."""

    def __init__(self) -> None:
        self._value = 0.0
        self._lock = threading.Lock()

    def update(self, operation: str, value: float) -> float:
        """What its kind does not refuse. Returns the value for "value", else 0."""
        with self._lock:
            if operation == "set":
                self._value = value
            elif operation == "increment":
                self._value += value
            return self._value if operation == "value" else 0.0
