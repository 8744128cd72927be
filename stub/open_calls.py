"""What one process has asked of the broker over its bus, and who waits for the answers."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Callable, Deque, Dict, List, Optional, Protocol, Sequence, Tuple, Union

from .closed import Closed
from .shared import errors, messages

if TYPE_CHECKING:  # unit tests of models need no bus
    from .bus import Bus

Frames = Sequence[Union[bytes, memoryview]]


class Caller(Protocol):
    """Is told in whichever thread reads the bus: must not block, nor hold a lock that somebody holds while sending."""

    def on_answer(self, answered: messages.Answered, frames: List[memoryview]) -> None:
        """For each answer, the final one last."""

    def on_lost(self) -> None:
        """No more will come."""


class NotServing(Exception):
    """There is no broker to ask: no server (a unit test of a model), auto-completion, or after the stub's end."""


class OpenCalls:
    """Invariant: a number is in ``_asked`` or ``_callers`` from before its message leaves until its last answer."""

    def __init__(self, bus: Bus, flushes: bool = False) -> None:
        """``flushes``: there is nobody else here to tell what was read."""
        self.on_returned: Dict[int, Callable[[], None]] = {}
        self._bus = bus
        self._flushes = flushes
        self._numbers = itertools.count(1)
        self._asked: Dict[int, List[messages.Told]] = {}
        self._callers: Dict[int, Caller] = {}
        self.untold_read: Deque[Tuple[str, int]] = deque()
        self.untold_dropped: Deque[Tuple[bool, int]] = deque()
        bus.handlers[messages.Told] = self._told
        bus.handlers[messages.Answered] = self._answered
        bus.handlers[messages.Returned] = self._returned
        bus.on_fault = self._lost

    def take_read(self) -> List[Tuple[str, int]]:
        """For Results.read: what was read since the last time."""
        read: List[Tuple[str, int]] = []
        with contextlib.suppress(IndexError):  # another thread may be telling, too
            while self.untold_read:
                read.append(self.untold_read.popleft())
        return read

    def tell_dropped(self) -> None:
        families: List[int] = []
        metrics: List[int] = []
        with contextlib.suppress(IndexError):  # another thread may be telling, too
            while True:
                is_family, number = self.untold_dropped.popleft()
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
        self.untold_read.append((origin, lease))
        if len(self.untold_read) == 1:
            self._bus.nudge()

    def drop_metric(self, is_family: bool, number: int) -> None:
        families, metrics = ([number], []) if is_family else ([], [number])
        if not self._bus.send_from_finalizer(messages.DropMetrics(messages.DROP_METRICS, families, metrics)):
            self.untold_dropped.append((is_family, number))
            if len(self.untold_dropped) == 1:
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
