"""Inputs that the model still uses after their request was answered: their memory is leased until the last view goes.

A root array (tensor.receive) lives exactly as long as anybody can reach its memory; a weak reference to it is the test.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, List, Sequence, Set
from weakref import ref

from numpy.typing import NDArray


class _Held:
    """A request and the weak references to its living roots; the references' callbacks hold this in turn."""

    __slots__ = ("living", "refs", "request")

    def __init__(self, request: int, roots: List[NDArray[Any]], on_gone: Callable[[_Held], None]) -> None:
        self.request = request
        self.living = len(roots)
        self.refs = [ref(root, lambda _: on_gone(self)) for root in roots]


class RetainedInputs:
    """Requests end, and roots go, in any thread of the model; ``collect`` is for one thread.

    ``nudge`` is called, in any thread, when there is something to collect that there was not before."""

    def __init__(self, nudge: Callable[[], None]) -> None:
        self.gone: Deque[_Held] = deque()  # for ``collect`` to look at
        self._held: Set[_Held] = set()
        self._nudge = nudge

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, request: int, roots: Sequence[ref[NDArray[Any]]]) -> bool:
        """If any of the request's roots is alive: then its id comes out of ``collect`` once none is."""
        living = [root for reference in roots for root in [reference()] if root is not None]
        if living:
            self._held.add(_Held(request, living, self._on_gone))
        return bool(living)

    def _on_gone(self, held: _Held) -> None:
        """From a finalizer."""
        self.gone.append(held)
        if len(self.gone) == 1:
            self._nudge()

    def collect(self) -> List[int]:
        """Requests whose last root has gone since the last call."""
        released: List[int] = []
        while self.gone:
            held = self.gone.popleft()
            held.living -= 1
            if not held.living:
                released.append(held.request)
                held.refs.clear()
                self._held.discard(held)
        return released
