"""The control inputs of sequences: what the scheduler tells the model of each request, as tensors that nobody sent.

START, END and READY are false or true in the values and the datatype of the configuration, CORRID is the correlation
id. Their shape is [1], with batching [1,1].
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

import numpy as np

from .numpy_types import DTYPE
from .shared import datatypes, messages
from .tensor import Tensor

_FALSE_TRUE = (("int32_false_true", "INT32"), ("fp32_false_true", "FP32"), ("bool_false_true", "BOOL"))
_START, _END = "CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END"
_READY, _CORRELATION_ID = "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_CORRID"


class _Control(NamedTuple):
    name: str
    kind: str
    datatype: str
    false_true: Tuple[Any, ...]


class Controls:
    """Of one model."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        controls = [
            _control(tensor["name"], control)
            for tensor in config.get("sequence_batching", {}).get("control_input", [])
            for control in tensor.get("control", [])
        ]
        self._controls = list({control.name: control for control in controls}.values())
        self._shape = (1, 1) if config.get("max_batch_size", 0) > 0 else (1,)

    def tensors(self, request: messages.Request, ready: bool) -> List[Tensor]:
        """New ones: the model may write to its inputs."""
        if not self._controls:
            return []
        states = {
            _START: ready and bool(request.flags & messages.SEQUENCE_START),
            _END: ready and bool(request.flags & messages.SEQUENCE_END),
            _READY: ready,
        }
        return [Tensor(one.name, self._array(one, states, request.correlation_id)) for one in self._controls]

    def _array(self, control: _Control, states: Dict[str, bool], correlation_id: object) -> np.ndarray[Any, Any]:
        if control.kind != _CORRELATION_ID:
            return np.full(self._shape, control.false_true[states[control.kind]], DTYPE[control.datatype])
        if control.datatype == "BYTES":
            array = np.empty(self._shape, np.object_)
            array.fill(correlation_id.encode() if isinstance(correlation_id, str) else b"")
            return array
        number = correlation_id if isinstance(correlation_id, int) else 0
        return np.full(self._shape, number, np.uint64).astype(DTYPE[control.datatype])  # the lowest bits


def _control(name: str, control: Mapping[str, Any]) -> _Control:
    kind = control.get("kind", _START)  # the first of them
    if kind == _CORRELATION_ID:
        return _Control(name, kind, datatypes.BY_CONFIG_NAME[control["data_type"]].name, ())
    field, datatype = next(row for row in _FALSE_TRUE if control.get(row[0]))
    return _Control(name, kind, datatype, tuple(control[field]))
