"""The model's ``is_ready``, called whenever somebody wants to know.

In a thread and over a socket of its own, since the main thread may be inside ``execute`` for as long as the model
likes. A model without ``is_ready`` has neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any, Callable, Coroutine

from .channel import Channel, Closed
from .exception_text import exception_text
from .shared import messages

RunCoroutine = Callable[[Coroutine[Any, Any, Any]], Any]


def serve(bus: str, key: str, model: Any, run: RunCoroutine = asyncio.run) -> None:
    """Answers from now on, if the model has ``is_ready``. ``run`` is for one that is a coroutine."""
    threading.Thread(target=_serve, args=(bus, key, model, run), name="tensorbus is_ready", daemon=True).start()


def _serve(bus: str, key: str, model: Any, run: RunCoroutine) -> None:
    with contextlib.suppress(Closed):
        channel = Channel(bus, key + "/ready")
        channel.send(messages.IsReady(messages.IS_READY, 0, False))  # the broker cannot send to us before it knows us
        while True:
            received = channel.receive()
            if received is not None and isinstance(received.message, messages.AskReady):
                channel.send(answer(received.message, model, run))


def answer(asked: messages.AskReady, model: Any, run: RunCoroutine = asyncio.run) -> messages.IsReady:
    try:
        ready = model.is_ready()
        if asyncio.iscoroutine(ready):
            ready = run(ready)
    except BaseException as error:  # sys.exit() too: the model is asked again next time
        return _no(asked, exception_text(error))
    if type(ready) is not bool:  # nothing else will do: numpy.bool_ and 1 are mistakes more often than not
        return _no(asked, "is_ready() must return a boolean value")
    return messages.IsReady(messages.IS_READY, asked.call, ready)


def _no(asked: messages.AskReady, error: str) -> messages.IsReady:
    return messages.IsReady(messages.IS_READY, asked.call, False, error)
