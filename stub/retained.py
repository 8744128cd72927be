"""Inputs that the model still uses after their request was answered: their memory is leased until the last view goes.

A root array (tensor.receive) lives exactly as long as anybody can reach its memory; a weak reference to it is the test.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, List, Sequence
from weakref import ref

from numpy.typing import NDArray


class _Held:
    """A request and the weak references to its living roots; the references' callbacks hold this in turn."""

    __slots__ = ("living", "refs", "request")

    def __init__(self, request: int, roots: List[NDArray[Any]], gone: Deque[_Held]) -> None:
        self.request = request
        self.living = len(roots)
        self.refs = [ref(root, lambda _: gone.append(self)) for root in roots]


class RetainedInputs:
    """Roots may go in any thread of the model: their callbacks only append to a deque. All else is one thread's."""

    def __init__(self) -> None:
        self._held: List[_Held] = []
        self._gone: Deque[_Held] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, request: int, roots: Sequence[ref[NDArray[Any]]]) -> None:
        """If any of the request's roots is alive, its id comes out of ``collect`` once none is."""
        living = [root for root in (reference() for reference in roots) if root is not None]
        if living:
            self._held.append(_Held(request, living, self._gone))

    def collect(self) -> List[int]:
        """Requests whose last root has gone since the last call."""
        released: List[int] = []
        while self._gone:
            held = self._gone.popleft()
            held.living -= 1
            if not held.living:
                released.append(held.request)
                held.refs.clear()
                self._held.remove(held)
        return released
