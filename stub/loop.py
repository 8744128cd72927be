"""A loaded model at work: Execute messages in, batches through the session, Results out."""

from __future__ import annotations

import time
from typing import List, Optional, Sequence

from .channel import Channel
from .outputs import Outputs
from .session import Session
from .shared import errors, messages, segment, shm_errors, store

_LONGEST_WAIT_NS = 300_000  # of an answer for the next one, to share a message with it
_RETAINED_POLL_MS = 1_000
# How long after the last look for unused memory the next is due, by how many are still to come: the first finds a
# segment empty, the second finds that it has been so for the ten seconds that the store keeps it.
_TRIM_AFTER_MS = (-1, 11_000, 1_000)


class Answers:
    """Executed batches on their way into one message, which must not wait for long."""

    def __init__(self) -> None:
        self._executed: List[messages.Executed] = []
        self._since_ns = 0

    def __len__(self) -> int:
        return len(self._executed)

    def add(self, executed: messages.Executed, now_ns: int) -> None:
        if not self._executed:
            self._since_ns = now_ns
        self._executed.append(executed)

    def would_wait_too_long(self, now_ns: int) -> bool:
        """If the next batch takes as long as the last one did."""
        if not self._executed:
            return False
        last = self._executed[-1]
        return now_ns - self._since_ns + last.input_ns + last.infer_ns + last.output_ns > _LONGEST_WAIT_NS

    def take(self) -> List[messages.Executed]:
        executed, self._executed = self._executed, []
        return executed


class Loop:
    """Receives and executes until told to finish."""

    def __init__(
        self,
        channel: Channel,
        session: Session,
        outputs: Outputs,
        reader: store.Reader,
        status: Optional[segment.Segment],
    ) -> None:
        self._channel = channel
        self._session = session
        self._outputs = outputs
        self._reader = reader
        self._status = status
        self._answers = Answers()
        self._trims_due = 0
        self._trimmed_ns = 0

    def run(self) -> None:
        """Raises ProtocolError."""
        while True:
            received = self._channel.receive(self._timeout_ms())
            if received is not None:
                self._trims_due = 2  # even if it only releases outputs
                message = received.message
                if isinstance(message, messages.Finish):
                    return
                if not isinstance(message, messages.Execute):
                    raise errors.ProtocolError("second Load")
                self._outputs.release(message.released)
                self._execute_all(message.batches, received.frames)
            self._flush()
            self._trim()

    def _execute_all(self, batches: Sequence[messages.Batch], frames: Sequence[memoryview]) -> None:
        def view(tensor: messages.TensorRef) -> memoryview:
            place = tensor.place
            try:
                if not isinstance(place, int):
                    return self._reader.view(*place)
                if place >= 0:
                    return frames[place]
            except (IndexError, shm_errors.BadHandle):
                pass
            raise errors.ProtocolError("input '{}' is not where it should be".format(tensor.name))

        for batch in batches:
            if self._answers.would_wait_too_long(time.monotonic_ns()):
                self._flush()
            if self._status is not None:
                self._status.status = batch.id
            executed = self._session.execute(batch, view)
            if self._status is not None:
                self._status.status = 0
            self._answers.add(executed, time.monotonic_ns())

    def _flush(self) -> None:
        released = self._session.collect_released() if self._session.has_retained else []
        if self._answers or released:
            results = messages.Results(messages.RESULTS, self._answers.take(), released)
            self._channel.send(results, self._outputs.take_frames())

    def _timeout_ms(self) -> int:
        return _RETAINED_POLL_MS if self._session.has_retained else _TRIM_AFTER_MS[self._trims_due]

    def _trim(self) -> None:
        now_ns = time.monotonic_ns()
        if self._trims_due and now_ns - self._trimmed_ns >= _TRIM_AFTER_MS[self._trims_due] * 1_000_000:
            self._trimmed_ns = now_ns
            self._trims_due -= 1
            self._outputs.trim(now_ns / 1e9)
            self._reader.trim()
