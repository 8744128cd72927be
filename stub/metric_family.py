"""``pb_utils.MetricFamily``. A later capability: for now making one ends in a clear exception."""

from __future__ import annotations

from typing import NoReturn

from .pybind_enum import PybindEnum
from .triton_error import TritonModelException


class MetricKind(PybindEnum):
    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricFamily:
    __module__ = "c_python_backend_utils"

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        raise TritonModelException("Custom metrics are not supported by this version of tensorbus.")


class Metric:
    """Made by a MetricFamily only."""

    __module__ = "c_python_backend_utils"

    def __new__(cls) -> NoReturn:
        raise TypeError("c_python_backend_utils.Metric: No constructor defined!")
