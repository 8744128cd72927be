"""Requests until they go to an instance: they come, stand in a queue, and may be given up there or wait too long."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from broker import sequencing
from broker.answering import Answering, refusal
from broker.dispatcher import Dispatcher
from broker.events import Action, Answer, LookedUp, Send, Submitted
from broker.iterative import begin
from broker.model import ModelVersion
from broker.queue import Pending
from broker.registry import Registry
from broker.settings import BrokerSettings
from metrics.pressure import Pressure
from metrics.recorder import REJECTED
from protocol.errors import STOPPING, Cancelled, InternalError, ServingError, Unavailable
from protocol.messages import CANCEL, SEQUENCE_START, Cancel


class Requests:
    """What came in together leaves together: ``dispatch`` ends a turn."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        answering: Answering,
        dispatcher: Dispatcher,
        pressure: Pressure,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._answering = answering
        self._dispatcher = dispatcher
        self._pressure = pressure
        self.waiting_calls: list[Pending] = []  # that came in this turn
        self._timeouts: list[tuple[int, int]] = []  # a heap: when a request has waited for too long, and its id
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
        return self.enqueue(version, pending, now)

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

    def enqueue(self, version: ModelVersion, pending: Pending, now: int, missed: bool = False) -> list[Action]:
        """``missed``: it is not in the cache."""
        if version.cached and not missed:
            return self._look_up(version, pending)
        queue = version.queue
        if queue.limited and queue.is_full(pending.request):
            made = self._make_room(version, now)
            if made:
                return made + self.enqueue(version, pending, now, missed)
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
        unserved = version.unserved()
        if unserved is not None:
            return self._answering.fail(version, pending, unserved, now)
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
                self.waiting_calls.append(pending)
            actions += self.enqueue(version, pending, now, missed=True)
        return actions

    def _make_room(self, version: ModelVersion, now: int) -> list[Action]:
        """In a queue that is full before the turn ends: who would be out of it then goes now. Else a burst would be
        refused what an instance has room for."""
        if not self._dispatcher.may_give_now(version):
            return []
        return self._expire(now) + self._dispatcher.give_work(version, now)

    def _queue(self, version: ModelVersion, pending: Pending, now: int) -> list[Action]:
        version.recorder.queued()
        self._dispatcher.dirty[version] = None
        if version.sequences is None:
            version.queue.push(pending)
            return []
        return [sequencing.cut_short(version, pending)] if version.sequences.push(pending, now) else []

    # --- nobody wants it any more ---------------------------------------------------------------------------------

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
        self._dispatcher.touch(version)  # those behind it may be a batch without it
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

    # --- the turn ends --------------------------------------------------------------------------------------------

    def dispatch(self, now: int) -> list[Action]:
        """No request goes to an instance too late, though the time that it has be shorter than the turn."""
        actions = self._expire(now)
        actions += self._give_work(now)
        while self.waiting_calls:
            actions += self._fail_stuck(now)
            actions += self._give_work(now)
        return actions

    def _give_work(self, now: int) -> list[Action]:
        actions = self._queue_steps(now) if self._answering.ensembles.has_news else []
        actions += self._dispatcher.dispatch(now)
        return actions

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
                actions += self.enqueue(version, pending, now)
                if pending.waits:
                    self.waiting_calls.append(pending)
            actions += self._cancel_all(ensembles.take_unwanted(), now)
        return actions

    def _fail_stuck(self, now: int) -> list[Action]:
        """A call that closes a circle of calls, each waiting for the next, fails instead of hanging all of them."""
        actions: list[Action] = []
        for pending in self.waiting_calls:
            found = self._answering.living.get(pending.request.id)
            if found is None or pending.holder or pending.request.id in self._answering.caching:
                continue
            why = self._dispatcher.why_stuck(pending)
            version = found[0]
            if not why or version.plan is not None:  # one of its steps is stuck, too, and ends it
                continue
            cause = InternalError(
                f"Model {version.name} - Error when running inference: the call would wait for itself, since {why}"
            )
            actions += self._withdraw(version, pending, cause, now)
            if self._answering.ensembles.has_news:  # its end has made room: those that come now may be stuck, too
                actions += self._queue_steps(now)
        self.waiting_calls.clear()
        return actions

    # --- time -----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        again_ns = self._dispatcher.next_deadline()
        if not self._timeouts:
            return again_ns
        return self._timeouts[0][0] if again_ns is None else min(again_ns, self._timeouts[0][0])

    def deadline_passed(self, now: int) -> list[Action]:
        """Requests that have waited for too long are rejected; batches that have are looked at."""
        return self._expire(now) + self._dispatcher.deadline_passed(now)

    def _expire(self, now: int) -> list[Action]:
        actions: list[Action] = []
        while self._timeouts and self._timeouts[0][0] <= now:
            found = self._answering.living.get(heappop(self._timeouts)[1])
            if found is not None and not found[1].holder:
                version, pending = found
                self._dispatcher.touch(version)  # others come before it now, or may be a batch without it
                if not version.queue.expire(pending):
                    continue
                version.recorder.dequeued()
                expired = Unavailable("Request timeout expired")
                actions += self._answering.fail(version, pending, expired, now, REJECTED)
        return actions

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert self._pressure.queued == sum(one.recorder.pending for one in self._registry)


def _all_unwanted(pendings: Iterable[Pending]) -> bool:
    return all(pending.unwanted for pending in pendings)
