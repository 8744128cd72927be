"""What becomes of an instance whose process has died, and of the requests that it held.

The request inside execute has failed, and so have those that were open: executed, with responses still to come. Those
of a process that was lost with its host may still be executed there: nobody may write to their inputs for a while. The
others it held were not being executed: they go back to the head of the queue. If nothing was inside, that happens once;
a second such death on their way fails them too, or a request that kills its reader would come back for ever.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from broker.answering import Answering
from broker.events import Action, Say, Spawn, StubDied
from broker.instance import Instance, InstanceEvent, InstanceState, not_healthy
from broker.model import ModelVersion
from broker.processes import start_process
from broker.queue import Pending, Timing
from broker.roster import Roster
from broker.sequences import Sequences
from broker.settings import BrokerSettings
from protocol.errors import InternalError
from protocol.services import FORGOTTEN_NS


class Recovery:
    def __init__(self, settings: BrokerSettings, roster: Roster, answering: Answering) -> None:
        self._settings = settings
        self._roster = roster
        self._answering = answering
        self._backing_off: dict[Instance, ModelVersion] = {}
        self._looked_at: deque[tuple[int, Pending]] = deque()  # answered; until when somebody may look at their inputs

    def died(self, version: ModelVersion, instance: Instance, event: StubDied, now: int) -> list[Action]:
        """The process of an instance of a READY (or stopping) version."""
        actions: list[Action] = []
        for pending in instance.retained.values():
            if event.lost:
                self._look_at(pending, now)
            else:
                actions += self._answering.released(pending, now)
        instance.retained.clear()
        instance.released = []
        for pending, _, _ in instance.open.values():
            actions += self._fail(version, instance, pending, event, now)
        instance.open.clear()
        actions += self._give_up_batches(version, instance, event, now)
        expected = instance.state is InstanceState.FINISHING
        instance.on(InstanceEvent.DIED)
        if expected:
            return actions
        if instance in version.leaving:
            instance.on(InstanceEvent.FINISH)
            return actions + self.fail_hopeless(version, now)  # what it held may have been its last hope
        instance.back_off(now, self._settings)
        version.recorder.restarts += 1
        self._backing_off[instance] = version
        name = instance.spec.name
        fields = {"model": version.name, "version": version.version, "instance": name, "cause": event.cause}
        actions.append(Say("error", "a stub process died; it will be restarted", fields))
        # Restart first: an instance that is on its way up is worth waiting for.
        return actions + self.restart_due(now) + self.fail_hopeless(version, now)

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
                self._answering.tally.ended(version, pending, Timing(batch.sent_ns), ended_ns)
            for pending in batch.unanswered():
                again = not pending.taken_over and (culprit_known or not pending.requeued)
                if event.lost or batch.id == inside or not again:
                    actions += self._fail(version, instance, pending, event, now)
                else:
                    spared.append(pending)
        for pending in spared:
            pending.requeued = True
            pending.holder = 0
            version.recorder.queued()
        if version.sequences is not None:
            return actions + self._end_sequences(version, version.sequences, instance, spared, now)
        version.queue.push_front(spared)
        return actions

    def _fail(
        self, version: ModelVersion, instance: Instance, pending: Pending, event: StubDied, now: int
    ) -> list[Action]:
        if event.lost:
            self._look_at(pending, now)
        error = event.error(instance.spec.name)
        return self._answering.fail(version, pending, error, now, retained=event.lost)

    def _look_at(self, pending: Pending, now: int) -> None:
        self._looked_at.append((now + FORGOTTEN_NS, pending))

    def let_go(self, now: int) -> list[Action]:
        """Of inputs that nobody looks at any more."""
        actions: list[Action] = []
        while self._looked_at and self._looked_at[0][0] <= now:
            actions += self._answering.released(self._looked_at.popleft()[1], now)
        return actions

    def _end_sequences(
        self, version: ModelVersion, sequences: Sequences, instance: Instance, spared: list[Pending], now: int
    ) -> list[Action]:
        """What the process knew of them is lost; what waits is no use any more, up to the next start of a sequence."""
        actions: list[Action] = []
        for pending in sequences.died(instance, spared):
            version.recorder.dequeued()
            id = pending.request.correlation_id
            cause = InternalError(f"{not_healthy(instance.spec.name)} Sequence {id} has ended with it.")
            actions += self._answering.fail(version, pending, cause, now)
        return actions

    def fail_hopeless(self, version: ModelVersion, now: int) -> list[Action]:
        """If no instance serves or is likely to soon, waiting would only delay the error."""
        error = version.unserved()
        if error is None:
            return []
        actions: list[Action] = []
        queue = version.queue if version.sequences is None else version.sequences
        for pending in queue.drain():
            version.recorder.dequeued()
            actions += self._answering.fail(version, pending, error, now)
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
        retries = (instance.retry_at for instance in self._backing_off)
        return min((*retries, *(until for until, _ in islice(self._looked_at, 1))), default=None)
