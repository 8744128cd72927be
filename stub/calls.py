"""What a model asks of the broker, from any of its threads and from processes that it forks.

``ask`` sends one message and waits for its Told: custom metrics, model control. ``call`` sends a request to another
model, for which there may be several answers. A process that the model forks has a connection of its own, opened by its
first call; the stub's is never touched there.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import mmap
import os
import secrets
import sys
import threading
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Callable, Deque, Dict, List, Optional, Protocol, Sequence, Tuple, Union

from .closed import Closed
from .shared import errors, messages

if TYPE_CHECKING:  # unit tests of models need no ZeroMQ
    from .bus import Bus
    from .channel import Channel

Frames = Sequence[Union[bytes, memoryview]]


class Caller(Protocol):
    """Is told in whichever thread reads the bus: must not block, nor hold a lock that somebody holds while sending."""

    def on_answer(self, answered: messages.Answered, frames: List[memoryview]) -> None:
        """For each answer, the final one last."""

    def on_lost(self) -> None:
        """No more will come."""


class NotServing(Exception):
    """There is no broker to ask: no server (a unit test of a model), auto-completion, or after the stub's end."""


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


class Calls:
    """Invariant: a number is in ``_asked`` or ``_callers`` from before its message leaves until its last answer."""

    def __init__(self, bus: Bus, flushes: bool = False) -> None:
        """``flushes``: there is nobody else here to tell what was read."""
        self.on_returned: Dict[int, Callable[[], None]] = {}
        self._bus = bus
        self._flushes = flushes
        self._numbers = itertools.count(1)
        self._asked: Dict[int, List[messages.Told]] = {}
        self._callers: Dict[int, Caller] = {}
        self._read: Deque[Tuple[str, int]] = deque()
        self._dropped: Deque[Tuple[bool, int]] = deque()
        bus.handlers[messages.Told] = self._told
        bus.handlers[messages.Answered] = self._answered
        bus.handlers[messages.Returned] = self._returned
        bus.on_fault = self._lost

    @property
    def has_read(self) -> bool:
        return bool(self._read)

    def take_read(self) -> List[Tuple[str, int]]:
        """For Results.read: what was read since the last time."""
        read: List[Tuple[str, int]] = []
        with contextlib.suppress(IndexError):  # another thread may be telling, too
            while self._read:
                read.append(self._read.popleft())
        return read

    @property
    def has_dropped(self) -> bool:
        return bool(self._dropped)

    def tell_dropped(self) -> None:
        families: List[int] = []
        metrics: List[int] = []
        with contextlib.suppress(IndexError):  # another thread may be telling, too
            while True:
                is_family, number = self._dropped.popleft()
                (families if is_family else metrics).append(number)
        if families or metrics:
            self._send(messages.DropMetrics(messages.DROP_METRICS, families, metrics))

    def ask(self, make: Callable[[int], messages.ToBroker]) -> messages.Told:
        self.tell_dropped()
        number = next(self._numbers)
        told = self._asked[number] = []
        try:
            self._send(make(number))
            self.wait(lambda: told)
        finally:
            del self._asked[number]
        return told[0]

    def tell(self, message: messages.ToBroker) -> None:
        self._send(message)

    def call(self, make: Callable[[int], Tuple[messages.Call, Frames]], caller: Caller) -> int:
        number = next(self._numbers)
        message, frames = make(number)
        if not _will_wait():
            self._bus.read_in_background()
        self._callers[number] = caller
        try:
            if self._bus.is_broken:
                raise NotServing
            self._send(message, frames)
        except NotServing:
            self._callers.pop(number, None)
            raise
        return number

    def cancel(self, number: int) -> None:
        if number in self._callers:
            self._send(messages.CancelCall(messages.CANCEL_CALL, number))

    def wait(self, done: Callable[[], object], timeout_s: Optional[float] = None) -> bool:
        try:
            return self._bus.wait(done, timeout_s)
        except Closed:
            raise NotServing from None
        finally:
            if self._flushes:
                self.flush()

    def flush(self) -> None:
        read = self.take_read()
        if read:
            self._send(messages.Results(messages.RESULTS, [], [], [], read))
        self.tell_dropped()

    def read(self, origin: str, lease: int) -> None:
        self._read.append((origin, lease))
        if len(self._read) == 1:
            self._bus.nudge()

    def drop_metric(self, is_family: bool, number: int) -> None:
        families, metrics = ([number], []) if is_family else ([], [number])
        if not self._bus.send_from_finalizer(messages.DropMetrics(messages.DROP_METRICS, families, metrics)):
            self._dropped.append((is_family, number))
            if len(self._dropped) == 1:
                self._bus.nudge()

    def _send(self, message: messages.ToBroker, frames: Frames = ()) -> None:
        try:
            self._bus.send(message, frames)
        except Closed:
            raise NotServing from None

    def _told(self, told: messages.Told, frames: List[memoryview]) -> None:
        asked = self._asked.get(told.call)
        if asked is not None:  # else an exception of a signal handler has ended the waiting
            asked.append(told)

    def _answered(self, answered: messages.Answered, frames: List[memoryview]) -> None:
        caller = self._callers.get(answered.call)
        if caller is None:
            raise errors.ProtocolError("answer to call {}, which is not open".format(answered.call))
        if answered.response.final:
            del self._callers[answered.call]
        caller.on_answer(answered, frames)

    def _lost(self) -> None:
        while self._callers:
            _, caller = self._callers.popitem()
            caller.on_lost()

    def _returned(self, returned: messages.Returned, frames: List[memoryview]) -> None:
        for number in returned.calls:
            callback = self.on_returned.pop(number, None)
            if callback is not None:
                callback()


def _will_wait() -> bool:
    """Whether the calling code will wait for its answer by ``wait``, in the main thread. A coroutine will not."""
    asyncio = sys.modules.get("asyncio")
    in_main = threading.get_ident() == threading.main_thread().ident
    return in_main and (asyncio is None or asyncio._get_running_loop() is None)


class Connection:
    """This process's way to the broker: the stub's own; in a process that the model forked, one of its own."""

    def __init__(self) -> None:
        self.calls: Optional[Calls] = None
        self.serving: Union[bytearray, mmap.mmap] = bytearray(1)  # or memory that forked processes see change, too
        self.pid = 0  # of the stub
        self._address = self._key = ""
        self._lock = threading.Lock()

    def begin(self, calls: Calls, address: str, key: str) -> None:
        """Once, in a stub that is to serve."""
        self.calls, self._address, self._key = calls, address, key
        self.serving = mmap.mmap(-1, 1)
        self.pid = os.getpid()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """In a forked process: threads that are not here may have held any lock of the stub's."""
        self.calls = None
        self._lock = threading.Lock()

    def of_fork(self) -> Calls:
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
                self.calls = Calls(Bus(channel), flushes=True)
                self._close_at_exit(self.calls, channel)
            return self.calls

    def _close_at_exit(self, calls: Calls, channel: Channel) -> None:
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


def _calls() -> Calls:
    return _connection.calls or _connection.of_fork()


def begin(calls: Calls, address: str, key: str) -> None:
    """By the stub's main program: from now on there is a broker to ask."""
    _connection.begin(calls, address, key)


def set_serving(serving: bool) -> None:
    _connection.serving[0] = serving
