"""The control inputs of sequences: what the scheduler tells the model of each request, as tensors that nobody sent.

START, END and READY are false or true in the values and the datatype of the configuration, CORRID is the correlation
id. Their shape is [1], with batching [1,1].
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from .numpy_types import DTYPE
from .shared import datatypes, messages
from .tensor import Tensor, own

Id = Union[int, str]
_FALSE_TRUE = (("int32_false_true", "INT32"), ("fp32_false_true", "FP32"), ("bool_false_true", "BOOL"))
_START, _END = "CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END"
_READY, _CORRELATION_ID = "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_CORRID"
_Boolean = Tuple[str, str, NDArray[Any]]  # name, datatype, and the array for one combination of flags


class Controls:
    """Of one model."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        shape = (1, 1) if config.get("max_batch_size", 0) > 0 else (1,)
        controls = {
            tensor["name"]: control
            for tensor in config.get("sequence_batching", {}).get("control_input", [])
            for control in tensor.get("control", [])
        }
        ids = {name: one for name, one in controls.items() if one.get("kind") == _CORRELATION_ID}
        booleans = {name: one for name, one in controls.items() if name not in ids}
        self._ids = [(name, *_maker(one["data_type"], shape)) for name, one in ids.items()]
        # By flags; the last are those of null requests, which are not ready.
        self._booleans = [_booleans(booleans, flags, True, shape) for flags in range(4)]
        self._not_ready = _booleans(booleans, 0, False, shape)

    def tensors(self, request: messages.Request) -> List[Tensor]:
        """New ones: the model may write to its inputs."""
        return self._made(self._booleans[request.flags & 3], request.correlation_id)

    def null_tensors(self) -> List[Tensor]:
        return self._made(self._not_ready, 0)

    def _made(self, booleans: List[_Boolean], id: Id) -> List[Tensor]:
        tensors = [own(name, datatype, array.copy()) for name, datatype, array in booleans]
        for name, datatype, make in self._ids:
            tensors.append(own(name, datatype, make(id)) if datatype != "BYTES" else Tensor(name, make(id)))
        return tensors


def _booleans(
    controls: Mapping[str, Mapping[str, Any]], flags: int, ready: bool, shape: Tuple[int, ...]
) -> List[_Boolean]:
    states = {
        _START: bool(flags & messages.SEQUENCE_START),
        _END: bool(flags & messages.SEQUENCE_END),
        _READY: ready,
    }
    found = []
    for name, control in controls.items():
        field, datatype = next(row for row in _FALSE_TRUE if control.get(row[0]))
        value = control[field][states[control.get("kind", _START)]]  # START is the first kind, which may be left out
        found.append((name, datatype, np.full(shape, value, DTYPE[datatype])))
    return found


def _maker(data_type: str, shape: Tuple[int, ...]) -> Tuple[str, Callable[[Id], NDArray[Any]]]:
    """The wire datatype, and what makes an array of a correlation id; an integer has its lowest bits."""
    datatype = datatypes.BY_CONFIG_NAME[data_type].name
    empty: NDArray[Any] = np.zeros(shape, object if datatype == "BYTES" else np.uint64)

    def make(id: Id) -> NDArray[Any]:
        array = empty.copy()
        if datatype == "BYTES":
            array.fill(id.encode() if isinstance(id, str) else b"")
            return array
        array.fill(id if isinstance(id, int) else 0)
        return array if datatype == "UINT64" else array.astype(DTYPE[datatype])

    return datatype, make
