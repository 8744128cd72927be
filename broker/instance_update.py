"""What differs between a version that serves and its source as it is now, if that is no more than its instances."""

from __future__ import annotations

from collections.abc import Iterable

from broker.instance import Instance
from broker.model import ModelVersion, VersionSource
from broker.model_config import InstanceSpec, ModelConfig, Scheduler, from_message, without_instances
from broker.proto import Message


def is_enough(version: ModelVersion, source: VersionSource) -> bool:
    """Whether new instances would do, without loading the version anew."""
    old = version.source
    return (
        version.healthy()
        and old.files == source.files != ""
        and not (old.private_directory or source.private_directory)
        and old.refusal is None is source.refusal
        and source.config.scheduler is not Scheduler.ENSEMBLE
        and _alike(source.config.message, old.config.message, version.config.message)
    )


def _alike(new: Message, *olds: Message) -> bool:
    """Like one of them: as it was read, or as it was completed; a client may have got that from us."""
    return any(without_instances(new) == without_instances(old) for old in olds)


def with_instances(served: ModelConfig, wanted: ModelConfig) -> ModelConfig:
    """``served`` with the instances of ``wanted``, which is normalised."""
    message = without_instances(served.message)
    message.instance_group.extend(wanted.message.instance_group)
    message.version_policy.CopyFrom(wanted.message.version_policy)
    return from_message(message)


def compare(instances: Iterable[Instance], specs: Iterable[InstanceSpec]) -> tuple[list[InstanceSpec], list[Instance]]:
    """Those to add, and the surplus. An instance that is like a wanted one stays, preferably under its name."""
    surplus, missing = list(instances), list(specs)
    for named in (True, False):
        left = []
        for spec in missing:
            found = next((one for one in surplus if _fits(one.spec, spec, named)), None)
            if found is None:
                left.append(spec)
            else:
                surplus.remove(found)
        missing = left
    return missing, surplus


def _fits(old: InstanceSpec, new: InstanceSpec, named: bool) -> bool:
    alike = (old.likeness, old.device_id) == (new.likeness, new.device_id)
    return alike and (not named or old.name == new.name)
