"""Instance groups: names, kinds and counts filled in, then checked. ``gpus`` are the ids of the usable GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from broker.proto import InstanceGroupMessage, Message
from protocol.errors import InternalError, InvalidArgument

_MIN_COMPUTE_CAPABILITY = "6.000000"
_KIND = InstanceGroupMessage.Kind
_TWO_ON_CPU = ("onnxruntime",)  # backends of which a CPU group without a count has two instances


def normalize_instance_groups(message: Message, gpus: Sequence[int] = ()) -> None:
    """A model without groups gets one that bears its name; an unnamed group is ``<model>_<index>``."""
    if message.HasField("ensemble_scheduling"):
        return
    if not message.instance_group:
        message.instance_group.add(name=message.name)
    for index, group in enumerate(message.instance_group):
        group.name = group.name or f"{message.name}_{index}"
        if group.kind == _KIND.KIND_AUTO:
            group.kind = _KIND.KIND_GPU if gpus and set(group.gpus) <= set(gpus) else _KIND.KIND_CPU
        if group.count < 1:
            group.count = 2 if message.backend in _TWO_ON_CPU and group.kind == _KIND.KIND_CPU else 1
        if group.kind == _KIND.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)


def check_instance_groups(message: Message, gpus: Sequence[int] = ()) -> None:
    """Of normalised groups. Raises InvalidArgument, or InternalError for a kind that has no name."""
    for group in message.instance_group:
        where = f"instance group {group.name} of model {message.name}"
        if group.kind not in _KIND.values():
            raise InternalError(f"{where} has unexpected kind KIND_AUTO")
        if group.kind == _KIND.KIND_GPU:
            _check_gpus(group, where, gpus)
        elif group.gpus:
            raise InvalidArgument(f"{where} has kind {_KIND.Name(group.kind)} but specifies one or more GPUs")
        if group.profile:
            raise InvalidArgument(
                f"{where} and platform {message.platform}specifies profile field which is only supported for "
                "TensorRT models"
            )


def _check_gpus(group: Message, where: str, gpus: Sequence[int]) -> None:
    if not group.gpus:
        raise InvalidArgument(f"{where} has kind KIND_GPU but no GPUs are available")
    for gpu in group.gpus:
        if gpu not in gpus:
            known = ", ".join(map(str, gpus))
            raise InvalidArgument(
                f"{where} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required "
                f"CUDA compute compatibility of {_MIN_COMPUTE_CAPABILITY} are: {known}"
            )
