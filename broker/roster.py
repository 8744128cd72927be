"""Which process is which: routing ids of the living stub processes, and what each is there for."""

from __future__ import annotations

from broker.instance import Instance
from broker.model import ModelVersion


class Roster:
    """A key is in here from Spawn until the process is reported dead."""

    def __init__(self, last_index: int = 0) -> None:
        self._instances: dict[str, tuple[ModelVersion, Instance]] = {}
        self._configuring: dict[str, ModelVersion] = {}
        self._hosts: dict[str, str] = {}
        self._last_index = last_index

    def next_index(self) -> int:
        self._last_index += 1
        return self._last_index

    def add_instance(self, version: ModelVersion, instance: Instance) -> None:
        self._instances[instance.key] = (version, instance)
        self._hosts[instance.key] = instance.host

    def add_configuring(self, key: str, version: ModelVersion, host: str) -> None:
        self._configuring[key] = version
        self._hosts[key] = host

    def on(self, host: str) -> list[str]:
        """The keys of the processes that run there."""
        return [key for key, of in self._hosts.items() if of == host]

    def host_of(self, key: str) -> str:
        return self._hosts[key]

    def serving(self, key: str) -> tuple[ModelVersion, Instance] | None:
        """By the routing id of any socket of the process: another one than its first has a suffix after a slash."""
        return self._instances.get(key) or (self._instances.get(key.partition("/")[0]) if "/" in key else None)

    def configuring(self, key: str) -> ModelVersion | None:
        return self._configuring.get(key)

    def remove(self, key: str) -> None:
        self._instances.pop(key, None)
        self._configuring.pop(key, None)
        self._hosts.pop(key, None)

    def __len__(self) -> int:
        return len(self._instances) + len(self._configuring)
