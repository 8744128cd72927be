"""The way of a request to an instance: it comes, waits, perhaps is given up, and goes out with others of its turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush

from broker import sequencing
from broker.answering import Answering, refusal
from broker.calls import call_failed, not_ready
from broker.deadlock import is_stuck
from broker.events import Action, Answer, LookedUp, Say, Send, Submitted
from broker.instance import Dispatched, Instance, unserved
from broker.iterative import begin
from broker.model import ModelVersion
from broker.queue import Caller, Frames, Pending
from broker.rate_limiter import RateLimiter
from broker.readiness import Then
from broker.registry import Registry
from broker.releases import Releases
from broker.roster import Roster
from broker.scheduler import assign
from broker.sequences import Sequences
from broker.settings import BrokerSettings
from broker.time_limits import EXECUTE as EXECUTE_LIMIT
from broker.time_limits import TimeLimits
from metrics.pressure import Pressure
from metrics.recorder import REJECTED
from protocol.errors import STOPPING, Cancelled, InternalError, NotFound, ServingError, Unavailable
from protocol.messages import (
    ANSWERED,
    CANCEL,
    EXECUTE,
    SEQUENCE_START,
    Answered,
    Batch,
    Call,
    Cancel,
    CancelCall,
    Execute,
    Handle,
    Request,
    Starved,
)


class Requests:
    """What came in together leaves together: ``dispatch`` ends a turn."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        roster: Roster,
        releases: Releases,
        answering: Answering,
        limits: TimeLimits,
        ask_ready: Callable[[ModelVersion, int, Then], list[Action]],
        pressure: Pressure,
        limiter: RateLimiter | None,
    ) -> None:
        self._settings = settings
        self._pressure = pressure
        self._limiter = limiter
        self._registry = registry
        self._roster = roster
        self._releases = releases
        self._answering = answering
        self._limits = limits
        self._ask_ready = ask_ready
        self._early_calls: set[tuple[str, int]] = set()  # of models that have still to say whether they are ready
        self._waiting_calls: list[Pending] = []  # that came in this turn
        self._dirty: dict[ModelVersion, None] = {}  # work may have become assignable; an ordered set
        self._again: dict[ModelVersion, int] = {}  # when a batch has waited for long enough
        self._timeouts: list[tuple[int, int]] = []  # a heap: when a request has, and its id
        self._last_batch = 0
        self.stopping = False

    # --- a request comes ------------------------------------------------------------------------------------------

    def submitted(self, event: Submitted, now: int) -> list[Action]:
        request = event.request
        try:
            if self.stopping:  # before the look-up: a model that is unloaded already is not unknown
                raise Unavailable(STOPPING)
            version = self._registry.for_request(request.model, request.version, now)
            if version.sequences is not None and not request.flags & SEQUENCE_START:
                version = self._registry.running(version, version.sequences, request.correlation_id)
            self.refuse_when_full(version, request.request_id)
        except ServingError as error:
            return [Answer(Pending(request, event.frames, event.sink, 1, event.arrived_ns), refusal(request.id, error))]
        pending = Pending(request, event.frames, event.sink, version.batch_size(request), event.arrived_ns)
        return self._enqueue(version, pending, now)

    def refuse_when_full(self, version: ModelVersion, request_id: str = "") -> None:
        """Raises Unavailable if too many wait, of all models; one of which none waits may always have one more. What
        models call and what ensembles lead to is part of requests that were taken, and never refused."""
        limit = self._settings.max_queued_requests
        if limit and self._pressure.queued >= limit and (version.recorder.pending or version.flows):
            self._pressure.refused_for_requests += 1
            raise Unavailable(
                f"[request id: {request_id or '<id_unknown>'}] Exceeds maximum queue size: {self._pressure.queued} "
                f"requests wait in this server, which takes none for model '{version.name}' beyond "
                f"--max-queued-requests={limit}"
            )

    def call(self, key: str, message: Call, frames: Frames, now: int) -> list[Action]:
        """A model's own request; it comes while the server stops, too, or what is in flight could not be finished."""
        target = self._asked_before(message)
        if target is None:
            return self._open(key, message, frames, now)
        self._early_calls.add((key, message.call))
        return self._ask_ready(target, now, partial(self._open_if_ready, key, message, frames))

    def _asked_before(self, message: Call) -> ModelVersion | None:
        """The version that is called, if it has ``is_ready``."""
        try:
            version = self._registry.servable(message.request.model, message.request.version)
        except NotFound:
            return None
        asks = version is not None and any(instance.asks_ready for instance in version.instances)
        return version if asks else None

    def _open_if_ready(
        self, key: str, message: Call, frames: Frames, error: ServingError | None, now: int
    ) -> list[Action]:
        if (key, message.call) not in self._early_calls:
            return [_refused(key, message, Cancelled(""))]
        self._early_calls.discard((key, message.call))
        if error is not None:
            model = message.request.model
            return [_refused(key, message, call_failed(model, not_ready(model)))]
        return self._open(key, message, frames, now)

    def _open(self, key: str, message: Call, frames: Frames, now: int) -> list[Action]:
        found = self._roster.serving(key)
        if found is None:
            return []
        instance = found[1]
        parents = instance.requests_of(message.batch)
        # A process that the model forked may end without a word, so that nobody would say what it had read.
        shared = instance.shared and key == instance.key
        caller = Caller(key, message.call, instance.index, shared, message.waits, parents)
        try:
            version, pending = self._answering.calls.open(message, caller, frames, now)
        except ServingError as error:
            return [_refused(key, message, error)]
        if message.waits:
            self._waiting_calls.append(pending)
        return self._enqueue(version, pending, now)

    def _enqueue(self, version: ModelVersion, pending: Pending, now: int, missed: bool = False) -> list[Action]:
        """``missed``: it is not in the cache."""
        if version.cached and not missed:
            return self._look_up(version, pending)
        queue = version.queue
        if queue.limited and queue.is_full(pending.request):
            made = self._make_room(version, now)
            if made:
                return made + self._enqueue(version, pending, now, missed)
            id = pending.request.request_id or "<id_unknown>"
            full = refusal(pending.request.id, Unavailable(f"[request id: {id}] Exceeds maximum queue size"))
            return self._answering.answer(version, pending, full, "", (), now)
        if version.sequences is not None:
            try:
                version.sequences.admit(pending.request, pending.batch_size)
            except ServingError as error:
                refused = refusal(pending.request.id, error)
                actions = self._answering.answer(version, pending, refused, "", (), now)
                return [*actions, sequencing.refused(version, pending, error)]
        self._answering.living[pending.request.id] = (version, pending)
        if version.plan is not None:
            return self._answering.ensembles.begin(version, pending, now)
        dead = version.dead_instance()
        if dead is not None:
            return self._answering.fail(version, pending, unserved(version.name, dead), now)
        if version.config.iterative:
            begin(version, pending)
        if queue.timed:
            timeout_ns = queue.timeout_ns(pending.request)
            if timeout_ns:
                heappush(self._timeouts, (pending.arrived_ns + timeout_ns, pending.request.id))
        if version.order is not None and pending.sink is not None and not missed and version.sequences is None:
            version.order.join(pending)
        return self._queue(version, pending, now)

    def _look_up(self, version: ModelVersion, pending: Pending) -> list[Action]:
        if version.order is not None and pending.sink is not None:
            version.order.join(pending)
        return self._answering.caching.look_up(version, pending)

    def looked_up(self, event: LookedUp, now: int) -> list[Action]:
        actions, missed = self._answering.caching.found(event, now)
        if missed is not None:
            version, pending = missed
            if pending.waits:
                self._waiting_calls.append(pending)
            actions += self._enqueue(version, pending, now, missed=True)
        return actions

    def touch(self, version: ModelVersion) -> None:
        """Its instances may be able to take work now: look at the end of the turn."""
        self._dirty[version] = None

    def _queue(self, version: ModelVersion, pending: Pending, now: int) -> list[Action]:
        version.recorder.queued()
        self._dirty[version] = None
        if version.sequences is None:
            version.queue.push(pending)
            return []
        return [sequencing.cut_short(version, pending)] if version.sequences.push(pending, now) else []

    # --- nobody wants it any more ---------------------------------------------------------------------------------

    def cancel_call(self, key: str, message: CancelCall, frames: Frames, now: int) -> list[Action]:
        self._early_calls.discard((key, message.call))
        pending = self._answering.calls.find(key, message.call)
        return [] if pending is None else self.cancel(pending.request.id, now)

    def cancel(self, request: int, now: int) -> list[Action]:
        """In the queue it ends at once. The instance that holds it is told, and so are those that it waits for."""
        found = self._answering.living.get(request)
        if found is None or found[1].unwanted:
            return []
        version, pending = found
        if request in self._answering.caching:
            if self._answering.caching.give_up(request):
                return self._answering.fail(version, pending, Cancelled(""), now)
            return []
        if version.plan is not None:
            pending.unwanted = True
            return self._cancel_all(self._answering.ensembles.cancel(request), now)
        if not pending.holder:
            return self._withdraw(version, pending, Cancelled(""), now)
        pending.unwanted = True
        holder = next(one for one in version.every_instance() if one.index == pending.holder)
        actions: list[Action] = [Send(holder.key, Cancel(CANCEL, [request]))]
        for call in self._answering.calls.of(holder.index):
            if call.caller is not None and pending in call.caller.parents and _all_unwanted(call.caller.parents):
                actions += self.cancel(call.request.id, now)
        return actions

    def _withdraw(self, version: ModelVersion, pending: Pending, error: ServingError, now: int) -> list[Action]:
        """One that waits fails, and with it all of its sequence that wait."""
        withdrawn = [pending]
        if version.sequences is None:
            version.queue.cancel(pending)
        else:
            withdrawn = version.sequences.cancel(pending, now)
        self.touch(version)  # those behind it may be a batch without it
        actions: list[Action] = []
        for one in withdrawn:
            version.recorder.dequeued()
            actions += self._answering.fail(version, one, error, now)
        return actions

    def _cancel_all(self, requests: Iterable[int], now: int) -> list[Action]:
        actions: list[Action] = []
        for request in requests:
            actions += self.cancel(request, now)
        return actions

    # --- it goes to an instance -----------------------------------------------------------------------------------

    def dispatch(self, now: int) -> list[Action]:
        """Ends a turn: one message for each instance that gets work. No request goes to one too late, though the time
        that it has be shorter than the turn."""
        actions = self._expire(now)
        if self._answering.ensembles.has_news:
            actions += self._queue_steps(now)
        if self._limiter is not None:  # which passes over models that nothing waits for
            for version in self._dirty:
                if version.sequences is not None:
                    actions += self._end_sequences(version, version.sequences, now)
                    self._look_again(version, version.sequences)
        for version in self._dirty if self._limiter is None else self._limiter.turns(self._dirty, now):
            if version.sequences is not None:
                actions += self._dispatch_sequences(version, version.sequences, now)
                continue
            if version.queue:
                actions += self._give_work(version, now)
        self._dirty.clear()
        if self._releases.urgent:
            actions += [self._send(instance, [], ()) for instance in list(self._releases.urgent)]
        if self._waiting_calls:
            actions += self._fail_stuck(now)
            if self._answering.ensembles.has_news:
                actions += self._queue_steps(now)
        return actions

    def _give_work(self, version: ModelVersion, now: int) -> list[Action]:
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

    def _make_room(self, version: ModelVersion, now: int) -> list[Action]:
        """In a queue that is full before the turn ends: who would be out of it then goes now. Else a burst would be
        refused what an instance has room for."""
        if version not in self._dirty or self._limiter is not None:
            return []
        return self._expire(now) + self._give_work(version, now)

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

    def _queue_steps(self, now: int) -> list[Action]:
        """What ensembles want done since the last turn; of some steps it is known at once that they fail."""
        ensembles = self._answering.ensembles
        actions = self._cancel_all(ensembles.take_unwanted(), now)
        while opened := ensembles.take_opened():
            for version, pending in opened:
                if not ensembles.is_wanted(pending):
                    gone = refusal(pending.request.id, Cancelled(""))
                    actions += self._answering.answer(version, pending, gone, "", (), now)
                    continue
                actions += self._enqueue(version, pending, now)
                if pending.waits:
                    self._waiting_calls.append(pending)
            actions += self._cancel_all(ensembles.take_unwanted(), now)
        return actions

    def _fail_stuck(self, now: int) -> list[Action]:
        """A call that closes a circle of calls, each waiting for the next, fails instead of hanging all of them."""
        actions: list[Action] = []
        for pending in self._waiting_calls:
            found = self._answering.living.get(pending.request.id)
            if found is None or pending.holder or pending.request.id in self._answering.caching:
                continue
            if not self._is_stuck(pending):
                continue
            version = found[0]
            if version.plan is not None:  # one of its steps is stuck, too, and ends it
                continue
            cause = InternalError(
                f"Model {version.name} - Error when running inference: the call would wait for itself, since every "
                f"instance of model '{version.name}' waits for it; add instances to its instance_group"
            )
            actions += self._withdraw(version, pending, cause, now)
        self._waiting_calls.clear()
        return actions

    def _is_stuck(self, pending: Pending) -> bool:
        answering = self._answering
        return is_stuck(pending, answering.calls, answering.ensembles, answering.living, answering.caching)

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
                version.recorder.dequeued()
                requests.append(rebase(pending, frames) if pending.frames else pending.request)
            instance.outstanding.append(Dispatched(self._last_batch, pendings, now, places))
            sent.append(Batch(self._last_batch, requests, list(slots), places))
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

    # --- time -----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        if not self._again:
            return self._timeouts[0][0] if self._timeouts else None
        again = min(self._again.values())
        return min(again, self._timeouts[0][0]) if self._timeouts else again

    def deadline_passed(self, now: int) -> list[Action]:
        """Have a look at batches that have waited; requests that have waited for too long are rejected."""
        for version in [one for one, at in self._again.items() if at <= now]:
            del self._again[version]
            self.touch(version)
        return self._expire(now) + self._tell_releases(now)

    def _expire(self, now: int) -> list[Action]:
        actions: list[Action] = []
        while self._timeouts and self._timeouts[0][0] <= now:
            found = self._answering.living.get(heappop(self._timeouts)[1])
            if found is not None and not found[1].holder:
                version, pending = found
                self.touch(version)  # others come before it now, or may be a batch without it
                if not version.queue.expire(pending):
                    continue
                version.recorder.dequeued()
                expired = Unavailable("Request timeout expired")
                actions += self._answering.fail(version, pending, expired, now, REJECTED)
        return actions

    def starved(self, key: str, message: Starved, frames: Frames, now: int) -> list[Action]:
        """A batch that waits for somebody else has all the time that it wants."""
        found = self._roster.serving(key)
        if found is not None:
            self._releases.starved(found[1])
            self._limits.done(key)
        return []

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert self._pressure.queued == sum(one.recorder.pending for one in self._registry)

    def _tell_releases(self, now: int) -> list[Action]:
        """To stubs that have got no work to tell it with."""
        return [self._send(instance, [], ()) for instance in self._releases.due(now)]

    def _send(
        self, instance: Instance, batches: list[Batch], frames: Frames, paced: Sequence[tuple[int, int]] = ()
    ) -> Send:
        message = Execute(EXECUTE, batches, self._releases.take(instance), list(paced))
        return Send(instance.key, message, frames, instance.shared)


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


def _refused(key: str, message: Call, error: ServingError) -> Send:
    return Send(key, Answered(ANSWERED, message.call, refusal(0, error), ""))


def _all_unwanted(pendings: Iterable[Pending]) -> bool:
    return all(pending.unwanted for pending in pendings)


def rebase(pending: Pending, frames: list[memoryview | bytes]) -> Request:
    """The request with its inline tensors moved to the end of ``frames``, which grows by them."""
    first = len(frames)
    frames.extend(pending.frames)
    inputs = [
        tensor if isinstance(tensor.place, Handle) else tensor._replace(place=first + tensor.place)
        for tensor in pending.request.inputs
    ]
    return pending.request._replace(inputs=inputs)
