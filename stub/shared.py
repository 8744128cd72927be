"""The single door to protocol and shm.

In a stub process they are reached under the private package, since the model's folder may hold its own protocol.py or
shm.py; in the server and in tests ``stub`` is a plain package and so are they.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__ == "stub":
    from protocol import datatypes, errors, interpreters, messages, zmtp
    from shm import errors as shm_errors
    from shm import segment, store, sweep
    from shm.arena import ALIGNMENT
else:
    from _tensorbus_app.protocol import datatypes, errors, interpreters, messages, zmtp
    from _tensorbus_app.shm import errors as shm_errors
    from _tensorbus_app.shm import segment, store, sweep
    from _tensorbus_app.shm.arena import ALIGNMENT

__all__ = [
    "ALIGNMENT",
    "datatypes",
    "errors",
    "interpreters",
    "messages",
    "segment",
    "shm_errors",
    "store",
    "sweep",
    "zmtp",
]
