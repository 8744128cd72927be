"""The shared memory of a broker of its own: the response cache, and a nonce by which others prove that they share it.

Who shares it is given cached tensors by handle, and has its own looked at where they lie; with the others they travel
as frames. A broker without a cache has nothing there.
"""

from __future__ import annotations

import asyncio
import time

from broker.remote.domains import Domains
from broker.remote.fetched_memory import FetchedMemory
from broker.remote.fetches import Fetches
from shm.segment import default_directory
from shm.store import Reader
from shm.sweep import sweep
from tensorbus.cache import open_cache
from tensorbus.identity import Identity
from tensorbus.running import within
from tensorbus.sweeping import sweep_for_ever

_TRIM_S = 1.0
_ON_ITS_WAY_S = 1.0


class BrokerMemory:
    """Owns the segments. ``cache`` is None if there is no shared memory for it."""

    def __init__(self, cache_nbytes: int, domains: Domains, fetches: Fetches) -> None:
        """Raises OSError if there is no directory for shared memory."""
        self._directory = default_directory()
        sweep(self._directory)
        identity = Identity(self._directory, initial=1)
        self._store = identity.store
        self._reader = Reader(self._directory)
        self.cache = open_cache(
            cache_nbytes,
            self._directory,
            self._reader,
            lambda segment, reader: FetchedMemory(segment, reader, domains, fetches),
            identity.service,
        )
        if self.cache is not None:
            fetches.owns(identity.service, self.cache.memory.read)
            domains.add(identity.service, identity.probe, identity.nonce)
            domains.own = identity.service

    async def keep_house(self) -> None:
        sweeping = asyncio.create_task(sweep_for_ever(self._directory))
        try:
            while True:
                await asyncio.sleep(_TRIM_S)
                self._reader.trim()
        finally:
            sweeping.cancel()

    async def let_go(self, deadline: float) -> None:
        """Until nobody has anything of it on lease, or long enough for whom that is on its way to have mapped it."""
        responses = self.cache and self.cache.responses
        await within(
            min(deadline, time.monotonic() + _ON_ITS_WAY_S),
            lambda: responses is None or not responses.lent,
            lambda left_s: None,
        )

    def close(self) -> None:
        """After the cache was closed."""
        self._reader.close()
        self._store.close()
