"""Every decision of the broker: events in, actions out. No socket, clock, thread, file or await.

A request has exactly one terminal transition, where it leaves ``_pending``: in ``_executed`` if ``execute`` returned
its only response, in ``_responded`` if a response sender ended it, else in ``_fail``. Loading is in startup.py, what
becomes of a dead instance in recovery.py, calls between models in calls.py; this file is the path of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from broker.calls import Calls, released
from broker.deadlock import is_stuck
from broker.events import (
    Action,
    Answer,
    AskedReady,
    Cancelled,
    DeadlinePassed,
    Event,
    Kill,
    LoadModels,
    ModelSaid,
    OutputsRead,
    Say,
    Send,
    StopServing,
    StubDied,
    StubSaid,
    Submitted,
    TellReady,
)
from broker.instance import Dispatched, IllegalTransition, Instance, InstanceEvent, Open, Timing, not_healthy
from broker.iterative import again, begin
from broker.model import ModelVersion, VersionState
from broker.queue import Caller, Frames, Pending
from broker.readiness import Readiness
from broker.recovery import Recovery
from broker.registry import Registry
from broker.roster import Roster
from broker.scheduler import assign
from broker.settings import BrokerSettings
from broker.startup import Startup, end_processes
from metrics.recorder import BACKEND, CANCELED, Recorder
from protocol.errors import STOPPING, ErrorKind, InternalError, ServingError, Unavailable
from protocol.errors import Cancelled as Cancellation
from protocol.messages import (
    ANSWERED,
    CANCEL,
    EXECUTE,
    Answered,
    Batch,
    Call,
    Cancel,
    CancelCall,
    Configured,
    Execute,
    Executed,
    Failed,
    Goodbye,
    Handle,
    Hello,
    IsReady,
    Log,
    Ready,
    Request,
    Response,
    Results,
)


class Core:
    """``handle`` each event, then ``dispatch`` once per turn: what came in together leaves together."""

    def __init__(
        self, settings: BrokerSettings, recorder: Recorder, probe: Handle, nonce: bytes, epoch_ms: int
    ) -> None:
        """``epoch_ms`` turns ``now`` into wall-clock milliseconds; ``probe`` and ``nonce`` are for Load."""
        self._settings = settings
        self._epoch_ms = epoch_ms
        self.registry = Registry()
        self._roster = Roster()
        self._startup = Startup(settings, self.registry, self._roster, recorder, probe, nonce)
        self._recovery = Recovery(settings, self._roster, self._fail, self._count_ended)
        self._calls = Calls(self.registry)
        self.readiness = Readiness(settings.is_ready_timeout_ns)
        self._waiting_calls: list[Pending] = []  # that came in this turn
        self._pending: dict[int, tuple[ModelVersion, Pending]] = {}
        self._dirty: dict[ModelVersion, None] = {}  # work may have become assignable; an ordered set
        self._unsent_releases: dict[Instance, int] = {}  # when the oldest lease must be told at the latest
        self._uncounted: list[tuple[ModelVersion, Instance, Dispatched, Executed, int]] = []
        self._last_batch = 0
        self._stopping = False
        self._on_event: dict[type, Callable[[Any, int], list[Action]]] = {
            Submitted: self._submitted,
            Cancelled: self._cancelled,
            OutputsRead: self._outputs_read,
            StubSaid: self._stub_said,
            StubDied: self._stub_died,
            LoadModels: self._load_models,
            DeadlinePassed: self._deadline_passed,
            AskedReady: self._asked_ready,
            StopServing: self._stop_serving,
        }
        self._on_message: dict[type, Callable[[str, Any, Frames, int], list[Action]]] = {
            Results: self._results,
            Call: self._call,
            CancelCall: self._cancel_call,
            IsReady: lambda key, message, frames, now: self.readiness.said(key, message, now),
            Log: self._log,
            Goodbye: self._goodbye,
            Hello: self._loading_message,
            Ready: self._loading_message,
            Configured: self._loading_message,
            Failed: self._loading_message,
        }

    def handle(self, event: Event, now: int) -> list[Action]:
        return self._on_event[type(event)](event, now)

    # --- a request comes ------------------------------------------------------------------------------------------

    def _submitted(self, event: Submitted, now: int) -> list[Action]:
        request = event.request
        try:
            if self._stopping:  # before the look-up: a model that is unloaded already is not unknown
                raise Unavailable(STOPPING)
            version = self.registry.find(request.model, request.version)
        except ServingError as error:
            return [Answer(Pending(request, event.frames, event.sink, 1, event.arrived_ns), refusal(request.id, error))]
        pending = Pending(request, event.frames, event.sink, version.batch_size(request), event.arrived_ns)
        return self._enqueue(version, pending, now)

    def _call(self, key: str, message: Call, frames: Frames, now: int) -> list[Action]:
        """A model's own request; it comes while the server stops, too, or what is in flight could not be finished."""
        found = self._roster.serving(key)
        if found is None:
            return []
        instance = found[1]
        parents = instance.requests_of(message.batch)
        caller = Caller(key, message.call, instance.index, instance.shared, message.waits, parents)
        try:
            version, pending = self._calls.open(message, caller, frames, now)
        except ServingError as error:
            return [Send(key, Answered(ANSWERED, message.call, refusal(0, error), ""))]
        if message.waits:
            self._waiting_calls.append(pending)
        return self._enqueue(version, pending, now)

    def _enqueue(self, version: ModelVersion, pending: Pending, now: int) -> list[Action]:
        self._pending[pending.request.id] = (version, pending)
        dead = version.dead_instance()
        if dead is not None:
            return self._fail(version, pending, not_healthy(dead.spec.name), now)
        if version.config.iterative:
            begin(version, pending)
        self._queue(version, pending)
        return []

    def _queue(self, version: ModelVersion, pending: Pending) -> None:
        version.queue.push(pending)
        version.recorder.queued()
        self._dirty[version] = None

    # --- nobody wants it any more ---------------------------------------------------------------------------------

    def _cancelled(self, event: Cancelled, now: int) -> list[Action]:
        return self._cancel(event.request, now)

    def _cancel_call(self, key: str, message: CancelCall, frames: Frames, now: int) -> list[Action]:
        pending = self._calls.find(key, message.call)
        return [] if pending is None else self._cancel(pending.request.id, now)

    def _cancel(self, request: int, now: int) -> list[Action]:
        """In the queue it ends at once. The instance that holds it is told, and so are those that it waits for."""
        found = self._pending.get(request)
        if found is None or found[1].unwanted:
            return []
        version, pending = found
        if not pending.holder:
            version.queue.cancel(pending)
            version.recorder.dequeued()
            return self._fail(version, pending, Cancellation(""), now)
        pending.unwanted = True
        holder = next(one for one in version.instances if one.index == pending.holder)
        actions: list[Action] = [Send(holder.key, Cancel(CANCEL, [request]))]
        for call in self._calls.of(holder.index):
            if call.caller is not None and pending in call.caller.parents and _all_unwanted(call.caller.parents):
                actions += self._cancel(call.request.id, now)
        return actions

    # --- it goes to an instance -----------------------------------------------------------------------------------

    def dispatch(self, now: int) -> list[Action]:
        """Ends a turn: one message for each instance that gets work."""
        if self._uncounted:
            self._count()
        actions: list[Action] = []
        for version in self._dirty:
            if not version.queue:
                continue
            for instance, batches in assign(version, self._settings):
                actions.append(self._execute(version, instance, batches, now))
        self._dirty.clear()
        if self._waiting_calls:
            actions += self._fail_stuck(now)
        return actions + self._finish_idle() if self._stopping else actions

    def _fail_stuck(self, now: int) -> list[Action]:
        """A call that closes a circle of calls, each waiting for the next, fails instead of hanging all of them."""
        actions: list[Action] = []
        for pending in self._waiting_calls:
            found = self._pending.get(pending.request.id)
            if found is None or pending.holder or not is_stuck(pending, self._calls, self._pending):
                continue
            version = found[0]
            version.queue.cancel(pending)
            version.recorder.dequeued()
            cause = InternalError(
                f"Model {version.name} - Error when running inference: the call would wait for itself, since every "
                f"instance of model '{version.name}' waits for it; add instances to its instance_group"
            )
            actions += self._fail(version, pending, cause, now)
        self._waiting_calls.clear()
        return actions

    def _execute(self, version: ModelVersion, instance: Instance, batches: list[list[Pending]], now: int) -> Send:
        sent = []
        frames: list[memoryview | bytes] = []
        for pendings in batches:
            self._last_batch += 1
            requests = []
            for pending in pendings:
                pending.holder = instance.index
                version.recorder.dequeued()
                requests.append(rebase(pending, frames) if pending.frames else pending.request)
            instance.outstanding.append(Dispatched(self._last_batch, pendings, now))
            sent.append(Batch(self._last_batch, requests))
        return self._send(instance, sent, frames)

    def _send(self, instance: Instance, batches: list[Batch], frames: Frames) -> Send:
        message = Execute(EXECUTE, batches, instance.released)
        instance.released = []
        self._unsent_releases.pop(instance, None)
        return Send(instance.key, message, frames, instance.shared)

    # --- its results come back ------------------------------------------------------------------------------------

    def _stub_said(self, event: StubSaid, now: int) -> list[Action]:
        try:
            return self._on_message[type(event.message)](event.key, event.message, event.frames, now)
        except IllegalTransition as fault:
            return breach(event.key, fault)

    def _results(self, key: str, message: Results, frames: Frames, now: int) -> list[Action]:
        found = self._roster.serving(key)
        if found is None:
            return []
        version, instance = found
        actions: list[Action] = []
        try:
            for response in message.responses:
                actions += self._responded(version, instance, response, frames, now)
            for executed in message.executed:
                actions += self._executed(version, instance, executed, frames, now)
        except IllegalTransition as fault:  # what it answered before is answered
            return actions + breach(key, fault)
        for request in message.released:
            retained = instance.retained.pop(request, None)
            if retained is not None:
                actions.append(released(retained))
        for origin, lease in self._calls.read(instance.index, message.read):
            actions += self._outputs_read(OutputsRead(origin, lease), now)
        self._dirty[version] = None
        return actions

    def _executed(
        self, version: ModelVersion, instance: Instance, executed: Executed, frames: Frames, now: int
    ) -> list[Action]:
        """``execute`` has returned. Most often each request of the batch ends by the one response that it returned;
        that they count is left to ``dispatch``."""
        dispatched = instance.take(executed)
        if not _answers_all(dispatched, executed):
            instance.outstanding.appendleft(dispatched)
            return self._executed_in_part(version, instance, executed, frames, now)
        self._uncounted.append((version, instance, dispatched, executed, now))
        actions: list[Action] = []
        for pending, response in zip(dispatched.requests, executed.responses, strict=True):
            if response.retained:
                instance.retained[response.request] = pending
            del self._pending[response.request]
            pending.answered = True
            actions += self._answer(version, pending, response, instance.key, frames, now)
            if response.error is not None and response.error[0] != ErrorKind.CANCELLED:
                actions.append(failure(version, pending, response.error[1]))
        return actions

    def _executed_in_part(
        self, version: ModelVersion, instance: Instance, executed: Executed, frames: Frames, now: int
    ) -> list[Action]:
        """Response senders have answered requests of the batch, or will; or the model wants them again."""
        actions: list[Action] = []
        for response in executed.responses:
            actions += self._responded(version, instance, response, frames, now)
        dispatched = instance.outstanding.popleft()
        _, input_ns, infer_ns, output_ns, _, _, rescheduled = executed
        instance.observe(input_ns + infer_ns + output_ns)
        version.recorder.executed(dispatched.batch_size, input_ns, infer_ns, output_ns)
        timing = Timing(dispatched.sent_ns, input_ns, infer_ns, output_ns)
        for pending, ended_ns in dispatched.ended:
            self._count_ended(version, pending, timing, ended_ns)
        for pending in dispatched.unanswered():
            if pending.request.id in rescheduled:
                actions += self._again(version, pending, now)
            else:
                instance.open[pending.request.id] = Open(pending, executed.batch, timing)
        return actions

    def _responded(
        self, version: ModelVersion, instance: Instance, response: Response, frames: Frames, now: int
    ) -> list[Action]:
        """One response of any number; the final one ends the request."""
        place = instance.held(response.request)
        pending = self._pending[response.request][1]
        actions: list[Action] = []
        if response.error is not None and pending.error is None:
            pending.error = response.error
            if response.error[0] != ErrorKind.CANCELLED:
                actions.append(failure(version, pending, response.error[1]))
        if response.final:
            instance.answered = True
            if response.retained:
                instance.retained[response.request] = pending
            del self._pending[response.request]
            pending.answered = True
            if isinstance(place, Open):
                del instance.open[response.request]
                self._count_ended(version, pending, place.timing, now)
            else:
                place.ended.append((pending, now))
        return self._answer(version, pending, response, instance.key, frames, now) + actions

    def _again(self, version: ModelVersion, pending: Pending, now: int) -> list[Action]:
        if not version.config.iterative:
            cause = "to reschedule a request needs sequence_batching { iterative_sequence: true } in the configuration"
            return self._fail(version, pending, InternalError(f"model '{version.name}': {cause}"), now)
        if pending.unwanted:
            return self._fail(version, pending, Cancellation(""), now)
        pending.holder = 0
        again(pending)
        self._queue(version, pending)
        return []

    def _answer(
        self, version: ModelVersion, pending: Pending, response: Response, origin: str, frames: Frames, now: int
    ) -> list[Action]:
        if pending.caller is None:
            return [Answer(pending, response, origin, frames)]
        actions, is_read = self._calls.answer(version, pending, response, origin, frames)
        if is_read and response.lease:
            actions += self._outputs_read(OutputsRead(origin, response.lease), now)
        return actions

    def _count(self) -> None:
        """Statistics of what has been executed: at the end of the turn, when the clients have their answers."""
        for version, instance, dispatched, executed, now in self._uncounted:
            _, input_ns, infer_ns, output_ns, _, responses, _ = executed
            instance.observe(input_ns + infer_ns + output_ns)
            version.recorder.executed(dispatched.batch_size, input_ns, infer_ns, output_ns)
            timing = Timing(dispatched.sent_ns, input_ns, infer_ns, output_ns)
            for pending, response in zip(dispatched.requests, responses, strict=True):
                pending.error = response.error
                self._count_ended(version, pending, timing, now)
        self._uncounted.clear()

    def _count_ended(self, version: ModelVersion, pending: Pending, timing: Timing, now: int) -> None:
        """A request that its model has answered; an error among its responses makes it a failure."""
        total_ns = now - pending.arrived_ns
        if pending.error is not None:
            version.recorder.failed(REASONS.get(pending.error[0], BACKEND), total_ns)
            return
        sent_ns, input_ns, infer_ns, output_ns = timing
        queue_ns = sent_ns - pending.arrived_ns
        now_ms = now // 1_000_000 + self._epoch_ms
        version.recorder.succeeded(pending.batch_size, total_ns, queue_ns, input_ns, infer_ns, output_ns, now_ms)

    def _fail(self, version: ModelVersion, pending: Pending, error: ServingError, now: int) -> list[Action]:
        """A request ends that no instance has answered."""
        del self._pending[pending.request.id]
        pending.answered = True
        reason = REASONS.get(error.kind, BACKEND)
        version.recorder.failed(reason, now - pending.arrived_ns)
        actions = self._answer(version, pending, refusal(pending.request.id, error), "", (), now)
        return actions if reason == CANCELED else [*actions, failure(version, pending, str(error))]

    def _outputs_read(self, event: OutputsRead, now: int) -> list[Action]:
        found = self._roster.serving(event.origin)
        if found is not None:
            instance = found[1]
            instance.released.append(event.lease)
            self._unsent_releases.setdefault(instance, now + self._settings.release_delay_ns)
        return []

    def _log(self, key: str, message: Log, frames: Frames, now: int) -> list[Action]:
        return [ModelSaid(message.level, message.file, message.line, message.text)]

    # --- coming up, dying, ending ---------------------------------------------------------------------------------

    def _load_models(self, event: LoadModels, now: int) -> list[Action]:
        return self._startup.load(event, now)

    def _loading_message(self, key: str, message: Any, frames: Frames, now: int) -> list[Action]:
        found = self._roster.serving(key)
        if found is not None:
            self._dirty[found[0]] = None
        return self._startup.said(key, message, now)

    def _stub_died(self, event: StubDied, now: int) -> list[Action]:
        configuring, found = self._roster.configuring(event.key), self._roster.serving(event.key)
        self._roster.remove(event.key)
        if configuring is not None:
            if configuring.configuring != event.key:  # it had said all
                return []
            configuring.configuring = None
            return self._startup.process_died(configuring, configuring.name, event, now)
        if found is None:
            return []
        version, instance = found
        self._unsent_releases.pop(instance, None)
        self._dirty[version] = None
        actions = self._end_calls(instance, now) + self._instance_died(version, instance, event, now)
        return actions + self.readiness.died(event.key, now)

    def _end_calls(self, instance: Instance, now: int) -> list[Action]:
        """What a dead process wanted of other models, and what it has had from them."""
        calls, leases = self._calls.died(instance.index)
        actions: list[Action] = []
        for origin, lease in leases:
            actions += self._outputs_read(OutputsRead(origin, lease), now)
        for call in calls:
            actions += self._cancel(call.request.id, now)
        return actions

    def _instance_died(self, version: ModelVersion, instance: Instance, event: StubDied, now: int) -> list[Action]:
        if version.state is VersionState.LOADING:
            failed = self._startup.process_died(version, instance.spec.name, event, now)
            instance.on(InstanceEvent.DIED)
            return failed
        return self._recovery.died(version, instance, event, now)

    def _goodbye(self, key: str, message: Goodbye, frames: Frames, now: int) -> list[Action]:
        found = self._roster.serving(key)
        if found is None or not message.error:
            return []
        fields = {"instance": found[1].spec.name, "cause": message.error}
        return [Say("info", "finalize raised", fields)]

    def _stop_serving(self, event: StopServing, now: int) -> list[Action]:
        self._stopping = True  # dispatch does the rest
        return []

    def _finish_idle(self) -> list[Action]:
        """While stopping: once nothing is in flight, for it might call any model, all are told to finalize."""
        actions: list[Action] = []
        for version in self.registry:
            if version.state is VersionState.READY and not self._pending:
                version.state = VersionState.UNLOADING
                actions += end_processes(version, finish=True)
            elif version.state is VersionState.LOADING:
                version.state, version.reason = VersionState.UNAVAILABLE, "unloaded"
                actions += end_processes(version, finish=False)
        return actions

    # --- time -----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When DeadlinePassed is due, in the clock of ``now``."""
        deadlines = [*self._unsent_releases.values()]
        deadlines += filter(None, (self._recovery.next_deadline(), self.readiness.next_deadline()))
        return min(deadlines, default=None)

    def _deadline_passed(self, event: DeadlinePassed, now: int) -> list[Action]:
        due = [instance for instance, at in self._unsent_releases.items() if at <= now]
        actions: list[Action] = [self._send(instance, [], ()) for instance in due]
        return actions + self._recovery.restart_due(now) + self.readiness.give_up(now)

    # --- is it ready? ---------------------------------------------------------------------------------------------

    def _asked_ready(self, event: AskedReady, now: int) -> list[Action]:
        if event.version is not None:
            return self.readiness.ask_all([event.version], event.done, now)
        strict = self._settings.strict_readiness
        if self._stopping or (strict and not self.registry.all_loaded()):
            return [TellReady(event.done, False)]
        serving = [one for one in self.registry if one.state is VersionState.READY]
        return self.readiness.ask_all(serving if strict else [], event.done, now)

    # --- what the shell and the status pages ask ------------------------------------------------------------------

    @property
    def loading(self) -> bool:
        return not self._startup.idle

    @property
    def stopping(self) -> bool:
        return self._stopping

    @property
    def processes(self) -> int:
        return len(self._roster)

    def in_flight(self) -> dict[str, int]:
        """Requests in flight of each model version that has any, by "name (version n)" as Triton logs it."""
        counts = {f"'{one.name}' (version {one.version})": one.in_flight() for one in self.registry}
        return {name: count for name, count in counts.items() if count}

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken; tests call it after every event."""
        self.registry.check()
        held = sum(one.in_flight() for one in self.registry)
        assert held == len(self._pending), (held, len(self._pending))
        self._calls.check(set(self._pending))
        self.readiness.check()


# Why a request failed, for nv_inference_request_failure; every other kind is the model's own (BACKEND).
REASONS = {int(ErrorKind.CANCELLED): CANCELED}


def _answers_all(dispatched: Dispatched, executed: Executed) -> bool:
    """Whether each request of the batch has its one and only response in it."""
    answered = [response.request for response in executed.responses if response.final]
    return (
        answered == [pending.request.id for pending in dispatched.requests]
        and len(answered) == len(executed.responses)
        and not dispatched.ended
        and all(pending.error is None for pending in dispatched.requests)
    )


def _all_unwanted(pendings: Iterable[Pending]) -> bool:
    return all(pending.unwanted for pending in pendings)


def breach(key: str, fault: IllegalTransition) -> list[Action]:
    return [Kill(key), Say("error", "a stub broke the protocol", {"cause": str(fault)})]


def refusal(request: int, error: ServingError) -> Response:
    return Response(request, [], error=(int(error.kind), str(error)))


def failure(version: ModelVersion, pending: Pending, text: str) -> Say:
    fields = {
        "model": version.name,
        "version": version.version,
        "request_id": pending.request.request_id,
        "cause": text,
    }
    return Say("error", "request failed", fields)


def rebase(pending: Pending, frames: list[memoryview | bytes]) -> Request:
    """The request with its inline tensors moved to the end of ``frames``, which grows by them."""
    first = len(frames)
    frames.extend(pending.frames)
    inputs = [
        tensor if isinstance(tensor.place, Handle) else tensor._replace(place=first + tensor.place)
        for tensor in pending.request.inputs
    ]
    return pending.request._replace(inputs=inputs)
