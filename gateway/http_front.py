"""The HTTP front: a listening socket, its connections, and how they end."""

from __future__ import annotations

import asyncio
import errno

from gateway.dataplane import DataPlane
from gateway.http_connection import Connection
from gateway.http_routes import Endpoints

_BACKLOG = 1024
_RECEIVE_NBYTES = 256 << 10


class PortInUse(Exception):
    """``str(error)`` is the line for the operator."""


class HttpFront:
    """Runs on the loop that calls ``start``. Connections are its own; the data plane is not."""

    def __init__(self, dataplane: DataPlane, address: str, port: int, max_input_size: int = 67108864) -> None:
        self.address = address
        self.port = port
        self.connections: set[Connection] = set()
        self._dataplane = dataplane
        self._endpoints = Endpoints(dataplane, max_input_size)
        self._receive_view = memoryview(bytearray(_RECEIVE_NBYTES))
        self._server: asyncio.Server | None = None
        self._all_gone = asyncio.Event()

    async def start(self) -> None:
        """Listen; ``port`` is the real one then. Raises PortInUse."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connection, self.address, self.port, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortInUse(
                f"failed to start HTTP service: Unavailable - Socket '{self.address}:{self.port}' already in use"
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_accepting(self) -> None:
        """No new connection, no new inference on an open one; idle connections are closed."""
        self._endpoints.exiting = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_if_idle()

    async def drain(self, deadline: float) -> int:
        """``stop_accepting``, then let running requests finish until ``deadline`` (the loop's time). Returns the
        number of connections that are left."""
        self.stop_accepting()
        try:
            async with asyncio.timeout_at(deadline):
                while self.connections:
                    self._all_gone.clear()
                    await self._all_gone.wait()
        except TimeoutError:
            pass
        return len(self.connections)

    async def close(self) -> None:
        """End everything now; running inferences are cancelled."""
        self.stop_accepting()
        for connection in list(self.connections):
            connection.abort()
        while self.connections:
            self._all_gone.clear()
            await self._all_gone.wait()

    def _connection(self) -> Connection:
        return Connection(self._dataplane, self._endpoints, self._receive_view, self.connections.add, self._forget)

    def _forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._all_gone.set()
