"""What a stub asks of the broker and waits for: custom metrics, model control, calls to other models.

Whoever waits reads the bus itself if nobody else does, so that an answer takes no way round through another thread.
"""

from __future__ import annotations

from typing import Callable

from .shared import messages


class NotServing(Exception):
    """There is no broker to ask: no server (a unit test of a model), auto-completion, or after ``finalize``."""


def ask(make: Callable[[int], messages.ToBroker]) -> messages.Told:
    """Sends the message that ``make`` makes of a fresh number, and blocks (without the GIL) until it is answered.

    From any thread of the model, from ``initialize`` on. Raises NotServing.
    """
    raise NotServing
