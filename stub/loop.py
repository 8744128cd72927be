"""A loaded model at work: Execute messages in, batches through the session, Results out."""

from __future__ import annotations

import time
from collections import deque
from typing import Deque, List, Optional, Sequence, Tuple, Union

from .bus import Bus
from .open_calls import OpenCalls
from .outputs import Outputs
from .session import Session
from .shared import errors, messages, segment, shm_errors, store

_LONGEST_WAIT_NS = 300_000  # of an answer for the next one, to share a message with it
# When the next work had come before executions as long as this were over, so many times in a row, another thread reads
# from then on: it is ready when the model is. For short ones the main thread is quicker than two that wake each other.
_LONG_NS, _IN_A_ROW = 1_000_000, 16
_GATHER_S = 0.01  # what need not leave at once (memory that is free) waits so long for company
_POLL_S = 1.0
# How long after the last look for unused memory the next is due, by how many are still to come: the first finds a
# segment empty, the second finds that it has been so for the ten seconds that the store keeps it.
_TRIM_AFTER_S = (None, 11.0, 1.0)


class Answers:
    """Executed batches on their way into one message, which must not wait for long."""

    def __init__(self) -> None:
        self.executed: List[messages.Executed] = []
        self.frames: List[bytes] = []  # of the message
        self._since_ns = 0

    def add(self, executed: messages.Executed) -> None:
        if not self.executed:
            self._since_ns = executed.ended_ns
        self.executed.append(executed)

    def would_wait_too_long(self, now_ns: int) -> bool:
        """If the next batch takes as long as the last one did."""
        if not self.executed:
            return False
        last = self.executed[-1]
        return now_ns - self._since_ns + last.input_ns + last.infer_ns + last.output_ns > _LONGEST_WAIT_NS

    def take(self) -> Tuple[List[messages.Executed], List[bytes]]:
        executed, self.executed = self.executed, []
        frames, self.frames = self.frames, []
        return executed, frames


