"""``tensorbus broker``: the broker of a scaled stack, which gateways and stub hosts dial."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from typing import TYPE_CHECKING

import structlog

from broker import model_files
from broker.core import Core
from broker.events import Event, ModelSaid, StartServing
from broker.execution_env import ExecutionEnv
from broker.model import VersionSource
from broker.remote.catalogue import Catalogues
from broker.remote.gateways import RemoteGateways
from broker.remote.members import Members
from broker.remote.service_bus import ServiceBus
from broker.remote.stubs import RemoteStubs
from broker.server import BrokerServer
from broker.turn import Turn
from metrics.broker_record import BrokerRecord
from metrics.endpoint import MetricsEndpoint
from metrics.recorder import Recorder
from protocol.interpreters import Interpreter
from protocol.messages import Handle
from tensorbus import backends, running
from tensorbus.broker_memory import BrokerMemory
from tensorbus.broker_settings import broker_settings
from tensorbus.cloud import Cloud
from tensorbus.fronts import start_metrics
from tensorbus.listener import Listener
from tensorbus.logs import log_line
from tensorbus.model_watch import ModelWatch
from tensorbus.repository import Repositories
from tensorbus.run_directory import run_directory
from tensorbus.running import failed, warn_of, within

if TYPE_CHECKING:
    from tensorbus.service_settings import BrokerServiceSettings

log = structlog.get_logger()

BEAT_NS, SILENCE_NS = 500_000_000, 4_000_000_000
_NONCE_BYTES = 32
_HOUSEKEEPING_S = 1.0


async def run(settings: BrokerServiceSettings) -> int:
    """Until SIGINT or SIGTERM; the exit code."""
    if not settings.model_repository:
        return failed("Invalid argument - --model-repository must be specified", "broker")
    try:
        with run_directory() as run_dir:
            return await running.run(BrokerService(settings, run_dir), "broker")
    except OSError as error:  # of the directories that it cannot be without
        return failed(f"Internal - {error.strerror or error}", "broker")


class BrokerService:
    """A running.Service. Models come up as the hosts do that run them; nothing here waits for one."""

    def __init__(self, settings: BrokerServiceSettings, run_dir: str) -> None:
        self._settings = settings
        self.recorder = Recorder(custom=settings.allow_metrics)
        record = self.recorder.broker = BrokerRecord()
        found = backends.find(settings.backend_directory, settings.backend_values)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        epoch_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
        self._cloud = Cloud(settings.model_repository, settings.cloud, run_dir)
        self._repositories = Repositories(
            self._cloud,
            not settings.disable_auto_complete_config,
            run_dir,
            settings.model_config_name,
            settings.namespaces,
        )
        repositories = settings.model_repository
        self._members = members = Members(
            settings.cluster_id, secrets.token_hex(8), nonce, repositories, BEAT_NS, SILENCE_NS
        )
        self._link = Listener(settings.bind, settings.trust, self._heard, self._done, self._hung_up, self._arriving)
        turn = Turn()
        self.bus = ServiceBus(self._link, members, BEAT_NS, record, turn)
        self._stubs = RemoteStubs(members, self.bus.fetches, self.bus.send, self._files, self._post, turn.soon)
        wanted = settings.response_cache_nbytes
        self._memory = BrokerMemory(wanted, members.domains, self.bus.fetches) if wanted else None
        cache = None if self._memory is None else self._memory.cache
        self.recorder.cache = cache and cache.responses.record
        broker = broker_settings(settings, "", "", found, response_cache=cache is not None, hosted=True)
        self.server = BrokerServer(
            Core(broker, self.recorder, Handle("", 0, 0), nonce, epoch_ms, cache and cache.responses),
            broker,
            self._stubs,
            self._stubs.spawn,
            self._stubs.kill,
            self._stubs.abort,
            _no_environment,
            self._repositories,
            _said,
            cache and cache.memory,
            self.bus.dismiss,
            turn.soon,
        )
        self._catalogues = Catalogues(self.server.core.registry, members, self.bus.send)
        self._gateways = RemoteGateways(
            self.server, members, self.bus.fetches, self._catalogues, self.bus.send, turn.soon
        )
        self._watch = ModelWatch(settings, self.server, self._repositories)
        self._metrics: MetricsEndpoint | None = None
        self._housekeeping: list[asyncio.Task[None]] = []
        self._is_stopping = False

    def _heard(self, service: str, header: bytes, frames: list[memoryview]) -> None:
        self.bus.heard(service, header, frames)

    def _hung_up(self, service: str) -> None:
        self.bus.hung_up(service)

    def _arriving(self, service: str) -> None:
        self._members.heard(service, time.monotonic_ns())

    def _done(self) -> None:
        self.bus.done()

    def _post(self, event: Event) -> None:
        self.server.post(event)

    def _files(self, source: VersionSource) -> dict[str, bytes]:
        """Of a model that stub hosts do not find in their repositories."""
        if any(source.directory.startswith(os.path.join(path, "")) for path in self._settings.model_repository):
            return {}
        return model_files.read(source.directory)

    async def start(self) -> None:
        """Raises ServingError or CannotListen."""
        warn_of(self._settings.ignored_flags)
        self.server.start()
        self.bus.start(self.server, self._stubs, self._gateways, self._catalogues)
        await self._repositories.open()
        await self._watch.look()
        await self._repositories.begin_load(self.server, self._settings.models_at_start)
        self.server.tell(StartServing())  # a host that joins at once may have models to load again
        self._link.start()
        if self._settings.allow_metrics:
            self._metrics = start_metrics(self._settings, self.recorder, lambda done: done(not self._is_stopping))
        await self._watch.start()
        self._housekeeping.append(asyncio.create_task(self._keep_house()))
        if self._memory is not None:
            self._housekeeping.append(asyncio.create_task(self._memory.keep_house()))

    async def _keep_house(self) -> None:
        """For ever: gives back what copies of models take that nobody needs."""
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            await self._repositories.trim(self.server.core.registry)

    async def stop(self) -> bool:
        """Answers what it has. What comes meanwhile, the stubs and their models are left to the next broker."""
        deadline = time.monotonic() + self._settings.exit_timeout_secs
        self._is_stopping = True
        for task in self._housekeeping:
            task.cancel()
        self._watch.stop()
        self._gateways.is_closed = True
        self._cloud.stop()
        drained = await within(deadline, lambda: not self.server.core.in_flight(), self._say_in_flight)
        if self._memory is not None:
            await self._memory.let_go(deadline)
        await self.server.stop_preparing()
        self.bus.close()
        self.server.close()
        if self._memory is not None:
            self._memory.close()
        self._link.close()
        if self._metrics is not None:
            self._metrics.close()
        await asyncio.to_thread(self._cloud.close)
        return drained

    def _say_in_flight(self, left_s: float) -> None:
        for name, count in self.server.core.in_flight().items():
            log.info(f"Model {name} has {count} in-flight inferences")


async def _no_environment(env: ExecutionEnv) -> Interpreter:
    raise AssertionError("stub hosts make the environments of models")


def _said(line: ModelSaid) -> None:
    log_line(line.level, line.file, line.line, line.text)
