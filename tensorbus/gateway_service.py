"""``tensorbus gateway``: a gateway without models of its own, from its start to its exit code.

It answers clients from its start on: without a broker it is live and not ready, and refuses requests.

    no broker, or lost --Welcome, Catalogue--> requests are taken --SIGTERM--> not ready --> the fronts drain, Leave
          ^                                        |
          +------- lost: requests that come are kept for --broker-wait-secs, then they fail, and others are refused;
                   those unanswered are kept for --broker-timeout-secs, and then fail
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog

from gateway.admission import Admission
from gateway.dataplane import DataPlane
from gateway.remote_bus import RemoteBus
from metrics.gateway_record import GatewayRecord
from metrics.recorder import Recorder
from protocol import services
from protocol.services import GATEWAY, JOIN, LEAVE, Dismissed, Join, Leave, ToService, Welcome, first_request
from shm.segment import default_directory
from shm.store import Reader
from shm.sweep import sweep
from tensorbus import running
from tensorbus.broker_link import BrokerLink
from tensorbus.fronts import Fronts
from tensorbus.identity import Identity
from tensorbus.logs import current_settings
from tensorbus.sweeping import sweep_for_ever

if TYPE_CHECKING:
    from tensorbus.service_settings import GatewaySettings

log = structlog.get_logger()

_DISMISSAL_S = 1.0
_SECOND_NS = 10**9


async def run(settings: GatewaySettings) -> int:
    """Until SIGINT or SIGTERM, or until the broker refuses it; the exit code."""
    return await running.exit_code(_run(settings), "gateway")


async def _run(settings: GatewaySettings) -> int:
    gateway = GatewayService(settings)
    return await running.run(gateway, "gateway", gateway.is_over)


class GatewayService:
    """A running.Service, and the broker_link.Owner of its link."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self.is_over = asyncio.Event()
        directory = default_directory()
        sweep(directory)
        self._shm_directory = directory
        self._identity = Identity(directory, settings.shm_default_byte_size)
        self._store = self._identity.store
        self._reader = Reader(directory)
        self.recorder = Recorder(custom=False)
        self.record = self.recorder.gateway = GatewayRecord()
        self._fronts = Fronts(settings, self.recorder)
        self._link = BrokerLink(settings.broker, self._identity.service, settings.trust, self._reader, self)
        self._lost_at: int | None = None  # None before it was ever joined, and once that is made good
        self._is_dismissed = False
        self._tasks: list[asyncio.Task[None]] = []

    # --- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises CannotListen."""
        settings = self._settings
        running.warn_of(settings.ignored_flags)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._fronts.load)
        self._bus = RemoteBus(loop, self._store, self._link.say, self.record)
        admission = Admission(self.recorder.pressure, settings.max_queued_bytes)
        self._dataplane = DataPlane(
            self._bus, self._store, self._reader, settings.id, current_settings(), admission, settings.small_nbytes
        )
        self._dataplane.number_from(first_request(self._identity.service))
        await self._fronts.start(self._dataplane, lambda done: done(self._bus.is_ready and self._bus.says_ready))
        self._link.start()
        for work in (self._fronts.keep_house(self._dataplane), sweep_for_ever(self._shm_directory)):
            self._tasks.append(loop.create_task(work))

    @property
    def ports(self) -> dict[str, int]:
        """As of ``Fronts``."""
        return self._fronts.ports

    # --- the broker -----------------------------------------------------------------------------------------------

    def join(self) -> Join:
        we, settings = self._identity, self._settings
        return Join(JOIN, services.VERSION, settings.cluster_id, GATEWAY, we.service, settings.id, we.probe, we.nonce)

    def on_joined(self, welcome: Welcome) -> None:
        if self._lost_at is not None:
            self.record.rejoins += 1
        self.record.broker_up = True
        self._bus.joined()

    def on_lost(self) -> None:
        """Those that it was lost to before, and could not be made good to them, have waited long enough already."""
        if self.record.broker_up and (self._lost_at is None or self._bus.is_settled):
            self._lost_at = time.monotonic_ns()
        self.record.broker_up = False
        self._bus.lost()

    def on_tick(self, now: int) -> None:
        """How long it goes on without a broker."""
        if self._bus.is_settled:
            self._lost_at = None
        if self._lost_at is None:
            return
        lost_ns = now - self._lost_at
        if lost_ns >= self._settings.broker_wait_secs * _SECOND_NS and not self._bus.is_ready:
            self._bus.refuse()
        if lost_ns >= self._settings.broker_timeout_secs * _SECOND_NS:
            self._bus.give_up()

    def on_message(self, message: ToService, frames: list[memoryview]) -> None:
        if isinstance(message, Dismissed):
            self._is_dismissed = True
        else:
            self._bus.heard(message, frames)

    def on_refused(self, reason: str) -> None:
        log.error("the broker refuses this gateway", reason=reason)
        self.is_over.set()

    def take_new_id(self) -> str:
        """Nothing may be left under the old one: it is in the ids of requests and in the names of segments."""
        service = self._identity.renew() if self._bus.is_idle else ""
        if service:
            self._dataplane.number_from(first_request(service))
        return service

    # --- stop -----------------------------------------------------------------------------------------------------

    async def stop(self) -> bool:
        """Answer what is in flight. False if the time ran out."""
        if self._settings.exit_delay_secs and self._link.membership.is_member:
            self._bus.says_ready = False
            log.info("not ready any more; requests are still taken", seconds=self._settings.exit_delay_secs)
            await asyncio.sleep(self._settings.exit_delay_secs)
        timeout_s = self._settings.exit_timeout_secs
        deadline = time.monotonic() + timeout_s
        for task in self._tasks:
            task.cancel()
        fronts = asyncio.gather(*self._fronts.drain(timeout_s))
        self._bus.wait_for_no_load()
        log.info("Waiting for in-flight requests to complete.")
        drained = await running.within(deadline, self._is_idle, self._say_in_flight)
        await fronts
        if self._link.membership.is_member:
            self._link.say(Leave(LEAVE))
            await running.within(time.monotonic() + _DISMISSAL_S, lambda: self._is_dismissed, lambda left_s: None)
        self._fronts.close()
        self._link.close()
        self._reader.close()
        self._store.close()
        return drained

    def _is_idle(self) -> bool:
        return self._bus.is_idle

    def _say_in_flight(self, left_s: float) -> None:
        log.info(f"Timeout {left_s:.0f}: Found {self.record.pending} in-flight inferences")
