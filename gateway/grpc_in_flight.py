"""Which inferences of the gRPC service run, over all its calls and streams: what a drain waits for."""

from __future__ import annotations

import asyncio

from protocol.errors import Unavailable

SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."


class InFlight:
    """Invariant: ``_running`` is the number of inferences that have neither answered finally nor been cancelled."""

    def __init__(self) -> None:
        self._running = 0
        self._draining: asyncio.Future[None] | None = None

    def refuse_while_draining(self) -> None:
        if self._draining is not None:
            raise Unavailable(SHUTTING_DOWN)

    def started(self) -> None:
        self._running += 1

    def finished(self) -> None:
        self._running -= 1
        if self._draining is not None and not self._running and not self._draining.done():
            self._draining.set_result(None)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new inferences and wait for those that run. False: some still do."""
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_future()
        if self._running:
            await asyncio.wait((self._draining,), timeout=timeout_s)
        return not self._running
