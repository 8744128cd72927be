"""What a model asks of the broker, from any of its threads and from processes that it forks.

``ask`` sends one message and waits for its Told: custom metrics, model control. ``call`` sends a request to another
model, for which there may be several answers. A process that the model forks has a connection of its own, opened by its
first call; the stub's is never touched there.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import secrets
import sys
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Callable, Optional, Tuple, Union

from .closed import Closed
from .open_calls import Caller, Frames, OpenCalls
from .open_calls import NotServing as NotServing
from .shared import messages

if TYPE_CHECKING:  # unit tests of models need no ZeroMQ
    from .channel import Channel


class Executing:
    """The batch that the running code is part of (Batch.id, 0 if that is not known: a thread of the model), and whether
    the instance is busy until that code is done. Goes into ``Call.batch`` and ``Call.waits``."""

    __slots__ = ("batch", "waits")

    def __init__(self, batch: int = 0, waits: bool = False) -> None:
        self.batch = batch
        self.waits = waits


_ELSEWHERE = Executing()
executing: ContextVar[Executing] = ContextVar("tensorbus_executing", default=_ELSEWHERE)


def serving() -> bool:
    """Whether calls to other models are legal: from Ready to Finish, in forked processes too."""
    return bool(_connection.serving[0])


def forked() -> bool:
    """Whether this is a process that the model has forked. Its calls must not use the stub's shared memory: their
    inputs go inline, and outputs are best copied and ``read`` at once."""
    return _connection.pid not in (0, os.getpid())


def ask(make: Callable[[int], messages.ToBroker]) -> messages.Told:
    """Sends the message that ``make`` makes of a fresh number, and blocks (without the GIL) until it is answered.

    From any thread of the model, from ``initialize`` on. Raises NotServing.
    """
    return _calls().ask(make)


def tell(message: messages.ToBroker) -> None:
    """Sends what is not answered. From any thread of the model, from ``initialize`` on. Raises NotServing."""
    _calls().tell(message)


def call(make: Callable[[int], Tuple[messages.Call, Frames]], caller: Caller) -> int:
    """Sends the Call, with its inline inputs, that ``make`` makes of a fresh number; returns that number.

    Raises NotServing.
    """
    return _calls().call(make, caller)


def cancel(number: int) -> None:
    """Nobody wants the answers to this call; they still come. After the final one it does nothing."""
    _calls().cancel(number)


def on_returned(number: int, callback: Callable[[], None]) -> None:
    """``callback`` is called, as ``on_answer`` is, when the inputs of this call are in use no more. To be said in its
    ``on_answer``, if the final response is ``retained``."""
    _calls().on_returned[number] = callback


def wait(done: Callable[[], object], timeout_s: Optional[float] = None) -> bool:
    """Blocks (without the GIL) until ``done()`` or the time is over; returns which. From any thread.

    ``done`` is asked after each message, in whichever thread reads it: it must be quick. Raises NotServing.
    """
    return _calls().wait(done, timeout_s)


def read(origin: str, lease: int) -> None:
    """The outputs of an Answered are in use no more. From any thread, from a finalizer too; told soon."""
    if _connection.calls is not None:
        _connection.calls.read(origin, lease)


def tell_read() -> None:
    """Tells now what ``read`` said. Raises NotServing."""
    _calls().flush()


def drop_metric(is_family: bool, number: int) -> None:
    """The model has let go of a metric (or family) of this process. From any thread, from a finalizer too; told at once
    if that can be, else soon, and before anything is asked."""
    if _connection.calls is not None:
        _connection.calls.drop_metric(is_family, number)


class Connection:
    """This process's way to the broker: the stub's own; in a process that the model forked, one of its own."""

    def __init__(self) -> None:
        self.calls: Optional[OpenCalls] = None
        self.serving: Union[bytearray, mmap.mmap] = bytearray(1)  # or memory that forked processes see change, too
        self.pid = 0  # of the stub
        self._address = self._key = ""
        self._lock = threading.Lock()

    def begin(self, calls: OpenCalls, address: str, key: str) -> None:
        """Once, in a stub that is to serve."""
        self.calls, self._address, self._key = calls, address, key
        self.serving = mmap.mmap(-1, 1)
        self.pid = os.getpid()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """In a forked process: threads that are not here may have held any lock of the stub's."""
        self.calls = None
        self._lock = threading.Lock()

    def of_fork(self) -> OpenCalls:
        """Raises NotServing."""
        if not forked():
            raise NotServing
        from .bus import Bus
        from .channel import Channel

        with self._lock:
            if self.calls is None:
                key = "{}/{}-{}".format(self._key, os.getpid(), secrets.token_hex(4))
                try:
                    channel = Channel(self._address, key, _lifeline(self.pid))
                except Closed:
                    raise NotServing from None
                self.calls = OpenCalls(Bus(channel), flushes=True)
                self._close_at_exit(self.calls, channel)
            return self.calls

    def _close_at_exit(self, calls: OpenCalls, channel: Channel) -> None:
        """What was said last must arrive. Processes of multiprocessing have exit handlers of their own."""

        def close() -> None:
            with contextlib.suppress(NotServing):
                calls.flush()
            channel.close()

        atexit.register(close)
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:
            multiprocessing.Finalize(None, close, exitpriority=0)


def _lifeline(pid: int) -> Optional[int]:
    """Readable once the stub is dead: then the broker has forgotten us, and no answer comes. Raises NotServing."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise NotServing from None


_connection = Connection()


def _calls() -> OpenCalls:
    return _connection.calls or _connection.of_fork()


def begin(calls: OpenCalls, address: str, key: str) -> None:
    """By the stub's main program: from now on there is a broker to ask."""
    _connection.begin(calls, address, key)


def set_serving(serving: bool) -> None:
    _connection.serving[0] = serving
