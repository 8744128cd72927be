"""What a configuration says of sequences, and what a request must be to be part of one. The texts are Triton's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from broker.config_normalize import SEQUENCE_IDLE_DEFAULT_US
from broker.model_config import ModelConfig
from broker.proto import DATA_TYPES, Message, SequenceControlMessage
from protocol.datatypes import BY_CONFIG_NAME
from protocol.errors import InvalidArgument
from protocol.messages import Request

_CORRELATION_ID = SequenceControlMessage.Kind.Value("CONTROL_SEQUENCE_CORRID")


class SequenceRules(NamedTuple):
    """``slots``: how many sequences an instance runs at a time. Without ``oldest`` a slot is a place in the batch."""

    model: str
    oldest: bool
    slots: int
    max_size: int  # requests of one execution
    idle_ns: int  # without a request for so long a sequence is over
    delay_ns: int
    utilization: float  # of the slots, from which on a batch does not wait
    preferred: frozenset[int]
    stacked: frozenset[str]  # inputs of variable shape that must be equal in a batch
    optional: bool  # an input may be missing: then all must have the same ones
    iterative: bool
    control: tuple[str, str]  # name and datatype of the input that the correlation id goes to; "" for none

    def check(self, request: Request, batch_size: int) -> None:
        """Raises InvalidArgument."""
        name, datatype = self.control
        given = "BYTES" if isinstance(request.correlation_id, str) else "UINT64"
        if name and (given == "BYTES") != (datatype == "BYTES"):
            raise InvalidArgument(
                f"[request id: {request.request_id or '<id_unknown>'}] sequence batching control '{name}' data-type is "
                f"'{given}', but model '{self.model}' expects '{datatype}'"
            )
        if batch_size > 1:
            raise InvalidArgument(
                f"inference request to model '{self.model}' must specify batch-size 1 due to requirements of sequence "
                "batcher"
            )
        if not request.correlation_id and not self.iterative:
            raise InvalidArgument(
                f"inference request to model '{self.model}' must specify a non-zero or non-empty correlation ID"
            )

    def not_started(self, request: Request) -> InvalidArgument:
        return InvalidArgument(
            f"inference request for sequence {request.correlation_id} to model '{self.model}' must specify the START "
            "flag on the first request of the sequence"
        )

    def form(self, request: Request) -> Mapping[str, tuple[int, ...]] | None:
        """What must be equal of the requests in a batch."""
        if not self.stacked and not self.optional:
            return None
        return {tensor.name: tensor.shape if tensor.name in self.stacked else () for tensor in request.inputs}


def sequence_rules(config: ModelConfig) -> SequenceRules:
    """Of a complete configuration with sequence batching. Without a strategy it is the direct one."""
    batching = config.message.sequence_batching
    oldest = batching.HasField("oldest")
    candidates = batching.oldest.max_candidate_sequences
    max_size = max(1, config.max_batch_size)
    strategy = batching.oldest if oldest else batching.direct
    return SequenceRules(
        model=config.name,
        oldest=oldest,
        slots=candidates if oldest and candidates > 0 else max_size,
        max_size=max_size,
        idle_ns=(batching.max_sequence_idle_microseconds or SEQUENCE_IDLE_DEFAULT_US) * 1000,
        delay_ns=strategy.max_queue_delay_microseconds * 1000,
        utilization=batching.direct.minimum_slot_utilization,
        preferred=frozenset(batching.oldest.preferred_batch_size),
        stacked=frozenset(spec.name for spec in config.inputs if -1 in spec.dims and not spec.ragged),
        optional=any(spec.optional for spec in config.inputs),
        iterative=config.iterative,
        control=_correlation_control(batching),
    )


def _correlation_control(batching: Message) -> tuple[str, str]:
    for tensor in batching.control_input:
        for control in tensor.control:
            if control.kind == _CORRELATION_ID:
                return tensor.name, BY_CONFIG_NAME[DATA_TYPES.Name(control.data_type)].name
    return "", ""
