"""Every decision of the broker: events in, actions out. No socket, clock, thread, file or await.

This file says who decides what. requests.py queues what comes, and what models ask for by way of arriving_calls.py;
dispatcher.py sends it to an instance, answering.py its answers back. asked.py is told to load and unload, control.py
does, by startup.py and serving.py; recovery.py is for what becomes of a dead instance, time_limits.py for one that
hangs, readiness.py for models that are asked whether they are ready, custom_metrics.py for their metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from broker.adoption import Adoption
from broker.answering import Answering, breach
from broker.arriving_calls import ArrivingCalls
from broker.asked import Asked
from broker.control import ModelControl
from broker.custom_metrics import MetricsOfModels
from broker.dispatcher import Dispatcher
from broker.events import (
    Action,
    AskedReady,
    ClientGone,
    DeadlinePassed,
    Event,
    HostJoined,
    HostLeaves,
    HostLost,
    Kept,
    LoadModel,
    LoadModels,
    LookedUp,
    ModelSaid,
    OutputsRead,
    Override,
    Polled,
    Prepared,
    Reload,
    Removed,
    Say,
    StartServing,
    StopServing,
    StubDied,
    StubSaid,
    Submitted,
    TellDone,
    TellReady,
    UnloadModel,
)
from broker.host_table import HostTable
from broker.hosts import Hosts
from broker.inherited import InheritedLeases
from broker.instance import IllegalTransition, Instance, InstanceEvent
from broker.load_lines import LoadLines
from broker.model import ModelVersion, VersionState
from broker.processes import end_processes
from broker.queue import Frames
from broker.rate_limiter import RateLimiter
from broker.readiness import Readiness
from broker.recovery import Recovery
from broker.registry import Registry
from broker.releases import Releases
from broker.requests import Requests
from broker.response_cache import ResponseCache
from broker.roster import Roster
from broker.serving import Serving
from broker.settings import BrokerSettings
from broker.startup import Startup
from broker.time_limits import TimeLimits
from metrics.cache_record import CacheRecord
from metrics.recorder import Recorder
from protocol.messages import (
    Call,
    CancelCall,
    Configured,
    Control,
    DropMetrics,
    Failed,
    Goodbye,
    Handle,
    Hello,
    IsReady,
    Log,
    NewFamily,
    NewMetric,
    Ready,
    Results,
    Starved,
    UpdateMetric,
)


class Core:
    """``handle`` each event, then ``dispatch`` once per turn: what came in together leaves together."""

    def __init__(
        self,
        settings: BrokerSettings,
        recorder: Recorder,
        probe: Handle,
        nonce: bytes,
        epoch_ms: int,
        cache: ResponseCache | None = None,
    ) -> None:
        """``epoch_ms`` turns ``now`` into wall-clock milliseconds; ``probe`` and ``nonce`` are for Load."""
        self._settings = settings
        self.on_change: Callable[[], None] = lambda: None  # another model serves, or one does no more
        self.registry = Registry(settings.namespaces)
        self._roster = Roster(settings.first_number)
        self._releases = Releases(settings.release_delay_ns)
        kept = cache or ResponseCache("", CacheRecord(0))
        unread, first = settings.max_unread_bytes, settings.first_number
        self._answering = Answering(self.registry, self._roster, self._releases, kept, epoch_ms, unread, first)
        self.readiness = Readiness(settings.is_ready_timeout_ns)
        self._limits = TimeLimits()
        self._limiter = RateLimiter(settings.rate_limits) if settings.rate_limits is not None else None
        self._dispatcher = Dispatcher(
            settings, self._roster, self._releases, self._answering, self._limits, self._limiter
        )
        self._requests = Requests(settings, self.registry, self._answering, self._dispatcher, recorder.pressure)
        self._arriving_calls = ArrivingCalls(
            self.registry, self._roster, self._answering.calls, self._requests, self.readiness.ask
        )
        table = HostTable(settings.hosted, settings.gpus)
        adoption = self._adoption = Adoption(self._roster, self._answering)
        self._startup = Startup(
            settings,
            self.registry,
            self._roster,
            probe,
            nonce,
            self._limits,
            lambda *settled: self._control.settled(*settled),
            self._limiter,
            table,
            adoption,
        )
        self._recovery = Recovery(settings, self._roster, self._answering)
        self._serving = Serving(
            settings,
            self.registry,
            recorder,
            self._startup,
            self._answering.lends,
            self._models_change,
        )
        lines = LoadLines(self._roster, settings.namespaces)
        self.hosts = self._stub_hosts(table, adoption)
        self._control = ModelControl(self.registry, self._startup, self._serving, lines, self.hosts.fill)
        self._asked = Asked(
            settings, self.registry, self._roster, lines, self._serving, self._control, self.readiness.ask
        )
        self._metrics = MetricsOfModels(recorder.custom, self._roster)
        self._on_event = self._event_table()
        self._on_message = self._message_table()

    def _stub_hosts(self, table: HostTable, adoption: Adoption) -> Hosts:
        return Hosts(
            table,
            self.registry,
            self._roster,
            self._startup,
            adoption,
            self._serving.leaving,
            self._recovery,
            self._stub_died,
            self._dispatcher.touch,
            self._load_again,
            lambda model: self._control.is_loading(model),
        )

    def _load_again(self, model: str, override: Override | None, now: int) -> list[Action]:
        """Somebody has had it loaded by an earlier broker."""
        if not self._settings.explicit_control:
            return []
        actions = self._asked.load(LoadModel(self.registry.name_of(model), override, lambda error: None), now)
        refused = [str(one.error) for one in actions if isinstance(one, TellDone) and one.error is not None]
        return actions + [Say("error", "a model is gone", {"model": model, "cause": cause}) for cause in refused]

    def _event_table(self) -> dict[type, Callable[[Any, int], list[Action]]]:
        return {
            Submitted: self._requests.submitted,
            ClientGone: lambda event, now: self._requests.cancel(event.request, now),
            OutputsRead: self._outputs_read,
            StubSaid: self._stub_said,
            StubDied: self._stub_died,
            HostJoined: self._host_joined,
            HostLeaves: self.hosts.leaves,
            HostLost: self._host_lost,
            LookedUp: self._requests.looked_up,
            Kept: self._answering.caching.kept,
            LoadModels: self._control.load_all,
            LoadModel: self._asked.load,
            Reload: self._asked.reload,
            Removed: self._asked.removed,
            Polled: self._control.polled,
            UnloadModel: self._asked.unload,
            DeadlinePassed: self._deadline_passed,
            Prepared: self._startup.prepared,
            AskedReady: self._asked_ready,
            StartServing: self._asked.start,
            StopServing: self._stop_serving,
        }

    def _message_table(self) -> dict[type, Callable[[str, Any, Frames, int], list[Action]]]:
        return {
            Results: self._results,
            Starved: self._dispatcher.starved,
            Call: self._arriving_calls.call,
            CancelCall: self._arriving_calls.cancel,
            NewFamily: self._metrics.asked,
            NewMetric: self._metrics.asked,
            UpdateMetric: self._metrics.asked,
            DropMetrics: self._metrics.dropped,
            Control: self._asked.said,
            IsReady: lambda key, message, frames, now: self.readiness.said(key, message, now),
            Log: self._log,
            Goodbye: self._goodbye,
            **dict.fromkeys((Hello, Ready, Configured, Failed), self._loading_message),
        }

    def handle(self, event: Event, now: int) -> list[Action]:
        actions = self._on_event[type(event)](event, now)
        if self._adoption:
            for said in self._adoption.due():
                actions += self._on_event[type(said)](said, now)
        return actions

    def dispatch(self, now: int) -> list[Action]:
        """Ends a turn: one message for each instance that gets work."""
        actions = self._requests.dispatch(now) + self._control.leave(now)
        if self.hosts:
            actions += self.hosts.leave()
        if self._limiter is not None:
            actions += self._limiter.news()
        return actions + self._finish_idle() if self.stopping else actions

    def count(self) -> None:
        """Ends the turn for good: statistics of what was executed, once the clients have their answers."""
        self._answering.tally.count()

    # --- what stubs say -------------------------------------------------------------------------------------------

    def _stub_said(self, event: StubSaid, now: int) -> list[Action]:
        if self._adoption and self._adoption.keeps(event):
            return []
        try:
            return self._on_message[type(event.message)](event.key, event.message, event.frames, now)
        except IllegalTransition as fault:
            return breach(event.key, fault)

    def _results(self, key: str, message: Results, frames: Frames, now: int) -> list[Action]:
        found = self._roster.serving(key)
        if found is None:
            return []
        version, instance = found
        self._dispatcher.touch(version)
        actions = self._answering.results(version, instance, message, frames, now)
        if message.executed:
            self._dispatcher.limit(version, instance, now)
        return actions

    def _outputs_read(self, event: OutputsRead, now: int) -> list[Action]:
        return self._answering.outputs_read(event.origin, event.lease, now)

    def _log(self, key: str, message: Log, frames: Frames, now: int) -> list[Action]:
        found = self._roster.serving(key)
        version = found[0] if found is not None else self._roster.configuring(key)
        if version is not None and version.state is VersionState.LOADING and version.generation.quiet:
            return []
        return [ModelSaid(message.level, message.file, message.line, message.text)]

    # --- coming up, dying, ending ---------------------------------------------------------------------------------

    def _loading_message(self, key: str, message: Any, frames: Frames, now: int) -> list[Action]:
        found = self._roster.serving(key)
        if found is not None:
            self._dispatcher.touch(found[0])
        return self._startup.said(key, message, now)

    def _host_joined(self, event: HostJoined, now: int) -> list[Action]:
        self._metrics.host_joined(event.host, event.metrics)
        return self.hosts.joined(event, now)

    def _host_lost(self, event: HostLost, now: int) -> list[Action]:
        self._metrics.host_gone(event.host)
        return self.hosts.lost(event, now)

    def _stub_died(self, event: StubDied, now: int) -> list[Action]:
        if self._adoption and self._adoption.keeps(event):
            return []
        event = event._replace(verdict=self._limits.died(event.key))
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
        self._metrics.died(event.key)
        self._answering.inherited.gone(event.key)
        self._releases.take(instance)
        self._dispatcher.touch(version)
        actions = self._answering.lost(version, event.key, event.error(instance.spec.name), now)
        actions += self._instance_died(version, instance, event, now)
        calls, ended = self._answering.caller_died(event.key, instance, now)
        for call in calls:
            actions += self._requests.cancel(call.request.id, now)
        return actions + ended + self.readiness.died(event.key, now)

    def _instance_died(self, version: ModelVersion, instance: Instance, event: StubDied, now: int) -> list[Action]:
        awaited = version.instances if version.state is VersionState.LOADING else version.joining
        if instance in awaited:
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
        self._requests.stopping = True  # dispatch does the rest
        return self._asked.stop(now)

    def _finish_idle(self) -> list[Action]:
        """While stopping: once nothing is in flight, for it might call any model, all are told to finalize."""
        actions: list[Action] = []
        for version in self.registry:
            if version.state is VersionState.READY and not self._answering.living:
                version.state = VersionState.UNLOADING
                actions += end_processes(version, finish=True)
        return actions

    # --- time -----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """When DeadlinePassed is due, in the clock of ``now``."""
        deadlines = (
            self._releases.next_deadline(),
            self._requests.next_deadline(),
            self._answering.ensembles.next_deadline(),
            self._recovery.next_deadline(),
            self.readiness.next_deadline(),
            self._serving.next_deadline(),
            self._control.next_deadline(),
            self._limits.next_deadline(),
        )
        return min((at for at in deadlines if at is not None), default=None)

    def next_request_deadline(self) -> int | None:
        """The same for requests and batches that wait, which may be sooner than the release delay."""
        return self._requests.next_deadline()

    def _deadline_passed(self, event: DeadlinePassed, now: int) -> list[Action]:
        actions = self._answering.ensembles.deadline_passed(now) + self._requests.deadline_passed(now)
        actions += self._limits.deadline_passed(now)
        actions += self._recovery.restart_due(now) + self._recovery.let_go(now)
        return actions + self.readiness.give_up(now)

    # --- is it ready? ---------------------------------------------------------------------------------------------

    def _asked_ready(self, event: AskedReady, now: int) -> list[Action]:
        if event.version is not None:
            return self.readiness.ask_all(self.registry.with_models(event.version), event.done, now)
        strict = self._settings.strict_readiness
        if self.stopping or (strict and not self.registry.all_loaded()):
            return [TellReady(event.done, False)]
        return self.readiness.ask_all(self.registry.serving() if strict else [], event.done, now)

    # --- what the shell and the status pages ask ------------------------------------------------------------------

    @property
    def loading(self) -> bool:
        return self._control.assembling or not self._startup.idle

    @property
    def stopping(self) -> bool:
        return self._requests.stopping

    def refuse_when_full(self, model: str, version: int) -> None:
        """Raises the Unavailable that a request would be refused with now, if too many wait."""
        self._requests.refuse_when_full(self.registry.find(model, version))

    def _models_change(self, model: str) -> None:
        self._answering.caching.changed(model)
        self.on_change()

    def is_living(self, request: int) -> bool:
        """Whether it is still to be answered."""
        return request in self._answering.living

    @property
    def is_adopting(self) -> bool:
        """Whether stubs that an earlier broker has started are about to be taken over."""
        return self.hosts.awaits_models

    @property
    def inherited(self) -> InheritedLeases:
        return self._answering.inherited

    @property
    def processes(self) -> int:
        return len(self._roster)

    def in_flight(self) -> dict[str, int]:
        """Requests in flight of each model version that has any, by "name (version n)" as Triton logs it."""
        counts: Counter[str] = Counter()
        for one in self.registry:  # one that is on its way out has the name of its successor
            counts[f"'{one.name}' (version {one.version})"] += one.in_flight()
        return {name: count for name, count in counts.items() if count}

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken; tests call it after every event."""
        self.registry.check()
        held, living = sum(one.in_flight() for one in self.registry), len(self._answering.living)
        assert held == living, (held, living)
        self._answering.check()
        self._requests.check()
        self.readiness.check()
        self._control.check()
        self.hosts.check()
        self._metrics.check()
        self._limits.check()
        if self._limiter is not None:
            self._limiter.check()
