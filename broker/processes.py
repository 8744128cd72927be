"""The processes of instances: how one is started, and how it is told to end."""

from __future__ import annotations

from broker.events import Action, Kill, Send, Spawn
from broker.instance import Instance, InstanceEvent, InstanceState
from broker.model import ModelVersion
from broker.roster import Roster
from protocol.messages import FINISH, Finish


def start_process(roster: Roster, version: ModelVersion, instance: Instance) -> Spawn:
    """The next process of an instance, which is STARTING."""
    roster.add_instance(version, instance)
    return spawn(version, instance.key, instance.spec.name, instance.host, instance.spec.name)


def spawn(version: ModelVersion, key: str, what: str, host: str, instance: str = "") -> Spawn:
    title = f"{version.name}:{version.version} {what}"
    return Spawn(key, title, version.source, version.interpreter, instance, host, version.environment)


def end_processes(version: ModelVersion, finish: bool) -> list[Action]:
    """Of a version that holds no request. With ``finish`` those that serve may finalize; the rest is killed."""
    actions: list[Action] = []
    if version.configuring is not None:
        actions.append(Kill(version.configuring))
    for instance in version.every_instance():
        actions += end_process(instance, finish)
    return actions


def end_process(instance: Instance, finish: bool) -> list[Action]:
    """Of an instance that holds no request."""
    if instance.state in (InstanceState.FINISHING, InstanceState.GONE):
        return []
    serves = instance.state is InstanceState.READY
    if instance.on(InstanceEvent.FINISH) is not InstanceState.FINISHING:
        return []
    return [Send(instance.key, Finish(FINISH)) if finish and serves else Kill(instance.key)]
