"""Gateway, broker and launcher in one process and one event loop: how they are put together, started and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time

import structlog

from broker.core import Core
from broker.events import ModelSaid, StartServing, StopServing
from broker.model_config import PYTHON_BACKEND
from broker.response_cache import ResponseCache
from broker.server import BrokerServer
from broker.settings import BrokerSettings
from broker.stubs import LocalStubs
from gateway.admission import Admission
from gateway.dataplane import EXTENSIONS, SERVER_VERSION, DataPlane
from metrics.recorder import Recorder
from protocol.errors import InternalError
from protocol.messages import Handle
from shm.errors import ShmFull
from shm.segment import default_directory
from shm.store import Reader, Store
from shm.sweep import sweep
from stub.launcher import Launcher
from tensorbus import backends, gpus
from tensorbus.broker_settings import broker_settings
from tensorbus.cache import open_cache
from tensorbus.cloud import Cloud
from tensorbus.embedded import EmbeddedBus
from tensorbus.environments import Environments
from tensorbus.fronts import Fronts
from tensorbus.functions import Functions
from tensorbus.logs import current_settings, log_line, log_printed, log_table
from tensorbus.model_watch import ModelWatch
from tensorbus.repository import Repositories
from tensorbus.running import warn_of, within
from tensorbus.settings import ServeSettings
from tensorbus.sweeping import sweep_for_ever
from tensorbus.tables import backends_table, models_table, options_table, repository_agents_table

log = structlog.get_logger()

_NONCE_BYTES = 32


class Services:
    """All that a server runs in its process. ``start`` raises ServingError or CannotListen, and then ``stop`` cleans up
    all the same."""

    def __init__(self, settings: ServeSettings, run_dir: str) -> None:
        self._settings = settings
        self._shm_directory = default_directory()
        sweep(self._shm_directory)
        self._store = Store(self._shm_directory, initial=settings.shm_default_byte_size)
        self._reader = Reader(self._shm_directory)
        self.recorder = Recorder(custom=settings.allow_metrics)
        self._fronts = Fronts(settings, self.recorder)
        self._housekeeping: list[asyncio.Task[None]] = []
        self._backends = backends.find(settings.backend_directory, settings.backend_values)
        cache = open_cache(settings.response_cache_nbytes, self._shm_directory, self._reader)
        self.recorder.cache = cache and cache.responses.record
        bus = f"ipc://{run_dir}/bus"
        self._launcher = Launcher(bus, run_dir, self._shm_directory, self._on_exit, log_printed)
        self.functions = Functions(bus, self._launcher, self._on_thread_exit)
        broker = broker_settings(settings, bus, self._shm_directory, self._backends, cache is not None, gpus.usable())
        self._cloud = Cloud(settings.model_repository, settings.cloud, run_dir)
        self.repositories = Repositories(
            self._cloud,
            not settings.disable_auto_complete_config,
            run_dir,
            settings.model_config_name,
            settings.namespaces,
        )
        environments = Environments(run_dir, settings.cache_directory)
        self.broker = BrokerServer(
            self._core(broker, cache and cache.responses),
            broker,
            LocalStubs(bus, self._shm_directory, self._reader),
            self.functions.spawn,
            self.functions.kill,
            self._launcher.abort,
            environments.interpreter,
            self.repositories,
            _said,
            cache and cache.memory,
        )
        self._watch = ModelWatch(settings, self.broker, self.repositories)

    def _core(self, settings: BrokerSettings, cache: ResponseCache | None) -> Core:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        epoch_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
        return Core(settings, self.recorder, self._probe(nonce), nonce, epoch_ms, cache)

    def _probe(self, nonce: bytes) -> Handle:
        """Where stubs find the nonce; nowhere if there is no shared memory, and then tensors go by message."""
        try:
            block = self._store.allocate(len(nonce))
        except ShmFull as error:
            log.warning("shared memory is not used: tensors travel in messages, which is slower", cause=str(error))
            return Handle("", 0, 0)
        block.view[:] = nonce
        return Handle(block.segment, block.offset, block.nbytes)

    # --- start ----------------------------------------------------------------------------------------------------

    def _on_exit(self, key: str, status: int) -> None:
        self.broker.stub_died(key, status)

    def _on_thread_exit(self, key: str, status: int) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_exit, key, status)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.broker.start()
        await self._launcher.start()
        fronts = self._loop.run_in_executor(None, self._fronts.load)  # beside the models
        settings = self._settings
        warn_of(settings.ignored_flags)
        await self.repositories.open()
        await self._watch.look()
        await self.repositories.load(self.broker, settings.models_at_start)
        await fronts
        index = self.broker.core.registry.index(ready=False)
        log_table(repository_agents_table())
        log_table(backends_table(self._backends_in_use(), settings))
        log_table(models_table(index))
        log_table(options_table(settings, SERVER_VERSION, EXTENSIONS))
        if settings.exit_on_error and not self.broker.core.registry.all_loaded():
            log.error("failed to load all models")
            raise InternalError("failed to load all models")
        bus = EmbeddedBus(self.broker)
        admission = Admission(self.recorder.pressure, settings.max_queued_bytes)
        dataplane = DataPlane(
            bus, self._store, self._reader, settings.id, current_settings(), admission, settings.small_nbytes
        )
        self.dataplane = dataplane
        self.broker.post(StartServing())
        await self._watch.start()
        await self._fronts.start(dataplane)
        for work in (self._fronts.keep_house(dataplane, self._trim), sweep_for_ever(self._shm_directory)):
            self._housekeeping.append(asyncio.create_task(work))

    def _backends_in_use(self) -> dict[str, str]:
        """With the file that runs the models of each; Python models have files of their own."""
        used = {version.config.backend for version in self.broker.core.registry}
        ours = {name: backend.model_file for name, backend in self._backends.items() if name in used}
        return {PYTHON_BACKEND: "", **ours}

    async def _trim(self) -> None:
        await self.repositories.trim(self.broker.core.registry)

    @property
    def ports(self) -> dict[str, int]:
        """As of ``Fronts``."""
        return self._fronts.ports

    # --- stop -----------------------------------------------------------------------------------------------------

    async def stop(self) -> bool:
        """Answer what is in flight, finalize the models, leave nothing behind. False if the time ran out."""
        deadline = time.monotonic() + self._settings.exit_timeout_secs
        for task in self._housekeeping:
            task.cancel()
        self._watch.stop()
        self.broker.post(StopServing())
        self._cloud.stop()
        await self.broker.stop_preparing()
        fronts = asyncio.gather(*self._fronts.drain(self._settings.exit_timeout_secs))
        log.info("Waiting for in-flight requests to complete.")
        drained = await within(deadline, self._drained, self._say_in_flight)
        await fronts
        log.info("All models are stopped, unloading models")
        finished = drained and await within(deadline, self._finished, self._say_live)
        self._fronts.close()
        await self._launcher.close()
        await asyncio.to_thread(self.functions.close)
        self.broker.close()
        self._reader.close()
        self._store.close()
        await asyncio.to_thread(self._cloud.close)
        return finished

    def _drained(self) -> bool:
        return not self.broker.core.in_flight()

    def _finished(self) -> bool:
        return not self.broker.core.processes

    def _say_in_flight(self, left_s: float) -> None:
        in_flight = self.broker.core.in_flight()
        log.info(f"Timeout {left_s:.0f}: Found {len(in_flight)} model versions that have in-flight inferences")
        for name, count in in_flight.items():
            log.info(f"Model {name} has {count} in-flight inferences")

    def _say_live(self, left_s: float) -> None:
        live = len(self.broker.core.registry.unfinished())
        log.info(f"Timeout {left_s:.0f}: Found {live} live models and 0 in-flight non-inference requests")


def _said(line: ModelSaid) -> None:
    log_line(line.level, line.file, line.line, line.text)
