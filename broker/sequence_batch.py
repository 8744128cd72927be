"""Which of an instance's sequences make its next batch, by the strategy that the configuration chooses. Pure.

Direct: a sequence keeps its place in the batch, all that are ready go, and what is missing below them is filled up.
Oldest: those that became ready first go, in any place, with the rules of dynamic batching.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

from broker.instance import Instance
from broker.queue import Pending
from broker.sequence_rules import SequenceRules

_ROUNDING = 1e-6  # of a 32-bit float


class Slot(NamedTuple):
    instance: Instance
    number: int  # from 0 in each instance


class Sequence:
    """``executing`` is with the instance; as long as it has no final answer the next one waits."""

    __slots__ = ("ended", "executing", "expires_ns", "id", "slot", "touched_ns", "waiting")

    def __init__(self, id: int | str) -> None:
        self.id = id
        self.waiting: deque[Pending] = deque()
        self.executing: Pending | None = None
        self.slot: Slot | None = None
        self.ended = False  # no more requests belong to it
        self.touched_ns = 0  # when it had something to do for the last time
        self.expires_ns = 0  # it must have a slot by then; 0 is never


# Those whose next request may leave, in the order in which they became so, and when.
ReadySequences = dict[Sequence, int]


class Choice(NamedTuple):
    """``places``: of the batch, with the direct strategy. Without sequences: look again at ``again_ns``."""

    sequences: list[Sequence]
    places: int = 0
    again_ns: int = 0


def choose(ready: ReadySequences, rules: SequenceRules, now: int) -> Choice:
    """``ready`` has at least one."""
    return _oldest(ready, rules, now) if rules.oldest else _direct(ready, rules, now)


def number(sequence: Sequence) -> int:
    """Of its slot."""
    assert sequence.slot is not None
    return sequence.slot.number


def _direct(ready: ReadySequences, rules: SequenceRules, now: int) -> Choice:
    """Those whose inputs are not as those of the lowest slot wait for the next batch; they have places in this one."""
    if rules.delay_ns and len(ready) / rules.slots + _ROUNDING < rules.utilization:
        leaves_ns = min(sequence.waiting[0].arrived_ns for sequence in ready) + rules.delay_ns
        if now < leaves_ns:
            return Choice([], again_ns=leaves_ns)
    found = sorted(ready, key=number)
    places = number(found[-1]) + 1
    same = _same(found, rules)
    return Choice([one for one, is_same in zip(found, same, strict=True) if is_same] if same else found, places)


def _oldest(ready: ReadySequences, rules: SequenceRules, now: int) -> Choice:
    found = list(islice(ready, rules.max_size))
    same = _same(found, rules)
    if False in same:
        found = found[: same.index(False)]
    preferred = max((size for size in rules.preferred if size <= len(found)), default=0)
    leaves_ns = next(iter(ready.values())) + rules.delay_ns
    late = leaves_ns <= now
    if preferred and not (late and rules.delay_ns):
        return Choice(found[:preferred])
    if late or len(found) < len(ready) or len(found) >= max(rules.preferred, default=1):
        return Choice(found)
    return Choice([], again_ns=leaves_ns)


def _same(sequences: list[Sequence], rules: SequenceRules) -> list[bool]:
    """Whether the inputs of each are as those of the first; [] where they always are."""
    form = rules.form(sequences[0].waiting[0].request)
    return [] if form is None else [rules.form(one.waiting[0].request) == form for one in sequences]
