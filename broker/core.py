"""Every decision of the broker: events in, actions out. No socket, clock, thread, file or await.

A request has exactly one terminal transition, where it leaves ``_pending``: in ``_executed`` or in ``_fail``. Loading
is in startup.py, what becomes of a dead instance in recovery.py; this file is the path of a request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.events import (
    Action,
    Answer,
    Cancelled,
    DeadlinePassed,
    Event,
    InputsReleased,
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
)
from broker.instance import Dispatched, IllegalTransition, Instance, InstanceEvent, not_healthy
from broker.model import ModelVersion, VersionState
from broker.queue import Frames, Pending
from broker.recovery import Recovery
from broker.registry import Registry
from broker.roster import Roster
from broker.scheduler import assign
from broker.settings import BrokerSettings
from broker.startup import Startup, end_processes
from metrics.recorder import BACKEND, CANCELED, Recorder
from protocol.errors import STOPPING, ErrorKind, ServingError, Unavailable
from protocol.errors import Cancelled as Cancellation
from protocol.messages import (
    EXECUTE,
    Batch,
    Configured,
    Execute,
    Executed,
    Failed,
    Goodbye,
    Handle,
    Hello,
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
        self._recovery = Recovery(settings, self._roster, self._fail)
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
            StopServing: self._stop_serving,
        }
        self._on_message: dict[type, Callable[[str, Any, Frames, int], list[Action]]] = {
            Results: self._results,
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
        batch_size = request.inputs[0].shape[0] if version.config.max_batch_size > 0 and request.inputs else 1
        pending = Pending(request, event.frames, event.sink, batch_size, event.arrived_ns)
        self._pending[request.id] = (version, pending)
        dead = version.dead_instance()
        if dead is not None:
            return self._fail(version, pending, not_healthy(dead.spec.name), now)
        version.queue.push(pending)
        version.recorder.queued()
        self._dirty[version] = None
        return []

    def _cancelled(self, event: Cancelled, now: int) -> list[Action]:
        found = self._pending.get(event.request)
        if found is None or found[1].dispatched or found[1].cancelled:
            return []
        version, pending = found
        version.queue.cancel(pending)
        version.recorder.dequeued()
        return self._fail(version, pending, Cancellation(""), now)

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
        return actions + self._finish_idle() if self._stopping else actions

    def _execute(self, version: ModelVersion, instance: Instance, batches: list[list[Pending]], now: int) -> Send:
        sent = []
        frames: list[memoryview | bytes] = []
        for pendings in batches:
            self._last_batch += 1
            requests = []
            for pending in pendings:
                pending.dispatched = True
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
        for executed in message.executed:
            try:
                actions += self._executed(version, instance, executed, frames, now)
            except IllegalTransition as fault:  # what it answered before is answered
                return actions + breach(key, fault)
        for request in message.released:
            retained = instance.retained.pop(request, None)
            if retained is not None:
                actions.append(InputsReleased(retained))
        self._dirty[version] = None
        return actions

    def _executed(
        self, version: ModelVersion, instance: Instance, executed: Executed, frames: Frames, now: int
    ) -> list[Action]:
        """The requests of a batch end, each by its response; that they count is left to ``dispatch``."""
        dispatched = instance.take(executed)
        self._uncounted.append((version, instance, dispatched, executed, now))
        actions: list[Action] = []
        for pending, response in zip(dispatched.requests, executed.responses, strict=True):
            if response.retained:
                instance.retained[response.request] = pending
            del self._pending[response.request]
            actions.append(Answer(pending, response, instance.key, frames))
            if response.error is not None and response.error[0] != ErrorKind.CANCELLED:
                actions.append(failure(version, pending, response.error[1]))
        return actions

    def _count(self) -> None:
        """Statistics of what has been executed: at the end of the turn, when the clients have their answers."""
        for version, instance, dispatched, executed, now in self._uncounted:
            recorder = version.recorder
            _, input_ns, infer_ns, output_ns, _, responses, _ = executed
            instance.observe(input_ns + infer_ns + output_ns)
            recorder.executed(dispatched.batch_size, input_ns, infer_ns, output_ns)
            now_ms = now // 1_000_000 + self._epoch_ms
            for pending, response in zip(dispatched.requests, responses, strict=True):
                total_ns = now - pending.arrived_ns
                if response.error is not None:
                    recorder.failed(REASONS.get(response.error[0], BACKEND), total_ns)
                    continue
                queue_ns = dispatched.sent_ns - pending.arrived_ns
                recorder.succeeded(pending.batch_size, total_ns, queue_ns, input_ns, infer_ns, output_ns, now_ms)
        self._uncounted.clear()

    def _fail(self, version: ModelVersion, pending: Pending, error: ServingError, now: int) -> list[Action]:
        """A request ends that no instance has answered."""
        del self._pending[pending.request.id]
        reason = REASONS.get(error.kind, BACKEND)
        version.recorder.failed(reason, now - pending.arrived_ns)
        answer = Answer(pending, refusal(pending.request.id, error))
        return [answer] if reason == CANCELED else [answer, failure(version, pending, str(error))]

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
        """While stopping: a version without work in flight is finished, its instances told to finalize."""
        actions: list[Action] = []
        for version in self.registry:
            if version.state is VersionState.READY and not version.in_flight():
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
        restart = self._recovery.next_deadline()
        if restart is not None:
            deadlines.append(restart)
        return min(deadlines, default=None)

    def _deadline_passed(self, event: DeadlinePassed, now: int) -> list[Action]:
        due = [instance for instance, at in self._unsent_releases.items() if at <= now]
        actions: list[Action] = [self._send(instance, [], ()) for instance in due]
        return actions + self._recovery.restart_due(now)

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


# Why a request failed, for nv_inference_request_failure; every other kind is the model's own (BACKEND).
REASONS = {int(ErrorKind.CANCELLED): CANCELED}


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
