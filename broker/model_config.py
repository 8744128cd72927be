"""One model's configuration: config.pbtxt as a message, and what the broker needs of it as typed values.

The message is kept whole beside the typed fields because the config endpoint echoes every field of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from google.protobuf import text_format

from broker.proto import Message, ModelConfigMessage
from protocol.datatypes import BY_NAME
from protocol.errors import InternalError
from protocol.signature import TensorSpec

PYTHON_BACKEND = "python"
PYTHON_FILENAME = "model.py"

_DATATYPE_OF_NUMBER = {row.number: row.name for row in BY_NAME.values()}


class Scheduler(Enum):
    """Which of config.pbtxt's scheduling choices is set."""

    NONE = None
    DYNAMIC = "dynamic_batching"
    SEQUENCE = "sequence_batching"
    ENSEMBLE = "ensemble_scheduling"


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which version directories are served. ``latest`` is a count, ``specific`` the wanted ones; neither means all."""

    latest: int | None = None
    specific: tuple[int, ...] | None = None

    def choose(self, present: set[int]) -> list[int]:
        """Ascending; a specific version that is not present is left out."""
        if self.specific is not None:
            return sorted(present & set(self.specific))
        ascending = sorted(present)
        return ascending if self.latest is None else ascending[max(0, len(ascending) - self.latest) :]


class Resource(NamedTuple):
    """So much of it is needed to execute; ``is_global``: of the server's, not of the device's."""

    name: str
    needed: int
    is_global: bool


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One instance to start. A passive one is started and then never given a request."""

    name: str
    kind: str  # "CPU", "GPU" or "MODEL"
    device_id: int
    passive: bool
    likeness: bytes = field(default=b"", compare=False)  # its group, but for name, count and devices
    resources: tuple[Resource, ...] = ()
    priority: int = 1  # for the rate limiter: the higher, the less often


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A configuration at some station of loading. ``message`` is never modified: stations copy it."""

    message: Message
    name: str
    platform: str
    backend: str
    runtime: str
    version_policy: VersionPolicy
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    scheduler: Scheduler
    default_model_filename: str
    decoupled: bool
    iterative: bool  # its model may ask for a request to be executed again
    response_cache: bool
    parameters: Mapping[str, str]
    metric_tags: Mapping[str, str]
    label_files: Mapping[str, str]  # output name to file name, relative to the model directory

    @property
    def instances(self) -> tuple[InstanceSpec, ...]:
        """Of normalised instance groups (config_loading.prepare)."""
        return tuple(spec for group in self.message.instance_group for spec in _instances(group))


def parse_text(text: bytes, path: str) -> Message:
    """config.pbtxt to a message. ``path`` is for the error, which only operators see. Raises InternalError."""
    try:
        return text_format.Parse(text.decode(), ModelConfigMessage())
    except (text_format.ParseError, ValueError) as error:
        raise InternalError(f"failed to read text proto from {path}") from error


def without_instances(message: Message) -> Message:
    """What an instance may know of its configuration."""
    rest = type(message)()
    rest.CopyFrom(message)
    rest.ClearField("instance_group")
    rest.ClearField("version_policy")
    return rest


def from_message(message: Message) -> ModelConfig:
    return ModelConfig(
        message=message,
        name=message.name,
        platform=message.platform,
        backend=message.backend,
        runtime=message.runtime,
        version_policy=_version_policy(message.version_policy),
        max_batch_size=message.max_batch_size,
        inputs=tuple(_input(io) for io in message.input),
        outputs=tuple(_output(io) for io in message.output),
        scheduler=Scheduler(message.WhichOneof("scheduling_choice")),
        default_model_filename=message.default_model_filename or PYTHON_FILENAME,
        decoupled=message.model_transaction_policy.decoupled,
        iterative=message.sequence_batching.iterative_sequence,
        response_cache=message.response_cache.enable,
        parameters={key: value.string_value for key, value in message.parameters.items()},
        metric_tags=dict(message.metric_tags),
        label_files={io.name: io.label_filename for io in message.output if io.label_filename},
    )


def _version_policy(policy: Message) -> VersionPolicy:
    if policy.HasField("specific"):
        return VersionPolicy(specific=tuple(policy.specific.versions))
    return VersionPolicy(latest=policy.latest.num_versions) if policy.HasField("latest") else VersionPolicy()


def _input(io: Message) -> TensorSpec:
    return _output(io)._replace(optional=io.optional, ragged=io.allow_ragged_batch)


def _output(io: Message) -> TensorSpec:
    return TensorSpec(
        name=io.name,
        datatype=_DATATYPE_OF_NUMBER.get(io.data_type, "INVALID"),
        dims=tuple(io.dims),
        reshape=tuple(io.reshape.shape) if io.HasField("reshape") else None,
    )


def _instances(group: Message) -> list[InstanceSpec]:
    """Device after device within one count, as the original names and starts them."""
    kind = group.Kind.Name(group.kind).removeprefix("KIND_")
    devices = list(group.gpus) if kind == "GPU" else [0]
    rest = type(group)()
    rest.CopyFrom(group)
    for name in ("name", "count", "gpus"):
        rest.ClearField(name)
    likeness = rest.SerializeToString(deterministic=True)
    limits = group.rate_limiter
    resources = tuple(Resource(one.name, one.count, getattr(one, "global")) for one in limits.resources)
    priority = limits.priority or 1
    return [
        InstanceSpec(f"{group.name}_{count}", kind, device, group.passive, likeness, resources, priority)
        for count in range(group.count)
        for device in devices
    ]
