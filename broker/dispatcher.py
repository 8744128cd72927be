"""What goes to the instances at the end of a turn: batches of what waits, and word of outputs that have been read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker import sequencing
from broker.answering import Answering
from broker.deadlock import awaited, why_stuck
from broker.events import Action, Say, Send
from broker.instance import Dispatched, Instance
from broker.model import ModelVersion
from broker.queue import Frames, Pending
from broker.rate_limiter import RateLimiter
from broker.releases import Releases
from broker.roster import Roster
from broker.scheduler import assign
from broker.sequences import Sequences
from broker.settings import BrokerSettings
from broker.time_limits import EXECUTE as EXECUTE_LIMIT
from broker.time_limits import TimeLimits
from metrics.recorder import REJECTED
from protocol.errors import Unavailable
from protocol.messages import EXECUTE, Batch, Execute, Request, Starved, new


class Dispatcher:
    """``dirty`` are the versions with work that may have become assignable, in order: who brings work for a version, or
    frees one of its instances, adds it."""

    def __init__(
        self,
        settings: BrokerSettings,
        roster: Roster,
        releases: Releases,
        answering: Answering,
        limits: TimeLimits,
        limiter: RateLimiter | None,
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._releases = releases
        self._answering = answering
        self._limits = limits
        self._limiter = limiter
        self.dirty: dict[ModelVersion, None] = {}
        self._again: dict[ModelVersion, int] = {}  # when a batch has waited for long enough
        self._last_batch = settings.first_number

    def touch(self, version: ModelVersion) -> None:
        """Its instances may be able to take work now: look at the end of the turn."""
        self.dirty[version] = None

    def dispatch(self, now: int) -> list[Action]:
        """One message for each instance that gets work."""
        actions: list[Action] = []
        if self._limiter is not None:  # which passes over models that nothing waits for
            for version in self.dirty:
                if version.sequences is not None:
                    actions += self._end_sequences(version, version.sequences, now)
                    self._look_again(version, version.sequences)
        for version in self.dirty if self._limiter is None else self._turns(self._limiter, now):
            if version.sequences is not None:
                actions += self._dispatch_sequences(version, version.sequences, now)
                continue
            if version.queue:
                actions += self.give_work(version, now)
        self.dirty.clear()
        if self._releases.urgent:
            actions += [self._send(instance, [], ()) for instance in list(self._releases.urgent)]
        return actions

    def _turns(self, limiter: RateLimiter, now: int) -> Iterable[ModelVersion]:
        answering = self._answering
        return limiter.turns(self.dirty, awaited(answering.calls, answering.ensembles, answering.living), now)

    def why_stuck(self, pending: Pending) -> str:
        """Why a call in a queue will never be given to an instance, as a clause; "" if it will."""
        answering = self._answering
        return why_stuck(
            pending, answering.calls, answering.ensembles, answering.living, answering.caching, self._limiter
        )

    def may_give_now(self, version: ModelVersion) -> bool:
        """Whether its work need not wait for the end of the turn."""
        return version in self.dirty and self._limiter is None

    def give_work(self, version: ModelVersion, now: int) -> list[Action]:
        """What waits in its queue, to instances that may have it."""
        assignments, again_ns = assign(version, self._settings, now)
        actions: list[Action] = []
        for instance, batches, why in assignments:
            actions.append(self._execute(version, instance, batches, now))
            if why:
                version.recorder.batch_closed(why)
                if self._settings.explains():
                    actions.append(_explanation(version, instance, batches[0], why, now))
        if again_ns:
            self._again[version] = again_ns
        return actions

    def _dispatch_sequences(self, version: ModelVersion, sequences: Sequences, now: int) -> list[Action]:
        actions = self._end_sequences(version, sequences, now)
        for batch in sequences.take(now):
            sequencing.take_turns(version, batch.requests)
            actions.append(self._execute(version, batch.instance, [batch.requests], now, batch.slots, batch.places))
        self._look_again(version, sequences)
        return actions

    def _end_sequences(self, version: ModelVersion, sequences: Sequences, now: int) -> list[Action]:
        """Those that have been idle, or have waited for a slot, for too long."""
        actions: list[Action] = []
        for pending in sequences.expire(now):
            version.recorder.dequeued()
            actions += self._answering.fail(version, pending, Unavailable(sequencing.EXPIRED), now, REJECTED)
        return actions

    def _look_again(self, version: ModelVersion, sequences: Sequences) -> None:
        again_ns = sequences.next_deadline()
        if again_ns is not None:
            self._again[version] = again_ns

    # --- one message ----------------------------------------------------------------------------------------------

    def _execute(
        self,
        version: ModelVersion,
        instance: Instance,
        batches: list[list[Pending]],
        now: int,
        slots: Sequence[int] = (),
        places: int = 0,
    ) -> Send:
        """``slots`` and ``places`` are those of the only batch."""
        sent = []
        frames: list[memoryview | bytes] = []
        idle = not instance.outstanding
        for pendings in batches:
            self._last_batch += 1
            requests = []
            for pending in pendings:
                pending.holder = instance.index
                pending.responded_ns = now
                requests.append(rebase(pending, frames) if pending.frames else pending.request)
            version.recorder.dequeued(len(pendings))
            instance.outstanding.append(Dispatched(self._last_batch, pendings, now, places))
            sent.append(new(Batch, (self._last_batch, requests, list(slots), places)))
        if idle:
            instance.began_ns = now
            self.limit(version, instance, now)
        if version.config.decoupled:
            paced = [(one.request.id, one.window) for pendings in batches for one in pendings if one.window]
            return self._send(instance, sent, frames, paced)
        return self._send(instance, sent, frames)

    def limit(self, version: ModelVersion, instance: Instance, now: int) -> None:
        """It begins with the next batch that it holds, if any."""
        if EXECUTE_LIMIT not in version.config.parameters:
            return
        if instance.outstanding:
            self._limits.begin(instance.key, instance.spec.name, version.config, EXECUTE_LIMIT, now)
        else:
            self._limits.done(instance.key)

    def _send(
        self, instance: Instance, batches: list[Batch], frames: Frames, paced: Sequence[tuple[int, int]] = ()
    ) -> Send:
        message = new(Execute, (EXECUTE, batches, self._releases.take(instance), list(paced), []))
        return new(Send, (instance.key, message, frames, instance.shared))

    # --- time -----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        return min(self._again.values()) if self._again else None

    def deadline_passed(self, now: int) -> list[Action]:
        """Batches that have waited are looked at, and stubs told that have got no work to tell them with."""
        for version in [one for one, at in self._again.items() if at <= now]:
            del self._again[version]
            self.touch(version)
        return [self._send(instance, [], ()) for instance in self._releases.due(now)]

    def starved(self, key: str, message: Starved, frames: Frames, now: int) -> list[Action]:
        """A batch that waits for somebody else has all the time that it wants."""
        found = self._roster.serving(key)
        if found is not None:
            self._releases.starved(found[1])
            self._limits.done(key)
        return []


def _explanation(version: ModelVersion, instance: Instance, batch: list[Pending], why: str, now: int) -> Say:
    fields = {
        "model": version.name,
        "version": version.version,
        "instance": instance.spec.name,
        "requests": len(batch),
        "batch_size": sum(pending.batch_size or 1 for pending in batch),
        "why": why,
        "left": len(version.queue),
        "waited_us": (now - min(pending.arrived_ns for pending in batch)) // 1000,
    }
    return Say("debug", "batch closed", fields)


def rebase(pending: Pending, frames: list[memoryview | bytes]) -> Request:
    """The request with its inline tensors moved to the end of ``frames``, which grows by them."""
    first = len(frames)
    frames.extend(pending.frames)
    inputs = [
        tensor._replace(place=first + tensor.place) if isinstance(tensor.place, int) else tensor
        for tensor in pending.request.inputs
    ]
    return pending.request._replace(inputs=inputs)
