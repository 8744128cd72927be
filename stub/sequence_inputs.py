"""What requests of sequences get besides their own inputs, and the null requests that keep others in their places.

With the direct strategy a sequence has the same place in each batch. A place below another's that has nothing to
execute gets a null request: zeros in the shapes of a real one, READY false. What the model answers to it goes nowhere.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence

from .delivery import Delivery
from .implicit_state import ImplicitStates, zeros
from .open_request import OpenRequest
from .sequence_controls import Controls
from .shared import messages
from .tensor import Tensor


class SequenceInputs:
    """Of one instance of a model with sequence batching."""

    def __init__(self, config: Mapping[str, Any], model_directory: str) -> None:
        """Raises LoadError."""
        self._controls = Controls(config)
        self._states = ImplicitStates(config, model_directory)

    def arrange(
        self, opened: Sequence[OpenRequest], slots: Sequence[int], places: int, delivery: Delivery
    ) -> List[OpenRequest]:
        """The batch as the model is to see it. ``slots`` and ``places`` as in Batch."""
        for position, each in enumerate(opened):
            if self._states:
                starts = bool(each.message.flags & messages.SEQUENCE_START)
                each.state = self._states.of_slot(slots[position] if slots else position, starts)
        if not opened or places <= len(opened):
            return list(opened)
        real = dict(zip(slots, opened))
        first = opened[0].message
        null = messages.Request(0, first.model, first.version, first.inputs)
        return [real.get(place) or OpenRequest(null, delivery, null=True) for place in range(places)]

    def tensors(self, each: OpenRequest) -> List[Tensor]:
        """Beside the inputs of a real request."""
        tensors = self._controls.tensors(each.message)
        return tensors if each.state is None else tensors + each.state.tensors()

    def null_inputs(self, real: OpenRequest) -> List[Tensor]:
        """In the shapes of those of a real request."""
        return [zeros(one.datatype, one.shape).tensor(one.name) for one in real.message.inputs]

    def null_states(self, real: OpenRequest) -> List[Tensor]:
        state = real.state
        return [] if state is None else [zeros(v.datatype, v.shape).tensor(name) for name, v in state.values.items()]

    def null_controls(self) -> List[Tensor]:
        return self._controls.null_tensors()
