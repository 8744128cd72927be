"""What clients reach over the network: the fronts of HTTP and gRPC, and the metrics endpoint."""

from __future__ import annotations

import asyncio
import errno
import importlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import structlog

from gateway.dataplane import DataPlane
from gateway.header_forwarding import forwarding
from metrics.endpoint import MetricsEndpoint
from metrics.recorder import Recorder
from protocol.errors import Unavailable
from tensorbus.health import Ask, health
from tensorbus.heap import HeapTrim, malloc_trim
from tensorbus.running import CannotListen

if TYPE_CHECKING:
    from gateway.grpc_engine import GrpcEngine
    from gateway.http_front import HttpFront

log = structlog.get_logger()

_HOUSEKEEPING_S = 1.0


class FrontSettings(Protocol):
    """Those of the settings of a service that are of its fronts."""

    @property
    def allow_http(self) -> bool: ...
    @property
    def http_address(self) -> str: ...
    @property
    def http_port(self) -> int: ...
    @property
    def http_max_input_size(self) -> int: ...
    @property
    def http_header_forward_pattern(self) -> str: ...
    @property
    def allow_grpc(self) -> bool: ...
    @property
    def grpc_address(self) -> str: ...
    @property
    def grpc_port(self) -> int: ...
    @property
    def grpc_header_forward_pattern(self) -> str: ...
    @property
    def allow_metrics(self) -> bool: ...
    @property
    def metrics_address(self) -> str: ...
    @property
    def metrics_port(self) -> int: ...
    @property
    def allow_cpu_metrics(self) -> bool: ...
    @property
    def metrics_interval_ms(self) -> int: ...
    @property
    def pinned_memory_pool_byte_size(self) -> int: ...


class Fronts:
    """Those that the settings ask for, from ``start`` to ``drain`` and ``close``."""

    def __init__(self, settings: FrontSettings, recorder: Recorder) -> None:
        self._settings = settings
        self._recorder = recorder
        self._http: HttpFront | None = None
        self._grpc: GrpcEngine | None = None
        self._metrics: MetricsEndpoint | None = None

    def load(self) -> None:
        """The imports, which take as long as a model's: for a thread, before they are needed."""
        if self._settings.allow_grpc:
            importlib.import_module("gateway.grpc_engine")
        if self._settings.allow_http:
            importlib.import_module("gateway.http_front")

    async def start(self, dataplane: DataPlane, ready: Ask | None = None) -> None:
        """In the order of Triton: gRPC, HTTP, metrics. ``ready`` is for the health of the process, if that is not
        whether the server is ready. Raises CannotListen."""
        settings = self._settings
        if settings.allow_grpc:
            await self._start_grpc(dataplane)
        if settings.allow_http:
            await self._start_http(dataplane)
        if settings.allow_metrics:
            self._metrics = start_metrics(settings, self._recorder, ready or dataplane.server_ready)

    async def _start_grpc(self, dataplane: DataPlane) -> None:
        from gateway.grpc_engine import GrpcEngine
        from gateway.grpc_service import GrpcService

        address = self._settings.grpc_address
        service = GrpcService(dataplane, forwarding(self._settings.grpc_header_forward_pattern))
        engine = GrpcEngine(service, address, self._settings.grpc_port)
        await _listen("GRPC", engine)
        self._grpc = engine
        log.info(f"Started GRPCInferenceService at {address}:{engine.port}")

    async def _start_http(self, dataplane: DataPlane) -> None:
        from gateway.http_front import HttpFront

        settings = self._settings
        front = HttpFront(
            dataplane,
            settings.http_address,
            settings.http_port,
            settings.http_max_input_size,
            self._recorder.custom,
            forwarding(settings.http_header_forward_pattern),
        )
        await _listen("HTTP", front)
        self._http = front
        log.info(f"Started HTTPService at {settings.http_address}:{front.port}")

    @property
    def ports(self) -> dict[str, int]:
        """Of those that listen: "http", "grpc", "metrics"."""
        fronts = {"http": self._http, "grpc": self._grpc, "metrics": self._metrics}
        return {name: front.port for name, front in fronts.items() if front is not None}

    async def keep_house(self, dataplane: DataPlane, also: Callable[[], Awaitable[None]] | None = None) -> None:
        """For ever: gives memory back that has not been used for a while."""
        trim = HeapTrim()
        while True:
            await asyncio.sleep(_HOUSEKEEPING_S)
            dataplane.trim()
            dataplane.store.trim(time.monotonic())
            dataplane.reader.trim()
            if also is not None:
                await also()
            if self._grpc is not None:
                self._grpc.trim()
            if trim.due(dataplane.large_calls):
                await asyncio.to_thread(malloc_trim)

    def drain(self, timeout_s: float) -> Iterator[Awaitable[object]]:
        """They refuse new work from now on, answer what they have, and close."""
        if self._http is not None:
            yield self._http.drain(timeout_s)
        if self._grpc is not None:
            yield self._grpc.drain(timeout_s)

    def close(self) -> None:
        """The metrics endpoint, which answers to the end."""
        if self._metrics is not None:
            self._metrics.close()


def start_metrics(settings: FrontSettings, recorder: Recorder, ready: Ask) -> MetricsEndpoint:
    """On the running loop, where it is asked whether the service is ``ready``. Raises CannotListen."""
    endpoint = MetricsEndpoint(
        recorder,
        settings.metrics_address,
        settings.metrics_port,
        pinned_pool_bytes=settings.pinned_memory_pool_byte_size,
        cpu_metrics=settings.allow_cpu_metrics,
        interval_s=settings.metrics_interval_ms / 1000,
        health=health(asyncio.get_running_loop(), ready),
    )
    try:
        endpoint.start()
    except OSError as error:
        reason = "already in use" if error.errno == errno.EADDRINUSE else f"cannot be opened: {error.strerror}"
        socket = f"Socket '{settings.metrics_address}:{settings.metrics_port}'"
        raise CannotListen(f"failed to start Metrics service: Unavailable - {socket} {reason}") from None
    log.info(f"Started Metrics Service at {settings.metrics_address}:{endpoint.port}")
    return endpoint


async def _listen(service: str, front: HttpFront | GrpcEngine) -> None:
    try:
        await front.start()
    except Unavailable as error:
        raise CannotListen(f"failed to start {service} service: Unavailable - {error}") from None
