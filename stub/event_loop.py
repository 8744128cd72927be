"""The asyncio event loop of a model whose ``execute`` is a coroutine: in a thread of its own, from first use on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any, Callable, Coroutine, Optional, Set

from . import calls

OnEnd = Callable[[Any, Optional[BaseException]], None]  # what it has returned, or raised

_STOP_S = 2.0


class EventLoop:
    """No exception of a coroutine ends it, ``sys.exit()`` included."""

    def __init__(self) -> None:
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._thread: Optional[threading.Thread] = None
        self._tasks: Set[asyncio.Task[None]] = set()  # the loop itself holds them only weakly
        self._starting = threading.Lock()
        self._stopping = False

    def run(self, coroutine: Coroutine[Any, Any, Any], executing: calls.Executing, on_end: OnEnd) -> None:
        """From any thread; ``on_end`` is called in the loop's."""
        self._started().call_soon_threadsafe(self._begin, coroutine, executing, on_end)

    def result_of(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Waits for it, in another thread than the loop's."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started()).result()

    def stop(self) -> None:
        """What still runs in it is left where it is. Gives up after two seconds, if that is what blocks it."""
        self._stopping = True
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_S)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=[self._loop], name="asyncio", daemon=True)
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not self._stopping:
            with contextlib.suppress(BaseException):  # a task that the model has made says sys.exit(); asyncio logs it
                loop.run_forever()

    def _begin(self, coroutine: Coroutine[Any, Any, Any], executing: calls.Executing, on_end: OnEnd) -> None:
        task = asyncio.get_running_loop().create_task(_run_to_end(coroutine, executing, on_end))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _run_to_end(coroutine: Coroutine[Any, Any, Any], executing: calls.Executing, on_end: OnEnd) -> None:
    calls.executing.set(executing)  # in the context of this task and of those that it starts
    try:
        returned = await coroutine
    except BaseException as error:
        on_end(None, error)
    else:
        on_end(returned, None)
