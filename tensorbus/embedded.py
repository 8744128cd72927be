"""Gateway and broker in one process: the gateway's Bus by plain calls into the broker's shell."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.events import LoadModel, Override, UnloadModel
from broker.server import BrokerServer
from broker.statistics import statistics
from gateway.bus import Done, OnIndex, OnStatistics
from protocol.errors import ServingError


class EmbeddedBus:
    """A gateway.bus.Bus. Runs on the loop of both."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._registry = broker.core.registry
        # What each request needs costs it no call in between.
        self.submit, self.cancel, self.release = broker.submit, broker.cancel, broker.release
        self.signature = self._registry.signature

    def refuse_when_full(self, model: str, version: int) -> None:
        self._broker.core.refuse_when_full(model, version)

    def versions(self, model: str) -> list[int]:
        return self._registry.ready_versions(model)

    def live(self) -> bool:
        return not self._broker.core.stopping

    def ready(self, done: Callable[[bool], None]) -> None:
        self._broker.ready(done)

    def model_ready(self, model: str, version: int, done: Callable[[bool], None]) -> None:
        self._broker.model_ready(model, version, done)

    def statistics(self, model: str, version: int, done: OnStatistics) -> None:
        try:
            chosen = self._registry.select(model, version)
        except ServingError as error:
            done(error)
        else:
            done([statistics(one) for one in chosen])

    def index(self, ready: bool, done: OnIndex) -> None:
        self._broker.index(ready, done)

    def load(self, model: str, config: str | None, files: Mapping[str, bytes], done: Done) -> None:
        override = None if config is None and not files else Override(config, files)
        self._broker.post(LoadModel(model, override, done))

    def unload(self, model: str, unload_dependents: bool, done: Done) -> None:
        self._broker.post(UnloadModel(model, unload_dependents, done))
