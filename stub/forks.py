"""Tells a process that the model has forked from the stub: ``generation`` is another one there.

Whoever must not work in such a process remembers the generation that it was made in. Asking for the pid instead would
be a system call for each tensor.
"""

from __future__ import annotations

import os

generation = 0


def _next() -> None:
    global generation
    generation += 1


os.register_at_fork(after_in_child=_next)
