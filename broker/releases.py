"""Outputs that have been read and whose stub has yet to be told: that rides on its next message, or goes alone."""

from __future__ import annotations

from broker.instance import Instance


class Releases:
    """Invariant: exactly the instances with something in ``released`` are in here, each with its time."""

    def __init__(self, delay_ns: int) -> None:
        self._delay_ns = delay_ns
        self.urgent: dict[Instance, None] = {}  # to be told at the end of the turn; an ordered set
        self._due: dict[Instance, int] = {}
        self._starved: set[Instance] = set()

    def add(self, instance: Instance, lease: int, now: int) -> None:
        instance.released.append(lease)
        if self._starved and instance in self._starved:
            self.urgent[instance] = None
        self._due.setdefault(instance, now + self._delay_ns)

    def take(self, instance: Instance) -> list[int]:
        """For a message that leaves now; also when the process is dead."""
        taken, instance.released = instance.released, []
        self._due.pop(instance, None)
        if self._starved:
            self._starved.discard(instance)
            self.urgent.pop(instance, None)
        return taken

    def starved(self, instance: Instance) -> None:
        """It waits for the next thing to be told."""
        self._starved.add(instance)
        if instance.released:
            self.urgent[instance] = None

    def due(self, now: int) -> list[Instance]:
        """Those that have been left untold for long enough."""
        return [instance for instance, at in self._due.items() if at <= now]

    def next_deadline(self) -> int | None:
        return min(self._due.values(), default=None)
