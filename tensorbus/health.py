"""Whether a service is live and ready, asked from another thread: by its metrics endpoint, for an orchestrator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError

from metrics.endpoint import Health

Ask = Callable[[Callable[[bool], None]], None]  # calls what it is given with the answer, now or later

_PATIENCE_S = 5.0


def health(loop: asyncio.AbstractEventLoop, ready: Ask) -> Health:
    """Live is a loop that still has turns; whether the service is ``ready`` is asked in one of them."""
    return Health(live=lambda: _asked(loop, lambda done: done(True)), ready=lambda: _asked(loop, ready))


def _asked(loop: asyncio.AbstractEventLoop, ask: Ask) -> bool:
    answer: Future[bool] = Future()

    def answered(value: bool) -> None:
        with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
            answer.set_result(value)

    try:
        loop.call_soon_threadsafe(ask, answered)
        return answer.result(_PATIENCE_S)
    except (RuntimeError, TimeoutError):  # it is closed, or stuck
        return False
