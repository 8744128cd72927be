"""Rules for sequence batching: control tensors, strategies, implicit states. Raises InvalidArgument."""

from __future__ import annotations

from collections.abc import Iterator

from broker.config_batching import check_preferred_sizes
from broker.proto import DATA_TYPES, Message, SequenceControlMessage
from protocol.errors import InvalidArgument

_FALSE_TRUE = ("int32_false_true", "fp32_false_true", "bool_false_true")
_BOOLEAN_KINDS = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY")
_CORRELATION_ID = "CONTROL_SEQUENCE_CORRID"
_CORRELATION_ID_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def check_sequence_batching(message: Message) -> None:
    batching, model = message.sequence_batching, message.name
    if message.response_cache.enable:
        raise InvalidArgument(
            f"Response Cache does not currently support model {model} with sequence batching scheduler. "
            "Please disable the response cache."
        )
    for kind in _BOOLEAN_KINDS:
        for control in _controls(batching, kind, model):
            _check_boolean_control(control, kind, model)
    for control in _controls(batching, _CORRELATION_ID, model):
        _check_correlation_id(control, model)
    if batching.HasField("oldest"):
        check_preferred_sizes(batching.oldest.preferred_batch_size, message, "sequence batching preferred batch size")
    if batching.HasField("direct") and not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        raise InvalidArgument(f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {model}")


def _controls(batching: Message, kind: str, model: str) -> Iterator[Message]:
    """The controls of one kind (one at most) while checking the control tensors' names."""
    names: set[str] = set()
    found = 0
    for tensor in batching.control_input:
        if not tensor.name:
            raise InvalidArgument(f"sequence batching control tensor must have a name for {model}")
        if tensor.name in names:
            raise InvalidArgument(
                f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds for {model}"
            )
        names.add(tensor.name)
        for control in tensor.control:
            if control.kind == SequenceControlMessage.Kind.Value(kind):
                found += 1
                if found > 1:
                    raise InvalidArgument(f"sequence batching specifies multiple {kind} tensors for {model}")
                yield control


def _check_boolean_control(control: Message, kind: str, model: str) -> None:
    given = [name for name in _FALSE_TRUE if getattr(control, name)]
    if not given:
        raise InvalidArgument(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for {kind} for {model}"
        )
    if len(given) > 1:
        raise InvalidArgument(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' for {kind} for {model}"
        )
    if len(getattr(control, given[0])) != 2:
        raise InvalidArgument(
            f"sequence batching control '{given[0]}' must have exactly 2 entries for {kind} for {model}"
        )


def _check_correlation_id(control: Message, model: str) -> None:
    if any(getattr(control, name) for name in _FALSE_TRUE):
        raise InvalidArgument(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' "
            f"for {_CORRELATION_ID} for {model}"
        )
    if control.data_type not in map(DATA_TYPES.Value, _CORRELATION_ID_TYPES):
        raise InvalidArgument(
            f"unexpected data type for control {_CORRELATION_ID} for {model}. Allowed data types are TYPE_UINT64, "
            "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )


def check_states(message: Message) -> None:
    """Implicit states and their initial values, as far as no file is needed."""
    names: set[str] = set()
    for state in message.sequence_batching.state:
        if len(state.initial_state) > 1:
            raise InvalidArgument(
                f"initial_state field for state input '{state.input_name}' must contain exactly one or zero element. "
                f"Found '{len(state.initial_state)}' elements."
            )
        for initial in state.initial_state:
            _check_initial_state(state, initial, names)
            names.add(state.input_name)


def _check_initial_state(state: Message, initial: Message, names: set[str]) -> None:
    name = state.input_name
    if initial.data_type != state.data_type:
        raise InvalidArgument(
            f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
        )
    if not initial.name:
        raise InvalidArgument(f"Field 'name' must be set when using initial_state for state input '{name}'.")
    if name in names:
        raise InvalidArgument(f"State input name '{name}' specified more than once.")
    if len(initial.dims) != len(state.dims):
        raise InvalidArgument(
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input "
            f"'{name}'. {len(initial.dims)} != {len(state.dims)}"
        )
    for dim, wanted in zip(initial.dims, state.dims, strict=True):
        if dim == -1:
            raise InvalidArgument(f"'initial_state' field for state input name '{name}' contains variable dimensions.")
        if wanted not in (-1, dim):
            raise InvalidArgument(
                f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {dim} != {wanted}"
            )
    if initial.WhichOneof("state_data") is None:
        raise InvalidArgument(f"initial_state setting expects state'{name}' to have state_data set")
