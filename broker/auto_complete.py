"""Auto-completion: what the model's ``auto_complete_config`` is given, and what of its answer is taken over."""

from __future__ import annotations

from broker.config_json import from_json, to_json
from broker.config_normalize import normalize
from broker.model_config import ModelConfig, from_message
from broker.proto import Message, ModelConfigMessage
from protocol.errors import InvalidArgument


def request(config: ModelConfig) -> str:
    """The JSON text behind the ``pb_utils.ModelConfig`` that the model receives."""
    return to_json(config.message)


def objection(config: ModelConfig, completed: str) -> str:
    """Why ``merge`` sets the answer aside, for the log; "" if it does not."""
    try:
        answer = from_json(completed)
    except InvalidArgument as error:
        why = str(error).splitlines()[0]
        return f"auto_complete_config of model '{config.name}' is ignored: it gave no valid configuration: {why}"
    configured, chosen = _scheduling(config.message), _scheduling(answer)
    if configured is not None and configured != chosen:
        return (
            f"auto_complete_config of model '{config.name}' is ignored: it changes the scheduling choice from "
            f"{configured} to {chosen or 'none'}"
        )
    return ""


def merge(config: ModelConfig, completed: str) -> ModelConfig:
    """Take over max_batch_size, input, output, decoupled, and the scheduling choice if there was none; drop the rest.

    An answer with an objection changes nothing: the original ignores such an answer as a whole, and models that
    rely on it load there.
    """
    if objection(config, completed):
        return config
    answer = from_json(completed)
    message = ModelConfigMessage()
    message.CopyFrom(config.message)
    message.max_batch_size = answer.max_batch_size
    for taken in ("input", "output"):
        message.ClearField(taken)
        getattr(message, taken).extend(getattr(answer, taken))
    chosen = _scheduling(answer)
    if _scheduling(message) is None and chosen is not None:
        getattr(message, chosen).CopyFrom(getattr(answer, chosen))
    if answer.HasField("model_transaction_policy"):
        message.model_transaction_policy.decoupled = answer.model_transaction_policy.decoupled
    normalize(message)
    return from_message(message)


def _scheduling(message: Message) -> str | None:
    choice: str | None = message.WhichOneof("scheduling_choice")
    return choice
