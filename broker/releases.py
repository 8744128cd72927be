"""Outputs that have been read and whose stub has yet to be told: that rides on its next message, or goes alone."""

from __future__ import annotations

from broker.instance import Instance


class Releases:
    """Invariant: exactly the instances with something in ``released`` are in here, each with its time."""

    def __init__(self, delay_ns: int) -> None:
        self._delay_ns = delay_ns
        self._due: dict[Instance, int] = {}

    def add(self, instance: Instance, lease: int, now: int) -> None:
        instance.released.append(lease)
        self._due.setdefault(instance, now + self._delay_ns)

    def take(self, instance: Instance) -> list[int]:
        """For a message that leaves now; also when the process is dead."""
        taken, instance.released = instance.released, []
        self._due.pop(instance, None)
        return taken

    def due(self, now: int) -> list[Instance]:
        """Those that have been left untold for long enough."""
        return [instance for instance, at in self._due.items() if at <= now]

    def next_deadline(self) -> int | None:
        return min(self._due.values(), default=None)
