"""What becomes of an instance whose process has died, and of the requests that it held.

The request inside execute has failed, and so have those that were open: executed, with responses still to come. The
others it held were not being executed: they go back to the head of the queue. If nothing was inside, that happens once;
a second such death on their way fails them too, or a request that kills its reader would come back for ever.
"""

from __future__ import annotations

from broker.answering import Answering
from broker.events import Action, Say, Spawn, StubDied
from broker.instance import Instance, InstanceEvent, InstanceState, Timing, not_healthy
from broker.model import ModelVersion
from broker.queue import Pending
from broker.roster import Roster
from broker.settings import BrokerSettings
from broker.startup import start_process


class Recovery:
    def __init__(self, settings: BrokerSettings, roster: Roster, answering: Answering) -> None:
        self._settings = settings
        self._roster = roster
        self._answering = answering
        self._backing_off: dict[Instance, ModelVersion] = {}

    def died(self, version: ModelVersion, instance: Instance, event: StubDied, now: int) -> list[Action]:
        """The process of an instance of a READY (or stopping) version."""
        actions: list[Action] = []
        for pending in instance.retained.values():
            actions += self._answering.released(pending, now)
        instance.retained.clear()
        instance.released = []
        for pending, _, _ in instance.open.values():
            actions += self._answering.fail(version, pending, event.error(instance.spec.name), now)
        instance.open.clear()
        actions += self._give_up_batches(version, instance, event, now)
        expected = instance.state is InstanceState.FINISHING
        instance.on(InstanceEvent.DIED)
        if expected:
            return actions
        instance.back_off(now, self._settings)
        version.recorder.restarts += 1
        self._backing_off[instance] = version
        name = instance.spec.name
        fields = {"model": version.name, "version": version.version, "instance": name, "cause": event.cause}
        actions.append(Say("error", "a stub process died; it will be restarted", fields))
        # Restart first: an instance that is on its way up is worth waiting for.
        return actions + self.restart_due(now) + self._fail_hopeless(version, now)

    def _give_up_batches(self, version: ModelVersion, instance: Instance, event: StubDied, now: int) -> list[Action]:
        batches, inside = list(instance.outstanding), event.inside
        instance.outstanding.clear()
        if inside is None and batches:
            inside = batches[0].id  # unknown: the first that it had not answered
        culprit_known = any(batch.id == inside for batch in batches)
        actions: list[Action] = []
        spared: list[Pending] = []
        for batch in batches:
            for pending, ended_ns in batch.ended:
                self._answering.count_ended(version, pending, Timing(batch.sent_ns, 0, 0, 0), ended_ns)
            for pending in batch.unanswered():
                if batch.id == inside or (pending.requeued and not culprit_known):
                    actions += self._answering.fail(version, pending, event.error(instance.spec.name), now)
                else:
                    spared.append(pending)
        self._requeue(version, spared)
        return actions

    @staticmethod
    def _requeue(version: ModelVersion, spared: list[Pending]) -> None:
        for pending in spared:
            pending.requeued = True
            pending.holder = 0
            version.recorder.queued()
        version.queue.push_front(spared)

    def _fail_hopeless(self, version: ModelVersion, now: int) -> list[Action]:
        """If no instance serves or is likely to soon, waiting would only delay the error."""
        dead = version.dead_instance()
        if dead is None:
            return []
        actions: list[Action] = []
        for pending in version.queue.drain():
            version.recorder.dequeued()
            actions += self._answering.fail(version, pending, not_healthy(dead.spec.name), now)
        return actions

    def restart_due(self, now: int) -> list[Action]:
        actions: list[Action] = []
        for instance, version in list(self._backing_off.items()):
            if instance.state is not InstanceState.BACKOFF:  # the version was unloaded meanwhile
                del self._backing_off[instance]
            elif instance.retry_at <= now:
                del self._backing_off[instance]
                actions.append(self._restart(version, instance))
        return actions

    def _restart(self, version: ModelVersion, instance: Instance) -> Spawn:
        instance.on(InstanceEvent.RETRY)
        return start_process(self._roster, version, instance)

    def next_deadline(self) -> int | None:
        return min((instance.retry_at for instance in self._backing_off), default=None)
