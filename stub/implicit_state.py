"""Implicit state: what a model answers by ``output_name`` comes back to it as ``input_name`` of the sequence's next
request.

It stays in this process, one set for each slot that sequences run in, and begins anew with each START: as zeros, or as
the configuration says. A request that fails leaves it as it was.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from .response import InferenceResponse
from .shared import datatypes, errors
from .tensor import Tensor, binary_form, receive
from .user_model import LoadError

_VARIABLE = 1  # what a dimension of any size begins with
_EMPTY_STRING = 4  # bytes, of its length


class StateValue(NamedTuple):
    datatype: str
    shape: Tuple[int, ...]
    data: bytes  # in binary form

    def tensor(self, name: str) -> Tensor:
        """A copy: the model may write to its inputs."""
        return receive(name, self.datatype, self.shape, memoryview(self.data))[0]


class SlotState:
    """What is kept for the sequence in one slot, by the names of the inputs."""

    def __init__(self, inputs: Mapping[str, str], values: Mapping[str, StateValue]) -> None:
        """``inputs``: the input that each output becomes."""
        self._inputs = inputs
        self.values = dict(values)

    def tensors(self) -> List[Tensor]:
        return [value.tensor(name) for name, value in self.values.items()]

    def update(self, response: InferenceResponse) -> None:
        """Of a response without an error."""
        for tensor in response._tensors:
            name = self._inputs.get(tensor._name)
            if name is not None:
                self.values[name] = StateValue(tensor._datatype, tensor._shape, bytes(binary_form(tensor)))


class ImplicitStates:
    """The SlotStates of one instance: there are no more than slots."""

    def __init__(self, config: Mapping[str, Any], model_directory: str) -> None:
        """Reads the initial values; raises LoadError."""
        states = config.get("sequence_batching", {}).get("state", [])
        batching = config.get("max_batch_size", 0) > 0
        self._inputs = {state["output_name"]: state["input_name"] for state in states}
        self._initial = {state["input_name"]: _initial(state, batching, model_directory) for state in states}
        self._slots: Dict[int, SlotState] = {}

    def __bool__(self) -> bool:
        return bool(self._initial)

    def of_slot(self, number: int, starts: bool) -> SlotState:
        """For a request that is the first of its sequence if it ``starts``."""
        state = self._slots.get(number)
        if state is None or starts:
            state = self._slots[number] = SlotState(self._inputs, self._initial)
        return state


def _initial(state: Mapping[str, Any], batching: bool, model_directory: str) -> StateValue:
    datatype = datatypes.BY_CONFIG_NAME[state["data_type"]].name
    first = (1,) if batching else ()
    for initial in state.get("initial_state", []):
        shape = (*first, *map(int, initial.get("dims", [])))
        if not initial.get("data_file"):
            return zeros(datatype, shape)
        data = _read(model_directory, initial["data_file"])
        return StateValue(datatype, shape, data if datatype == "BYTES" else data[: _nbytes(datatype, shape)])
    dims = [_VARIABLE if int(dim) == -1 else int(dim) for dim in state.get("dims", [])]
    return zeros(datatype, (*first, *dims))


def _read(model_directory: str, name: str) -> bytes:
    """The broker has found it there, and long enough."""
    try:
        with open(os.path.join(model_directory, "initial_state", name), "rb") as file:
            return file.read()
    except OSError as error:
        text = "failed to read initial_state/{}: {}".format(name, error.strerror)
        raise LoadError(text, errors.ErrorKind.INVALID_ARG) from None


def zeros(datatype: str, shape: Tuple[int, ...]) -> StateValue:
    return StateValue(datatype, shape, bytes(_nbytes(datatype, shape)))


def _nbytes(datatype: str, shape: Sequence[int]) -> int:
    return prod(shape) * (datatypes.ITEMSIZE[datatype] or _EMPTY_STRING)
