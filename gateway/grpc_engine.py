"""The gRPC front: a listening socket, its connections, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

from gateway.grpc_connection import GrpcConnection, Shared
from gateway.grpc_in_flight import SHUTTING_DOWN
from gateway.grpc_inflating import Inflaters
from gateway.grpc_message import MessageMemory
from gateway.grpc_service import GrpcService
from protocol.errors import Unavailable

_BACKLOG = 1024
_RECEIVE_NBYTES = 256 << 10
_ANY_ADDRESS = ("0.0.0.0", "::")
_FLUSH_S = 1.0  # for the last answers to leave; less if they have left sooner


class GrpcEngine:
    """Runs on the loop that calls ``start``. Connections are its own; the service is not."""

    def __init__(self, service: GrpcService, address: str, port: int) -> None:
        self.port = port  # the bound one after ``start``
        self._service = service
        self._address = address
        self._connections: set[GrpcConnection] = set()
        self._shared = Shared(service, MessageMemory(), Inflaters(), memoryview(bytearray(_RECEIVE_NBYTES)))
        self._server: asyncio.Server | None = None
        self._all_gone = asyncio.Event()

    async def start(self) -> None:
        """Raises Unavailable where the port is taken."""
        loop = asyncio.get_running_loop()
        try:
            if self._address in _ANY_ADDRESS:
                self._server = await loop.create_server(self._connection, sock=self._listen_on_all(), backlog=_BACKLOG)
            else:
                self._server = await loop.create_server(self._connection, self._address, self.port, backlog=_BACKLOG)
        except OSError as error:
            reason = "already in use" if error.errno == errno.EADDRINUSE else f"cannot be opened: {error.strerror}"
            raise Unavailable(f"Socket '{self._address}:{self.port}' {reason}") from None
        self.port = self._server.sockets[0].getsockname()[1]

    def _listen_on_all(self) -> socket.socket:
        """IPv4 and IPv6 alike, whichever of the two is asked for, as gRPC's servers do."""
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):  # no IPv6 after all; a taken port is so below, too
                return socket.create_server(("::", self.port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("0.0.0.0", self.port))

    async def drain(self, timeout_s: float) -> None:
        """Refuse new inferences, let those that run finish, close. What still runs at the deadline is cancelled."""
        all_answered = await self._service.drain(timeout_s)
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
        if all_answered:
            await self._until_all_are_gone(_FLUSH_S)
        for connection in list(self._connections):
            connection.end_calls(Unavailable(SHUTTING_DOWN))
        await self._until_all_are_gone(_FLUSH_S)
        for connection in list(self._connections):
            connection.abort()
        await self._until_all_are_gone(_FLUSH_S)
        self._shared.inflaters.close()

    def trim(self) -> None:
        """Now and then, for memory that has not been used for a while."""
        self._shared.memory.trim()

    async def _until_all_are_gone(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._connections:
                    self._all_gone.clear()
                    await self._all_gone.wait()

    def _connection(self) -> GrpcConnection:
        return GrpcConnection(self._shared, self._connections.add, self._forget)

    def _forget(self, connection: GrpcConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_gone.set()
