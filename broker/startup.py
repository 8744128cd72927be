"""How a model version comes up: its configuration is completed by a throw-away process, then its instances start.

    load -> [Prepare, Prepared] -> [Spawn, Hello, Load "auto_complete", Configured]
         -> per instance: Spawn, Hello, Load "serve", Ready -> all ready: it is up

Any failure on the way makes the version UNAVAILABLE with the reason, and its processes are killed. What becomes of the
versions once each is up or has failed is for control.py. Of a version that is to have other instances, only those that
are new start, and what has served is left alone if that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker import auto_complete, config_loading, execution_env
from broker.adoption import Adoption
from broker.backends import Backend
from broker.ensemble import Plan
from broker.events import Action, Kill, Prepare, Prepared, Say, StubDied, WatchStatus
from broker.host_table import HostTable
from broker.instance import Instance, InstanceEvent, InstanceState
from broker.instance_update import compare, with_instances
from broker.load_messages import LoadMessages
from broker.load_queue import LoadQueue
from broker.model import UNLOADED, Generation, InstanceUpdate, ModelVersion, VersionState
from broker.model_config import InstanceSpec, Scheduler
from broker.processes import end_process, end_processes, spawn, start_process
from broker.rate_limiter import RateLimiter
from broker.registry import Registry
from broker.roster import Roster
from broker.settings import BrokerSettings
from broker.signature import signature
from broker.time_limits import TimeLimits
from protocol.errors import InternalError, ServingError, error_of
from protocol.messages import Configured, Failed, Handle, Hello, Ready
from protocol.services import Environment


class Startup:
    """At most ``load_concurrency`` versions are being loaded at a time."""

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        roster: Roster,
        probe: Handle,
        nonce: bytes,
        limits: TimeLimits,
        settled: Callable[[Generation, int], list[Action]],
        limiter: RateLimiter | None,
        hosts: HostTable,
        adoption: Adoption,
    ) -> None:
        """``settled`` is told when every version of a generation is up or has failed."""
        self._hosts = hosts
        self._adoption = adoption
        self._settings = settings
        self._registry = registry
        self._roster = roster
        self._nonce = nonce
        self._limits = limits
        self._settled = settled
        self._limiter = limiter
        self._load_messages = LoadMessages(settings, roster, limits, probe)
        self._queue = LoadQueue(settings.load_concurrency)

    @property
    def idle(self) -> bool:
        return self._queue.is_empty

    def load(self, generation: Generation, now: int) -> list[Action]:
        actions: list[Action] = []
        for version in generation.versions:
            self._registry.add(version)
        for version in (*generation.kept, *generation.versions):
            self._queue.add(version)
            if generation.quiet:
                continue
            actions.append(Say("info", f"loading: {version.name}:{version.version}", {}))
            limit = version.config.message.ensemble_scheduling.max_inflight_requests
            if limit:
                text = f"Ensemble model '{version.name}' configured with max_inflight_requests: {limit}"
                actions.append(Say("info", text, {}))
        return actions + self._start_waiting(now)

    def hurry(self, generation: Generation, now: int) -> list[Action]:
        """A model that is itself loading waits for it: it must not wait for that one's place."""
        actions: list[Action] = []
        for version in (*generation.kept, *generation.versions):
            if self._queue.skip(version):
                actions += self._configure(version, now)
        return actions

    def _start_waiting(self, now: int) -> list[Action]:
        actions: list[Action] = []
        while version := self._queue.next():
            actions += self._configure(version, now)
        return actions

    def give_up(self, generation: Generation, now: int) -> list[Action]:
        """Nobody wants it any more, whether it is up or not."""
        actions: list[Action] = []
        for version in generation.versions:
            if version.state is VersionState.LOADING:
                version.state, version.reason = VersionState.UNAVAILABLE, UNLOADED
                self._queue.leave(version)
                actions += end_processes(version, finish=version.is_up)
        for version in generation.kept:
            self._queue.leave(version)
            actions += _stop_joining(version)
            version.update = None
        return actions + self._start_waiting(now)

    def _configure(self, version: ModelVersion, now: int) -> list[Action]:
        if version.update is not None:
            return self._join(version, version.update, now)
        if version.plan is not None:
            return self._set_up_ensemble(version, version.plan, now)
        try:
            if version.source.refusal is not None:
                raise version.source.refusal
            gpus = self._hosts.gpus(version.config.name)
            version.config = config_loading.prepare(version.config, gpus, self._backend(version))
        except ServingError as error:
            return self._fail(version, error, now)
        env = execution_env.wanted(version.source, self._backend(version))
        if env is None or self._settings.hosted:
            version.environment = None if env is None else Environment(*env)
            return self._complete(version, now)
        return [Prepare(version, env)]

    def _backend(self, version: ModelVersion) -> Backend | None:
        """None for a model whose version directory has its code."""
        return self._settings.backends.get(version.config.backend)

    def prepared(self, event: Prepared, now: int) -> list[Action]:
        version = event.version
        if version.state is not VersionState.LOADING:
            return []
        if event.error is not None:
            return self._fail(version, event.error, now)
        version.interpreter = event.interpreter
        return self._complete(version, now)

    def _complete(self, version: ModelVersion, now: int) -> list[Action]:
        hosts = self._hosts.running(version.config.name)
        if not hosts:
            return self._wait_for_host(version, now)
        held = self._adoption.config(version) if self._adoption else ""
        if held:
            version.config = auto_complete.merge(version.config, held)
        if held or not self._settings.auto_complete:
            return self._start_instances(version, now)
        key = version.configuring = f"c{self._roster.next_index()}"
        self._roster.add_configuring(key, version, hosts[0])
        return [spawn(version, key, "auto_complete_config", hosts[0])]

    def _wait_for_host(self, version: ModelVersion, now: int) -> list[Action]:
        self._queue.wait_for_host(version)
        said = Say("info", "waits for a stub host", {"model": version.name, "version": version.version})
        return [said, *self._start_waiting(now)]

    def resume(self, now: int) -> list[Action]:
        """There is one host more."""
        self._queue.found_hosts(lambda version: bool(self._hosts.running(version.config.name)))
        return self._start_waiting(now)

    def begin_again(self, version: ModelVersion, now: int) -> list[Action]:
        """A host on which it was coming up has gone."""
        if not self._queue.begin_again(version):
            return []
        version.is_up = False
        return self._start_over(version, now)

    def _start_instances(self, version: ModelVersion, now: int) -> list[Action]:
        """The configuration is as complete as it will be."""
        try:
            version.config = config_loading.finish(version.config)
        except ServingError as error:
            return self._fail(version, error, now)
        actions = self._cache(version)
        version.signature = signature(version.config, version.version, version.source.labels)
        version.schedule(self._settings.delay_scheduler)
        try:
            for host in self._hosts.running(version.config.name):
                instances, started = self._start(version, version.config.instances, host, now)
                version.instances += instances
                actions += started
        except ServingError as error:
            return actions + self._fail(version, error, now)
        return actions + self._up_if_ready(version, now)  # all may have outlived another broker

    def arrive(self, version: ModelVersion, specs: Iterable[InstanceSpec], host: str, now: int) -> list[Action]:
        """Instances of a version that serves, on a host that has come later."""
        try:
            instances, started = self._start(version, specs, host, now)
        except ServingError as error:
            return [Say("error", "instances cannot be added", {"model": version.name, "cause": str(error)})]
        for instance in instances:
            (version.instances if instance.state is InstanceState.READY else version.arriving).append(instance)
        return started

    def _start(
        self, version: ModelVersion, specs: Iterable[InstanceSpec], host: str, now: int
    ) -> tuple[list[Instance], list[Action]]:
        """Raises InvalidArgument."""
        instances: list[Instance] = []
        actions: list[Action] = []
        for spec in specs:
            adopted = self._adoption.take(version, spec, host, now) if self._adoption else None
            if adopted is not None:
                actions += self._adoption.cancel_orphans(adopted)
            instances.append(adopted or Instance(spec, self._roster.next_index(), host))
        if self._limiter is not None:
            self._limiter.add(instances)
        new = [one for one in instances if one.state is InstanceState.STARTING]
        return instances, actions + [start_process(self._roster, version, instance) for instance in new]

    def _join(self, version: ModelVersion, update: InstanceUpdate, now: int) -> list[Action]:
        """A version that serves gets what it lacks of the instances that are wanted."""
        version.reason = ""
        try:
            gpus = self._hosts.gpus(version.config.name)
            wanted = config_loading.prepare(update.source.config, gpus, self._backend(version))
        except ServingError as error:
            return self._fail(version, error, now)
        update.config = with_instances(version.config, wanted)
        actions: list[Action] = []
        try:
            for host in self._hosts.running(version.config.name):
                there = [one for one in version.instances if one.host == host]
                specs, surplus = compare(there, update.config.instances)
                update.surplus += surplus
                instances, started = self._start(version, specs, host, now)
                version.joining += instances
                actions += started
        except ServingError as error:
            return actions + self._fail(version, error, now)
        return actions + self._up_if_ready(version, now)

    def joins_no_longer(self, version: ModelVersion, now: int) -> list[Action]:
        """Of the instances that were to join it some have gone with their host, which nothing waits for now."""
        update = version.update
        if update is None or update.is_up or update.config is None:
            return []
        update.surplus = [one for one in update.surplus if one in version.instances]
        return self._up_if_ready(version, now)

    def _set_up_ensemble(self, version: ModelVersion, plan: Plan, now: int) -> list[Action]:
        """It has no process: it is up as soon as it is known to be right."""
        try:
            if version.source.refusal is not None:
                raise version.source.refusal
            version.config = config_loading.finish(version.config)
        except ServingError as error:
            return self._fail(version, error, now)
        labels = {**plan.labels, **version.source.labels}
        version.signature = signature(version.config, version.version, labels)
        return self._cache(version) + self._up(version, now)

    def _cache(self, version: ModelVersion) -> list[Action]:
        if not version.config.response_cache:
            return []
        cause = "" if self._settings.response_cache else "the server has no response cache (--cache-config)"
        for one in self._registry.with_models(version):
            if one.config.scheduler is Scheduler.SEQUENCE:  # the same request has another answer each time
                cause = f"its model '{one.name}' has sequence batching"
        version.cached = version.recorder.cached = not cause
        if not cause:
            return []
        return [Say("warning", "responses are not cached", {"model": version.name, "cause": cause})]

    # --- what the processes say -----------------------------------------------------------------------------------

    def said(self, key: str, message: Hello | Ready | Configured | Failed, now: int) -> list[Action]:
        """May raise IllegalTransition."""
        found = self._roster.serving(key)
        if found is not None and found[1].state is InstanceState.FINISHING:  # it did not know yet
            return []
        if isinstance(message, Hello):
            return self._load_messages.answer(key, message, now)
        self._limits.done(key)
        configuring = self._roster.configuring(key)
        if configuring is not None:
            return self._configured(configuring, message, now)
        if found is None:
            return []
        version, instance = found
        if isinstance(message, Ready):
            return self._ready(version, instance, message, now)
        if isinstance(message, Failed):
            return self._instance_failed(version, instance, message, now)
        return [Kill(key)]

    def _configured(self, version: ModelVersion, message: Ready | Configured | Failed, now: int) -> list[Action]:
        key, version.configuring = version.configuring, None
        if key is None:  # it has said all
            return []
        if version.state is not VersionState.LOADING:
            return [Kill(key)]
        if isinstance(message, Failed):
            return self._fail(version, error_of(message.error, message.text), now)
        if isinstance(message, Ready):
            return [Kill(key), *self._fail(version, InternalError("auto_complete_config was never run"), now)]
        objection = auto_complete.objection(version.config, message.config)
        version.config = auto_complete.merge(version.config, message.config)
        actions: list[Action] = [Say("warning", objection, {"model": version.name})] if objection else []
        return actions + self._start_instances(version, now)

    def _ready(self, version: ModelVersion, instance: Instance, message: Ready, now: int) -> list[Action]:
        instance.on(InstanceEvent.READY)
        instance.shared = message.nonce == self._nonce
        instance.asks_ready = message.asks_ready
        instance.ready_since = now
        instance.hopeless = False
        actions: list[Action] = []
        if instance.shared and message.segment:
            actions.append(WatchStatus(instance.key, message.segment))
        if not instance.shared:
            cause = "it does not share our shared memory"
            actions.append(Say("warning", "tensors travel inline", {"instance": instance.spec.name, "cause": cause}))
        if instance in version.arriving:
            version.arriving.remove(instance)
            version.instances.append(instance)
        elif version.state is VersionState.LOADING or instance in version.joining:
            actions += self._up_if_ready(version, now)
        return actions

    def _up_if_ready(self, version: ModelVersion, now: int) -> list[Action]:
        awaited = version.instances if version.update is None else version.joining
        if any(instance.state is not InstanceState.READY for instance in awaited):
            return []
        return self._up(version, now)

    def _instance_failed(self, version: ModelVersion, instance: Instance, message: Failed, now: int) -> list[Action]:
        """Its process exits by itself; a restart that fails is tried again later."""
        if version.state is VersionState.LOADING or instance in version.joining:
            return self._fail(version, error_of(message.error, message.text), now)
        return [Say("error", "a restarted instance failed", {"instance": instance.spec.name, "cause": message.text})]

    def process_died(self, version: ModelVersion, name: str, event: StubDied, now: int) -> list[Action]:
        """A process of a version that is still loading, or one that was to join it, died before it had said why."""
        failed = self._fail(version, event.error(name), now)
        fields = {"model": version.name, "version": version.version, "instance": name, "cause": event.cause}
        said = Say("error", "a stub process died while it loaded", fields)
        return [said, *failed] if failed and not version.generation.quiet else failed

    # --- how it ends ----------------------------------------------------------------------------------------------

    def _up(self, version: ModelVersion, now: int) -> list[Action]:
        if version.update is not None:
            version.update.is_up = True
            return self._end(version, now)
        version.is_up = True
        version.recorder.load_duration_s = (now - version.load_started_ns) / 1e9
        return self._end(version, now)

    def _fail(self, version: ModelVersion, error: ServingError, now: int) -> list[Action]:
        cause = f"failed to load '{version.name}' version {version.version}: {error.status_text()}"
        quiet = version.update.generation.quiet if version.update is not None else version.generation.quiet
        actions: list[Action] = [] if quiet else [Say("error", cause, {})]
        if version.update is not None:
            version.update.error, version.update.is_up = error, False
            version.reason = error.status_text()
            return [*actions, *_stop_joining(version), *self._end(version, now)]
        if version.state is not VersionState.LOADING:
            return []
        if version.tries < self._settings.load_retries:
            return [*actions, *self._try_again(version, now)]
        version.state = VersionState.UNAVAILABLE
        version.reason = error.status_text()
        return actions + end_processes(version, finish=False) + self._end(version, now)

    def _try_again(self, version: ModelVersion, now: int) -> list[Action]:
        version.tries += 1
        return self._start_over(version, now)

    def _start_over(self, version: ModelVersion, now: int) -> list[Action]:
        actions = end_processes(version, finish=False)
        version.leaving += version.instances
        version.instances.clear()
        version.configuring, version.config = None, version.source.config
        return actions + self._configure(version, now)

    def _end(self, version: ModelVersion, now: int) -> list[Action]:
        self._queue.leave(version)
        generation = version.generation if version.update is None else version.update.generation
        settled = self._settled(generation, now) if generation.settled() else []
        return settled + self._start_waiting(now)


def _stop_joining(version: ModelVersion) -> list[Action]:
    """What was to join a version that serves is not wanted."""
    actions = [action for instance in version.joining for action in end_process(instance, finish=True)]
    version.leaving += version.joining
    version.joining = []
    return actions
