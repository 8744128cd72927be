"""The messages of a model configuration that the broker names."""

from __future__ import annotations

from typing import Any, TypeAlias

from protocol.kserve import generated

_pb2: Any = generated("model_config_pb2")

Message: TypeAlias = Any  # an instance of ModelConfig or of a message inside it; the generated code is untyped
ModelConfigMessage = _pb2.ModelConfig
InstanceGroupMessage = _pb2.ModelInstanceGroup
DATA_TYPES = _pb2.DataType
ModelInputMessage = _pb2.ModelInput
BatchInputMessage = _pb2.BatchInput
BatchOutputMessage = _pb2.BatchOutput
QueuePolicyMessage = _pb2.ModelQueuePolicy
SequenceControlMessage = _pb2.ModelSequenceBatching.Control