class Loop:
    """Executes, in the main thread, what comes from the bus, until told to finish."""

    def __init__(
        self,
        bus: Bus,
        calls: OpenCalls,
        session: Session,
        outputs: Outputs,
        reader: store.Reader,
        status: Optional[segment.Segment],
    ) -> None:
        self._bus = bus
        self._calls = calls
        self._session = session
        self._delivery = session.delivery
        self._outputs = outputs
        self._reader = reader
        self._status: Union[List[int], memoryview] = [0] if status is None else status.status_word
        self._answers = Answers()
        self._in_a_row = 0
        self._inbox: Deque[Tuple[List[messages.Batch], List[memoryview]]] = deque()
        self._finished = False
        # What the broker can be told is free; there is something to tell while one of them is not empty.
        self._free = (self._delivery.retained.gone, calls.untold_read, calls.untold_dropped)
        self._trims_due = 0
        self._trimmed_ns = 0
        bus.handlers[messages.Execute] = self._on_execute
        bus.handlers[messages.Cancel] = self._on_cancel
        bus.handlers[messages.Credit] = self._on_credit
        bus.handlers[messages.Finish] = self._on_finish
        bus.before_wait = self._flush_answers

    def run(self) -> None:
        """Raises ProtocolError."""
        while not self._finished:
            self._bus.wait_idle(self._has_something, self._timeout_s())
            if self._inbox:
                self._execute_all(*self._inbox.popleft())
            elif not self._finished:
                self._gather()
            self._trim()
        self._flush()

    # --- in whichever thread reads the bus

    def _on_execute(self, message: messages.Execute, frames: List[memoryview]) -> None:
        if message.released:
            self._outputs.release(message.released)
            if self._delivery.decoupled:
                self._delivery.pacing.released(message.released)
        if message.paced:
            self._delivery.pacing.begin(message.paced)
        if message.inline:
            self._delivery.inline.update(message.inline)
        self._inbox.append((message.batches, frames))

    def _on_cancel(self, message: messages.Cancel, frames: List[memoryview]) -> None:
        self._session.cancel(message)

    def _on_credit(self, message: messages.Credit, frames: List[memoryview]) -> None:
        self._delivery.pacing.add_credit(message.request, message.responses)

    def _on_finish(self, message: messages.Finish, frames: List[memoryview]) -> None:
        self._finished = True

    # --- in the main thread

    def _has_work(self) -> bool:
        return bool(self._inbox) or self._finished

    def _has_something(self) -> bool:
        return bool(self._inbox or self._finished or self._delivery.abandoned or any(self._free))

    def _execute_all(self, batches: Sequence[messages.Batch], frames: Sequence[memoryview]) -> None:
        view_own, view_shared = self._reader.view, self._reader.view_shared

        def view(tensor: messages.TensorRef) -> memoryview:
            name, _, _, place, shared = tensor
            try:
                if isinstance(place, messages.Handle):
                    return view_shared(*place) if shared else view_own(*place)
                if isinstance(place, int) and place >= 0:
                    return frames[place]
            except (IndexError, shm_errors.BadHandle):
                pass
            raise errors.ProtocolError("input '{}' is not where it should be".format(name))

        self._trims_due = 2  # even if it only released outputs
        answers, status, execute, bus = self._answers, self._status, self._session.execute, self._bus
        now_ns = infer_ns = 0
        for number, batch in enumerate(batches):
            if number:
                if answers.would_wait_too_long(now_ns):
                    self._flush()
                if now_ns >= bus.next_glance_ns:
                    bus.glance()  # it may have been cancelled meanwhile
            status[0] = batch.id
            executed = execute(batch, view, answers.frames)
            status[0] = 0
            answers.add(executed)
            now_ns, infer_ns = executed.ended_ns, executed.infer_ns
        if infer_ns >= _LONG_NS:
            self._look_for_the_next()
        if not self._inbox:
            self._session.forget_cancelled()

    def _look_for_the_next(self) -> None:
        """A long execution is over."""
        self._in_a_row = self._in_a_row + 1 if self._inbox or self._bus.has_come() else 0
        if self._in_a_row == _IN_A_ROW:
            self._bus.read_in_background()

    def _gather(self) -> None:
        """Nothing to execute: tell what else there is to tell, memory that is free not at once."""
        if any(self._free):
            self._trims_due = 2  # a thread of the model may call others long after ``execute``
            if not self._delivery.abandoned:
                self._bus.wait_idle(self._has_work, _GATHER_S)
        self._flush()

    def _flush_answers(self) -> None:
        """Before anything is waited for, inside ``execute`` too."""
        if self._answers.executed or self._delivery.abandoned:
            self._flush()

    def _flush(self) -> None:
        calls, delivery = self._calls, self._delivery
        released = delivery.retained.collect() if delivery.retained.gone else []
        read = calls.take_read() if calls.untold_read else []
        responses = delivery.take_abandoned() if delivery.abandoned else []
        if self._answers.executed or released or responses or read:
            executed, frames = self._answers.take()
            self._bus.send(messages.Results(messages.RESULTS, executed, released, responses, read), frames)
        if calls.untold_dropped:
            self._calls.tell_dropped()

    def _timeout_s(self) -> Optional[float]:
        """A thread of a C library may let go of an input or a sender; nobody has counted it, so it cannot wake us."""
        is_polling = self._delivery.retained or self._delivery.open
        return _POLL_S if is_polling else _TRIM_AFTER_S[self._trims_due]

    def _trim(self) -> None:
        now_ns = time.monotonic_ns()
        due_s = _TRIM_AFTER_S[self._trims_due]
        if due_s is not None and now_ns - self._trimmed_ns >= due_s * 1e9:
            self._trimmed_ns = now_ns
            self._trims_due -= 1
            self._outputs.trim(now_ns / 1e9)
            self._reader.trim()
