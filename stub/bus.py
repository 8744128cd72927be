"""Who reads what the broker says: whoever waits for something.

At first that is the main thread alone: idle it waits for work, and inside ``execute`` for the answers to what the model
asks; so an answer takes no way round through another thread. The first time that another thread, or a coroutine, needs
an answer, a thread of our own takes over for good, since the main thread may be busy with the model for as long as it
likes; from then on the main thread is woken for its work like all others. So it does where work waits behind one long
execution after the other (loop.py), and before the main thread waits inside a model that handles signals: a handler
that raises must not take with it a message that is being read. What another thread raises there
(PyThreadState_SetAsyncExc) comes when a call that waits returns, and finds what that has read in the channel's hands.

What threads are made of is taken from ``_thread`` before the model is there: gevent, which a model may well have patch
``threading``, would make the reader a part of the very thread that waits for it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from _thread import LockType, allocate_lock, get_ident, start_new_thread
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Union

from . import signals
from .channel import Channel, Received
from .shared import errors, messages

IsDone = Callable[[], Any]
Handler = Callable[[Any, List[memoryview]], None]  # of a message and its frames

_GLANCE_NS = 1_000_000  # between two looks at the socket by a model that computes


class _Waiter(NamedTuple):
    done: IsDone
    permit: LockType  # the waiting thread has taken it, and blocks on it until somebody lets go of it
    is_main: bool


class Bus:
    """``handlers`` say what to do with each kind of message, in whichever thread reads: they must not block."""

    def __init__(self, channel: Channel, main: Optional[int] = None) -> None:
        """``main`` is the thread that executes, if it is not the process's main thread."""
        self.handlers: Dict[type, Handler] = {}
        self.before_wait: Callable[[], None] = lambda: None  # of the main thread
        self.on_fault: Callable[[], None] = lambda: None  # in whichever thread reads; nothing will be read any more
        self._channel = channel
        self._main = main or threading.main_thread().ident
        self._meets_signals = main is None
        self._reading = threading.RLock()  # who has it reads; a signal handler of the model may ask while we wait
        self._reader = False  # a thread of our own
        self._is_reading = False  # the main thread, in ``wait``
        self._switching = threading.Lock()
        self._waiters: List[_Waiter] = []
        self.next_glance_ns = 0  # before, a glance does nothing
        self._fault: Optional[BaseException] = None

    @property
    def is_ours(self) -> bool:
        """False in a process that the model has forked."""
        return self._channel.is_ours

    @property
    def is_broken(self) -> bool:
        return self._fault is not None

    def send(self, message: messages.ToBroker, frames: Sequence[Union[bytes, memoryview]] = ()) -> None:
        """From any thread. Raises Closed."""
        self._channel.send(message, frames)

    def send_from_finalizer(self, message: messages.ToBroker) -> bool:
        """From any thread; never waits. False if it cannot be sent now."""
        return self._channel.send_from_finalizer(message)

    def wait(self, done: IsDone, timeout_s: Optional[float] = None) -> bool:
        """Until ``done()`` or the time is over; returns which. Without the GIL, from any thread.

        ``done`` is asked after each message, by whoever reads it, and after a ``nudge`` if this is the main thread.
        Raises ProtocolError and Closed.
        """
        if self._meets_signals and not self._reader and signals.are_handled():
            self.read_in_background()
        return self.wait_idle(done, timeout_s)

    def wait_idle(self, done: IsDone, timeout_s: Optional[float] = None) -> bool:
        """The same where no line of the model's is running, or called from."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        if get_ident() != self._main:
            self.read_in_background()
            return self._be_woken(done, deadline, False)
        self.before_wait()
        if not self._reader:
            found = self._read_until(done, deadline)
            if found is not None:
                return found
        return self._be_woken(done, deadline, True)

    def glance(self) -> None:
        """Handles what has come, if nobody else would. Never blocks; may be called all the time."""
        now_ns = time.monotonic_ns()
        if now_ns < self.next_glance_ns or not self.is_ours:
            return
        self.next_glance_ns = now_ns + _GLANCE_NS
        if self._meets_signals and not self._reader and signals.are_handled():
            self.read_in_background()
        if not self._reader and self._reading.acquire(blocking=False):
            try:
                while self._handle(self._channel.receive_now()):
                    pass
            except Exception as fault:
                self._fail(fault)
            finally:
                self._reading.release()

    def has_come(self) -> bool:
        """Whether there is something that the main thread, which asks, will have to read itself."""
        return not self._reader and self._channel.has_come()

    def nudge(self) -> None:
        """Has the main thread ask its ``done`` again. From any thread, from a finalizer too."""
        for waiter in self._waiters[:]:
            if waiter.is_main:
                _let_go(waiter.permit)
        if not self._reader and self._is_reading:  # else it asks when it comes to wait
            self._channel.wake()

    def read_in_background(self) -> None:
        """From now on a thread of our own reads."""
        if not self._reader:
            with self._switching:
                if not self._reader:
                    start_new_thread(self._read, ())
                    self._reader = True
            self._channel.wake()

    def _read(self) -> None:
        self._reader = True  # at once: a signal handler may have raised where we were started
        try:
            with self._reading:
                while True:
                    self._handle(self._channel.receive())
        except Exception as fault:
            self._fail(fault)

    def _read_until(self, done: IsDone, deadline: float) -> Optional[bool]:
        """None if another thread reads from now on."""
        while not self._reading.acquire(timeout=_GLANCE_NS / 1e9):  # another thread glances, or has just begun to read
            if self._reader:
                return None
        outer, self._is_reading = self._is_reading, True
        try:
            while not self._reader:
                if self._fault is not None:
                    raise self._fault
                if done():
                    return True
                timeout_ms = -1
                if deadline < math.inf:
                    timeout_ms = math.ceil((deadline - time.monotonic()) * 1000)
                    if timeout_ms <= 0:
                        return False
                self._handle(self._channel.receive(timeout_ms))
            return None
        finally:
            self._is_reading = outer
            self._reading.release()

    def _be_woken(self, done: IsDone, deadline: float, is_main: bool) -> bool:
        waiter = _Waiter(done, allocate_lock(), is_main)
        waiter.permit.acquire()
        self._waiters.append(waiter)
        try:
            while not done():
                if self._fault is not None:
                    raise self._fault
                left_s = deadline - time.monotonic() if deadline < math.inf else -1
                if deadline < math.inf and left_s <= 0:
                    return False
                waiter.permit.acquire(timeout=left_s)
            return True
        finally:
            self._waiters.remove(waiter)

    def _handle(self, received: Optional[Received]) -> bool:
        if received is None:
            return False
        message, frames = received
        handler = self.handlers.get(type(message))
        if handler is None:
            raise errors.ProtocolError("{} that is not due".format(type(message).__name__))
        handler(message, frames)
        for waiter in self._waiters[:]:
            if waiter.done():
                _let_go(waiter.permit)
        return True

    def _fail(self, fault: BaseException) -> None:
        """Whoever waits now or later raises it."""
        self._fault = fault
        for waiter in self._waiters[:]:
            _let_go(waiter.permit)
        self._channel.wake()
        self.on_fault()


def _let_go(permit: LockType) -> None:
    with contextlib.suppress(RuntimeError):  # somebody has
        permit.release()
