"""``tensorbus stub``: a stub host, from its start to its exit code. It runs the instances that the broker gives it.

    APART --Welcome--> MEMBER --SIGTERM: Leave--> the instances end --Dismissed--> over
      ^                   |
      +-- broker lost ----+      the instances go on; what they say is kept for when it is there again (relay.py)

The broker decides all; here are the processes, their environments, their files and the way to them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from metrics.endpoint import MetricsEndpoint
from metrics.recorder import Recorder
from metrics.stub_host_record import StubHostRecord
from protocol import services
from protocol.errors import ProtocolError
from protocol.messages import Handle, Load
from protocol.services import (
    FETCHED,
    JOIN,
    LEAVE,
    STUB_HOST,
    Dismissed,
    Error,
    Fetch,
    Fetched,
    HeldStub,
    Join,
    Leave,
    Start,
    Stop,
    ToService,
    ToStubs,
    Welcome,
)
from shm.errors import BadHandle
from shm.segment import NAME, default_directory
from shm.store import Block, Reader
from shm.sweep import sweep
from tensorbus import backends, gpus, running
from tensorbus.broker_link import BrokerLink
from tensorbus.environments import Environments
from tensorbus.fronts import start_metrics
from tensorbus.hosted_stubs import HostedStubs
from tensorbus.identity import ID_LENGTH, Identity, handle_of
from tensorbus.relay import Relay
from tensorbus.run_directory import run_directory
from tensorbus.stub_paths import Places
from tensorbus.sweeping import sweep_for_ever

if TYPE_CHECKING:
    from tensorbus.service_settings import StubHostSettings

log = structlog.get_logger()

_STORE_NBYTES = 1 << 12  # two nonces are all that it holds
_TOLD_AFTER_S = 0.5
_HOUSEKEEPING_S = 1.0


async def run(settings: StubHostSettings) -> int:
    """Until SIGINT or SIGTERM, or until the broker refuses it; the exit code."""
    return await running.exit_code(_run(settings), "stub host")


async def _run(settings: StubHostSettings) -> int:
    with run_directory() as run_dir:
        host = StubHost(settings, run_dir)
        return await running.run(host, "stub host", host.is_over)


class StubHost:
    """A running.Service, and the broker_link.Owner of its link."""

    def __init__(self, settings: StubHostSettings, run_dir: str) -> None:
        self.recorder = Recorder(custom=False)
        self.record = self.recorder.stub_host = StubHostRecord()
        self.is_over = asyncio.Event()
        self._settings = settings
        self._shm_directory = default_directory()
        sweep(self._shm_directory)
        self._identity = Identity(self._shm_directory, _STORE_NBYTES)
        self._reader = Reader(self._shm_directory)
        bus = f"ipc://{run_dir}/bus"
        self._stubs = HostedStubs(
            bus,
            run_dir,
            self._shm_directory,
            Environments(run_dir, settings.cache_directory),
            backends.find(settings.backend_directory),
            self.record,
            self._on_death,
        )
        self._link = BrokerLink(settings.broker, self._identity.service, settings.trust, self._reader, self)
        self._relay = Relay(
            bus, self._shm_directory, self.record, self._link.send, self._fit, self._stubs.kill, self._stubs.with_files
        )
        self._places = Places()
        self._stub_probe: Block | None = None
        self._metrics: MetricsEndpoint | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._told_at = 0.0  # what to start
        self._is_leaving = False
        self._is_dismissed = self._has_told_all_to_finish = False
        self._do: dict[type, Callable[[Any, list[memoryview]], None]] = {
            Dismissed: self._on_dismissed,
            Fetch: self._on_fetch,
            Start: self._on_start,
            Stop: self._on_stop,
            ToStubs: self._relay.forward,
        }

    # --- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises CannotListen."""
        running.warn_of(self._settings.ignored_flags)
        self._relay.start()
        await self._stubs.open()
        if self._settings.allow_metrics:
            self._metrics = start_metrics(self._settings, self.recorder, lambda done: done(self.is_ready))
        self._link.start()
        loop = asyncio.get_running_loop()
        for work in (self._keep_house(), sweep_for_ever(self._shm_directory)):
            self._tasks.append(loop.create_task(work))

    @property
    def is_ready(self) -> bool:
        """What the broker wants here is up; it says what that is as soon as it is joined."""
        is_member = self._link.membership.is_member and time.monotonic() >= self._told_at
        return is_member and not (self._is_leaving or self._relay.is_loading)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            self._reader.trim()

    # --- the broker -----------------------------------------------------------------------------------------------

    def join(self) -> Join:
        settings = self._settings
        return Join(
            JOIN,
            services.VERSION,
            settings.cluster_id,
            STUB_HOST,
            self._identity.service,
            settings.host_name,
            self._identity.probe,
            self._identity.nonce,
            list(settings.model),
            list(gpus.usable()),
        )

    def on_joined(self, welcome: Welcome) -> None:
        self._told_at = time.monotonic() + _TOLD_AFTER_S
        ours = self._settings.model_repository
        if ours and len(ours) != len(welcome.repositories):
            log.warning(
                "the broker has another number of repositories", there=len(welcome.repositories), here=len(ours)
            )
        self._places = Places(welcome.repositories, ours)
        self._hide_stub_probe()
        self._stub_probe = self._identity.show(welcome.nonce)
        self.record.broker_up = True
        self._relay.joined()
        if self._is_leaving:
            self._link.say(Leave(LEAVE))

    def on_lost(self) -> None:
        self.record.broker_up = False
        self._relay.lost()

    def on_tick(self, now: int) -> None:
        if self.record.broker_up:
            self._relay.heard(now - self._link.membership.silent_ns(now))

    def on_message(self, message: ToService, frames: list[memoryview]) -> None:
        do = self._do.get(type(message))
        if do is None:
            raise ProtocolError(f"{type(message).__name__}, which is not for stub hosts")
        do(message, frames)

    def on_refused(self, reason: str) -> None:
        log.error("the broker refuses this stub host", reason=reason)
        self.is_over.set()

    def take_new_id(self) -> str:
        """The old one is in the names of the segments of stubs, too."""
        if self._stubs:
            return ""
        self._hide_stub_probe()
        return self._identity.renew()

    def _hide_stub_probe(self) -> None:
        block, self._stub_probe = self._stub_probe, None
        if block is not None:
            self._identity.store.free(block)

    # --- stubs ----------------------------------------------------------------------------------------------------

    def _on_start(self, start: Start, frames: list[memoryview]) -> None:
        self._stubs.start(start, self._places)
        _, key, _, model, version, instance, stamp, *_ = start
        self._relay.add(HeldStub(key, model, version, instance, stamp, "", b"", [], [], given=start.given))

    def _on_stop(self, stop: Stop, frames: list[memoryview]) -> None:
        end = self._stubs.abort if stop.abort else self._stubs.kill
        end(stop.key)

    def _on_death(self, key: str, status: int, error: Error) -> None:
        self._relay.died(key, status, error)

    def _fit(self, key: str, load: Load) -> Load:
        """The broker's Load for a stub, with what is another here."""
        return self._stubs.fit(key, load)._replace(
            probe=handle_of(self._stub_probe), shm_directory=self._shm_directory, tag=self._identity.service
        )

    # --- memory ---------------------------------------------------------------------------------------------------

    def _on_fetch(self, fetch: Fetch, frames: list[memoryview]) -> None:
        """They are sent from where they lie, if their lease lasts until the broker has them."""
        try:
            found: list[memoryview | bytes] = [self._view(handle) for handle in fetch.handles]
        except BadHandle as fault:
            self._relay.tell(Fetched(FETCHED, fetch.number, str(fault)))
            return
        if fetch.fleeting:
            found = list(map(bytes, found))
        self.record.fetched_bytes += sum(map(len, found))
        self._relay.tell(Fetched(FETCHED, fetch.number), found)

    def _view(self, handle: Handle) -> memoryview:
        """Raises BadHandle."""
        name = NAME.fullmatch(handle.segment)
        if name is None or handle.segment.rpartition("-")[2][:ID_LENGTH] != self._identity.service:
            raise BadHandle("a tensor handle names no segment of this host")
        return self._reader.view(*handle)

    # --- stop -----------------------------------------------------------------------------------------------------

    def _on_dismissed(self, dismissed: Dismissed, frames: list[memoryview]) -> None:
        self._is_dismissed = True

    async def stop(self) -> bool:
        """The instances end what they hold and finalize. False if the time ran out."""
        deadline = time.monotonic() + self._settings.exit_timeout_secs
        self._is_leaving = True
        if self._link.membership.is_member:
            log.info("leaving: waiting for the instances to end what they hold")
            self._link.say(Leave(LEAVE))
        finished = await running.within(deadline, self._is_finished, self._say_left)
        for task in self._tasks:
            task.cancel()
        await self._stubs.close()
        if self._metrics is not None:
            self._metrics.close()
        self._relay.close()
        self._link.close()
        self._reader.close()
        self._identity.store.close()
        return finished

    def _is_finished(self) -> bool:
        """Without a broker the instances are told to end by us."""
        if self._is_dismissed:
            return True
        if self._link.membership.is_member:
            return False
        if not self._has_told_all_to_finish:
            self._has_told_all_to_finish = True
            self._relay.finish_all()
        return not self._stubs

    def _say_left(self, left_s: float) -> None:
        log.info(f"Timeout {left_s:.0f}: {len(self._stubs)} instances are left")
