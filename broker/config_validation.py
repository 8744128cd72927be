"""What makes a configuration wrong by itself, with the original's sentences and in its order.

``check_model`` is done when a model directory is read and again after auto-completion; ``config_io.check_io`` only
when all is complete; ``config_instances`` once the backend is known to exist.
"""

from __future__ import annotations

from broker.config_backend import platform_fits
from broker.config_batching import check_dynamic_batching
from broker.config_ensemble import check_ensemble
from broker.config_sequence import check_sequence_batching
from broker.proto import Message
from protocol.errors import InvalidArgument
from protocol.signature import ENSEMBLE_PLATFORM


def check_model(message: Message) -> None:
    """Of a normalised message. Raises InvalidArgument."""
    _check_identity(message)
    if message.max_batch_size < 0:
        raise InvalidArgument(f"'max_batch_size' must be non-negative value for {message.name}")
    if message.HasField("dynamic_batching"):
        check_dynamic_batching(message)
    if message.HasField("sequence_batching"):
        check_sequence_batching(message)
    _check_ensemble_choice(message)
    if message.model_transaction_policy.decoupled and message.response_cache.enable:
        raise InvalidArgument(
            f"Response Cache does not currently support model {message.name} with 'decoupled' transaction policy. "
            "Please disable the response cache."
        )
    for control in message.model_metrics.metric_control:
        _check_metric_control(control)


def _check_identity(message: Message) -> None:
    is_ensemble = message.platform == ENSEMBLE_PLATFORM
    if not message.backend and not is_ensemble:
        raise InvalidArgument(f"unexpected platform type '{message.platform}' for {message.name}")
    if message.backend and is_ensemble:
        raise InvalidArgument(
            f"Ensemble model '{message.name}' must have platform type '{ENSEMBLE_PLATFORM}' and empty backend type"
        )
    if not platform_fits(message):
        raise InvalidArgument(f"unexpected 'platform' and 'backend' pair, got:{message.platform}, {message.backend}")


def _check_ensemble_choice(message: Message) -> None:
    is_ensemble = message.platform == ENSEMBLE_PLATFORM
    if message.HasField("ensemble_scheduling"):
        if not is_ensemble:
            raise InvalidArgument(
                f"ensemble scheduling cannot be set for model '{message.name}' whose platform is not ensemble"
            )
        check_ensemble(message)
    elif is_ensemble:
        raise InvalidArgument(f"ensemble scheduling must be set for ensemble {message.name} whose platform is ensemble")


def _check_metric_control(control: Message) -> None:
    if not control.HasField("metric_identifier"):
        raise InvalidArgument("metric control must specify 'metric_identifier'")
    if not control.metric_identifier.family:
        raise InvalidArgument("metric identifier must specify non-empty 'family'")
    if not control.HasField("histogram_options"):
        raise InvalidArgument("metric control must specify 'histogram_options'")
    if not control.histogram_options.buckets:
        raise InvalidArgument("histogram options must specify non-empty 'buckets'")
