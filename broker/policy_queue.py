"""A queue with priorities: level before level, in each those whose time is up after the others. Pure: no clock.

    level 1    a b c | d      d has waited for longer than the policy of its level allows, which delays
    level 2    e f            the order of leaving is a b c d e f

There may be 2**64 levels, named by requests as they like: a level is there while something waits in it.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

from broker.queue import Pending
from broker.queue_policy import QueuePolicy
from protocol.messages import Request


class _Level:
    __slots__ = ("delayed", "waiting")

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, Pending] = OrderedDict()  # by Request.id
        self.delayed: OrderedDict[int, Pending] = OrderedDict()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.delayed)


_EMPTY = _Level()


class PolicyQueue:
    """What RequestQueue is to models without priorities. Invariant: ``_order`` names exactly the levels of ``_levels``,
    best first, and none of them is empty."""

    __slots__ = ("_default_level", "_default_policy", "_levels", "_order", "_policies", "_priorities", "_size")

    limited = timed = True

    def __init__(
        self,
        default_policy: QueuePolicy,
        priorities: int = 0,
        default_level: int = 0,
        policies: Mapping[int, QueuePolicy] | None = None,
    ) -> None:
        """``policies`` are those of levels that have one of their own."""
        self._default_policy = default_policy
        self._priorities = priorities
        self._default_level = default_level
        self._policies = dict(policies or {})
        self._levels: dict[int, _Level] = {}
        self._order: list[int] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Pending]:
        """Those who wait, in the order of ``pop``."""
        for number in self._order:
            level = self._levels[number]
            yield from level.waiting.values()
            yield from level.delayed.values()

    # --- policies

    def level(self, request: Request) -> int:
        """1 is the best; a request that names none, or one that there is not, has the default."""
        return request.priority if 0 < request.priority <= self._priorities else self._default_level

    def _policy(self, request: Request) -> QueuePolicy:
        return self._policies.get(self.level(request), self._default_policy)

    def is_full(self, request: Request) -> bool:
        """Whether the level of ``request`` has no room for it."""
        max_size = self._policy(request).max_size
        return 0 < max_size <= len(self._levels.get(self.level(request), _EMPTY))

    def timeout_ns(self, request: Request) -> int:
        return self._policy(request).timeout_ns(request)

    def expire(self, pending: Pending) -> bool:
        """The time of one that waits here is up: whether it is to be rejected, and out of the queue then."""
        if not self._policy(pending.request).delays:
            self.cancel(pending)
            return True
        level = self._levels[self.level(pending.request)]
        if level.waiting.pop(pending.request.id, None) is not None:
            level.delayed[pending.request.id] = pending
        return False

    # --- the queue

    def push(self, pending: Pending) -> None:
        self._of(pending).waiting[pending.request.id] = pending
        self._size += 1

    def push_front(self, pendings: Sequence[Pending]) -> None:
        """Gives back what was taken, in its order."""
        for pending in reversed(pendings):
            self.push(pending)
            self._of(pending).waiting.move_to_end(pending.request.id, last=False)

    def _of(self, pending: Pending) -> _Level:
        number = self.level(pending.request)
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = _Level()
            insort(self._order, number)
        return level

    def pop(self) -> Pending | None:
        if not self._order:
            return None
        number = self._order[0]
        level = self._levels[number]
        _, pending = (level.waiting or level.delayed).popitem(last=False)
        self._one_less(number)
        return pending

    def take(self, count: int) -> list[Pending]:
        """So many ``pop``s; the caller knows that there are as many."""
        return [pending for pending in (self.pop() for _ in range(count)) if pending is not None]

    def cancel(self, pending: Pending) -> None:
        """The caller knows that ``pending`` is in this queue."""
        number = self.level(pending.request)
        level = self._levels[number]
        if level.waiting.pop(pending.request.id, None) is None:
            del level.delayed[pending.request.id]
        self._one_less(number)

    def _one_less(self, number: int) -> None:
        self._size -= 1
        if not self._levels[number]:
            del self._levels[number]
            self._order.remove(number)

    def drain(self) -> list[Pending]:
        """Takes everything that still waits."""
        return self.take(len(self))

    def check(self) -> None:
        assert self._order == sorted(self._levels), self._order
        assert self._size == sum(map(len, self._levels.values())), self._size
        for number, level in self._levels.items():
            assert level, number
            assert not level.waiting.keys() & level.delayed.keys(), number
            assert {self.level(one.request) for part in (level.waiting, level.delayed) for one in part.values()} == {
                number
            }
