"""How long steps of ensembles wait for others of the same step to end: what they wait for may be waiting for them."""

from __future__ import annotations

from broker.step_slots import StepSlots

PATIENCE_NS = 300 * 10**9


class Patience:
    """Invariant: exactly the slots that somebody waits for, as of their last ``watch``, are in here."""

    def __init__(self) -> None:
        self._crowded: dict[StepSlots, tuple[int, int]] = {}  # since when, and how many were granted till then

    def watch(self, slots: StepSlots, now: int) -> None:
        """To be told of whenever slots are taken or freed; whoever gets one proves that they still move."""
        if not slots.first():
            self._crowded.pop(slots, None)
        elif self._crowded.get(slots, (0, -1))[1] != slots.granted:
            self._crowded[slots] = (now, slots.granted)

    def exhausted(self, now: int) -> list[StepSlots]:
        return [slots for slots, (since, _) in self._crowded.items() if since + PATIENCE_NS <= now]

    def next_deadline(self) -> int | None:
        return min((since + PATIENCE_NS for since, _ in self._crowded.values()), default=None)
