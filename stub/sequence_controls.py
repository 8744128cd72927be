"""The control inputs of sequences: what the scheduler tells the model of each request, as tensors that nobody sent.

START, END and READY are false or true in the values and the datatype of the configuration, CORRID is the correlation
id. Their shape is [1], with batching [1,1].
"""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Tuple

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
    false_true: Tuple[Any, ...]  # arrays; none for a correlation id


class Controls:
    """Of one model."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._shape = (1, 1) if config.get("max_batch_size", 0) > 0 else (1,)
        controls = [
            _control(tensor["name"], control, self._shape)
            for tensor in config.get("sequence_batching", {}).get("control_input", [])
            for control in tensor.get("control", [])
        ]
        self._controls = list({control.name: control for control in controls}.values())

    def tensors(self, request: messages.Request, ready: bool) -> List[Tensor]:
        """New ones: the model may write to its inputs."""
        flags = request.flags if ready else 0
        states = {
            _START: bool(flags & messages.SEQUENCE_START),
            _END: bool(flags & messages.SEQUENCE_END),
            _READY: ready,
        }
        return [
            Tensor(one.name, one.false_true[states[one.kind]].copy() if one.false_true else self._id(one, request))
            for one in self._controls
        ]

    def _id(self, control: _Control, request: messages.Request) -> np.ndarray[Any, Any]:
        id = request.correlation_id
        if control.datatype == "BYTES":
            array = np.empty(self._shape, np.object_)
            array.fill(id.encode() if isinstance(id, str) else b"")
            return array
        array = np.empty(self._shape, np.uint64)
        array.fill(id if isinstance(id, int) else 0)
        return array.astype(DTYPE[control.datatype], copy=False)  # the lowest bits


def _control(name: str, control: Mapping[str, Any], shape: Tuple[int, ...]) -> _Control:
    kind = control.get("kind", _START)  # the first of them
    if kind == _CORRELATION_ID:
        return _Control(name, kind, datatypes.BY_CONFIG_NAME[control["data_type"]].name, ())
    field, datatype = next(row for row in _FALSE_TRUE if control.get(row[0]))
    arrays = tuple(np.full(shape, value, DTYPE[datatype]) for value in control[field])
    return _Control(name, kind, datatype, arrays)
