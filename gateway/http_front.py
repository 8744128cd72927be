"""The HTTP front: a listening socket, its connections, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from concurrent.futures import ThreadPoolExecutor

from gateway.dataplane import DataPlane
from gateway.header_forwarding import HeaderForwarding
from gateway.http_call import Service
from gateway.http_connection import Connection
from gateway.http_routes import Endpoints
from metrics.custom import CustomMetrics
from protocol.errors import Unavailable

_BACKLOG = 1024
_RECEIVE_NBYTES = 256 << 10


class HttpFront:
    """Runs on the loop that calls ``start``. Connections are its own; the data plane is not."""

    def __init__(
        self,
        dataplane: DataPlane,
        address: str,
        port: int,
        max_input_size: int = 67108864,
        custom_metrics: CustomMetrics | None = None,
        forwarding: HeaderForwarding | None = None,
    ) -> None:
        self.address = address
        self.port = port
        self.connections: set[Connection] = set()
        self._endpoints = Endpoints(dataplane, max_input_size, custom_metrics, forwarding)
        self._receive_view = memoryview(bytearray(_RECEIVE_NBYTES))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="HTTP compression")  # has no thread until it is needed
        self._service = Service(dataplane, self._endpoints, self._worker)
        self._server: asyncio.Server | None = None
        self._all_gone = asyncio.Event()

    async def start(self) -> None:
        """Listen; ``port`` is the real one then. Raises Unavailable."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connection, self.address, self.port, backlog=_BACKLOG)
        except OSError as error:
            reason = "already in use" if error.errno == errno.EADDRINUSE else f"cannot be opened: {error.strerror}"
            raise Unavailable(f"Socket '{self.address}:{self.port}' {reason}") from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def drain(self, timeout_s: float) -> None:
        """No new connection, no new inference on an open one; those that run may finish. What still runs at the
        deadline is cancelled."""
        self._endpoints.exiting = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._until_all_are_gone()
        for connection in list(self.connections):
            connection.abort()
        await self._until_all_are_gone()
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def _until_all_are_gone(self) -> None:
        while self.connections:
            self._all_gone.clear()
            await self._all_gone.wait()

    def _connection(self) -> Connection:
        return Connection(self._service, self._receive_view, self._made, self._forget)

    def _made(self, connection: Connection) -> None:
        self.connections.add(connection)
        if self._endpoints.exiting:  # it was accepted before the socket was closed
            connection.close_if_idle()

    def _forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._all_gone.set()
