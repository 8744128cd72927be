"""Auto-completion: what the model's ``auto_complete_config`` is given, and what of its answer is taken over."""

from __future__ import annotations

from google.protobuf import json_format

from broker.config_json import to_json
from broker.config_normalize import normalize
from broker.model_config import ModelConfig, from_message
from broker.proto import ModelConfigMessage
from protocol.errors import InternalError, InvalidArgument


def request(config: ModelConfig) -> str:
    """The JSON text behind the ``pb_utils.ModelConfig`` that the model receives."""
    return to_json(config.message)


def merge(config: ModelConfig, completed: str) -> ModelConfig:
    """Take over max_batch_size, input, output, decoupled, and the scheduling choice if there was none; drop the rest.

    Raises InvalidArgument for what is no configuration, InternalError for another scheduling choice.
    """
    try:
        answer = json_format.Parse(completed, ModelConfigMessage())
    except json_format.ParseError as error:
        raise InvalidArgument(str(error)) from error
    message = ModelConfigMessage()
    message.CopyFrom(config.message)
    message.max_batch_size = answer.max_batch_size
    for taken in ("input", "output"):
        message.ClearField(taken)
        getattr(message, taken).extend(getattr(answer, taken))
    _merge_scheduling(message, answer)
    if answer.HasField("model_transaction_policy"):
        message.model_transaction_policy.decoupled = answer.model_transaction_policy.decoupled
    normalize(message)
    return from_message(message)


def _merge_scheduling(message: ModelConfigMessage, answer: ModelConfigMessage) -> None:
    configured, chosen = message.WhichOneof("scheduling_choice"), answer.WhichOneof("scheduling_choice")
    if configured is None:
        if chosen is not None:
            getattr(message, chosen).CopyFrom(getattr(answer, chosen))
    elif configured != chosen:
        number = message.DESCRIPTOR.fields_by_name[configured].number
        # The original names the old choice twice.
        raise InternalError(f"Cannot update scheduling choice from {number} to {number} when auto-completing.")
