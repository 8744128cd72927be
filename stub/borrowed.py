"""Outputs of other models that this one uses: they are on lease until the last array over them has gone."""

from __future__ import annotations

from itertools import count
from typing import Any, Dict, List, Sequence, Tuple
from weakref import ref

from numpy.typing import NDArray

from . import calls, forks

_TOLD_AT_ONCE_NBYTES = 1 << 20  # to be free: less can wait until ``execute`` has returned
_PER_LEASE_NBYTES = 1 << 10

_held: Dict[Tuple[str, int], List[ref[NDArray[Any]]]] = {}  # a weak reference tells only while it lives itself
_free_nbytes = 0  # of the leases that are over; about, as several threads may add at once


def hold(origin: str, lease: int, roots: Sequence[NDArray[Any]]) -> None:
    """The lease is over when none of the roots (tensor.receive) is left."""
    generation, gone = forks.generation, count(1)
    nbytes = sum([root.nbytes for root in roots], _PER_LEASE_NBYTES)

    def on_gone(_: object) -> None:
        """In any thread, while anything else goes on; and in processes forked since, whose copies mean nothing."""
        global _free_nbytes
        if next(gone) == len(refs) and forks.generation == generation:
            _held.pop((origin, lease), None)
            _free_nbytes += nbytes
            calls.read(origin, lease)

    refs = [ref(root, on_gone) for root in roots]
    _held[origin, lease] = refs
    if not refs:
        del _held[origin, lease]
        calls.read(origin, lease)


def tell_much() -> None:
    """Before the next call, which may be one of thousands in one ``execute``, all with large outputs.

    Raises NotServing."""
    global _free_nbytes
    if _free_nbytes >= _TOLD_AT_ONCE_NBYTES:
        _free_nbytes = 0
        calls.tell_read()
