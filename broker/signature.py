"""What others are told of a loaded configuration: gateways by a Signature, stubs by the arguments of initialize."""

from __future__ import annotations

from collections.abc import Mapping

from broker.config_json import to_json
from broker.model_config import InstanceSpec, ModelConfig, Scheduler
from protocol.signature import Signature


def signature(config: ModelConfig, version: int, labels: Mapping[str, tuple[str, ...]]) -> Signature:
    return Signature(
        model=config.name,
        version=version,
        platform=config.platform or config.backend,
        max_batch_size=config.max_batch_size,
        decoupled=config.decoupled,
        inputs=config.inputs,
        outputs=config.outputs,
        config_json=to_json(config.message),
        config_proto=config.message.SerializeToString(),
        labels=labels,
        batching=config.scheduler is Scheduler.DYNAMIC,
    )


def initialize_args(config: ModelConfig, instance: InstanceSpec, version: int, model_dir: str) -> dict[str, str]:
    """The seven keys. ``model_dir`` is the model's own directory, which the original calls "model_repository"."""
    return {
        "model_config": to_json(config.message),
        "model_instance_kind": instance.kind,
        "model_instance_name": instance.name,
        "model_instance_device_id": str(instance.device_id),
        "model_repository": model_dir,
        "model_version": str(version),
        "model_name": config.name,
    }
