"""Looks for changes while a server runs: in the repositories in poll mode, in the models' code with --reload."""

from __future__ import annotations

import asyncio

from broker.server import BrokerServer
from tensorbus import reload
from tensorbus.polling import Poller, poll_for_ever
from tensorbus.repository import Repositories
from tensorbus.settings import ServeSettings


class ModelWatch:
    def __init__(self, settings: ServeSettings, broker: BrokerServer, repositories: Repositories) -> None:
        self._settings = settings
        self._broker = broker
        self._repositories = repositories
        self._poller: Poller | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def look(self) -> None:
        """Before the models to begin with are loaded. Raises ServingError."""
        if self._settings.model_control_mode == "poll" and self._settings.repository_poll_secs > 0:
            self._poller = Poller(await self._repositories.look())

    async def start(self) -> None:
        """Once they are."""
        if self._settings.reload:
            watches = await reload.first_look(self._broker)
            self._tasks.append(asyncio.create_task(reload.watch(self._broker, watches)))
        if self._poller is not None:
            polls = poll_for_ever(self._broker, self._repositories, self._poller, self._settings.repository_poll_secs)
            self._tasks.append(asyncio.create_task(polls))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
