"""The life of a stub process, told from top to bottom.

Say Hello, be told what to load, prove that shared memory is shared; then either let the model complete its
configuration and exit, or load it, say Ready and execute batches until told to finish. Everything that calls the
model happens in the main thread.
"""

from __future__ import annotations

import os
import sys
import time
import types
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import logger, signals
from .channel import Channel
from .session import PlacedTensor, Session
from .shared import ALIGNMENT, errors, messages, segment, shm_errors, store
from .user_model import LoadError, UserModel, auto_complete

EXIT_OK, EXIT_FAILED_TO_LOAD, EXIT_PROTOCOL_ERROR = 0, 1, 2

_LONGEST_WAIT_NS = 300_000  # of an answer for the next one, to share a message with it
_RETAINED_POLL_MS = 1_000
# How long after the last look for unused memory the next is due, by how many are still to come: the first finds a
# segment empty, the second finds that it has been so for the ten seconds that the store keeps it.
_TRIM_AFTER_MS = (-1, 11_000, 1_000)


class Start(NamedTuple):
    """What a stub process is told from outside."""

    bus: str
    key: str
    title: str


def run(start: Start) -> int:
    """Returns the exit code."""
    _become_stub(start.title)
    channel = Channel(start.bus, start.key)
    try:
        channel.send(messages.Hello(messages.HELLO, messages.VERSION, os.getpid()))
        received = channel.receive()
        if received is None or not isinstance(received.message, messages.Load):
            raise errors.ProtocolError("the answer to Hello is no Load")
        return _load(channel, received.message)
    except errors.ProtocolError as error:
        print("tensorbus stub {}: the broker sent a {}".format(start.title, error), file=sys.stderr)
        return EXIT_PROTOCOL_ERROR
    finally:
        channel.close()


def set_title(text: str) -> None:
    try:
        import setproctitle
    except ImportError:  # an interpreter without it; the command line names the instance too
        return
    setproctitle.setproctitle(text)


def _become_stub(title: str) -> None:
    # Triton's own name of such processes is in there for whoever looks for them by it.
    set_title("tensorbus stub: {} (triton_python_backend_stub)".format(title))
    sys.argv[:] = [""]
    # Processes that the model starts by multiprocessing run the file of __main__ again, unless it has none.
    sys.modules["__main__"] = types.ModuleType("__main__")
    signals.ignore()
    _reseed()


def _reseed() -> None:
    """Forked stubs would all draw the same random numbers (the random module sees to itself)."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _load(channel: Channel, load: messages.Load) -> int:
    try:
        if load.mode == "auto_complete":
            channel.send(messages.Configured(messages.CONFIGURED, auto_complete(load.model_file, load.args)))
            return EXIT_OK
        if load.mode == "serve":
            return _serve(channel, load)
    except LoadError as error:
        channel.send(messages.Failed(messages.FAILED, errors.ErrorKind.INTERNAL, str(error)))
        return EXIT_FAILED_TO_LOAD
    raise errors.ProtocolError("Load of unknown mode {}".format(load.mode))


def _serve(channel: Channel, load: messages.Load) -> int:
    """Raises LoadError."""
    reader = store.Reader(load.shm_directory)
    nonce = _read_nonce(reader, load.probe)
    own = store.Store(load.shm_directory)
    status = _status_segment(own) if nonce else None
    outputs = Outputs(own if status else None)
    log = _logger(channel)
    logger.set_sink(log)
    model = UserModel.load(load.model_file, load.args)
    session = Session(model, load.args["model_instance_name"], outputs, log, time.monotonic_ns)
    channel.send(messages.Ready(messages.READY, nonce, status.name if status else ""))
    Loop(channel, session, outputs, reader, status).run()
    channel.send(messages.Goodbye(messages.GOODBYE, session.finalize()))
    own.close()
    return EXIT_OK


def _logger(channel: Channel) -> Callable[[str, str, int, str], None]:
    def log(level: str, file: str, line: int, text: str) -> None:
        if channel.is_ours:
            channel.send(messages.Log(messages.LOG, level, file, line, text))
        else:  # in a process that the model forked
            print("{} {}:{}] {}".format(level, file, line, text), file=sys.stderr)

    return log


def _read_nonce(reader: store.Reader, probe: messages.Handle) -> bytes:
    """b"" where the server's shared memory is not ours."""
    try:
        return bytes(reader.view(*probe))
    except shm_errors.BadHandle:
        return b""


def _status_segment(own: store.Store) -> Optional[segment.Segment]:
    """None if there is no room even for that; then all tensors travel inline."""
    try:
        return own.first()
    except shm_errors.ShmFull:
        return None


class Outputs:
    """Places the tensors of responses: in shared memory on lease to their reader, or as frames of the next message."""

    def __init__(self, own: Optional[store.Store]) -> None:
        """Without a store, all go inline."""
        self._store = own
        self._leases: Dict[int, store.Block] = {}
        self._last_lease = 0
        self._frames: List[bytes] = []

    def place(self, tensors: Sequence[PlacedTensor]) -> Tuple[List[messages.TensorRef], int]:
        starts, total = [], 0
        for tensor in tensors:
            starts.append(total)
            nbytes = len(tensor[3])
            total += nbytes + -nbytes % ALIGNMENT
        block = self._allocate(total)
        if block is None:
            return [self._place_inline(tensor) for tensor in tensors], 0
        references = []
        for (name, datatype, shape, data), start in zip(tensors, starts):
            block.view[start : start + len(data)] = data
            place = messages.Handle(block.segment, block.offset + start, len(data))
            references.append(messages.TensorRef(name, datatype, shape, place))
        self._last_lease += 1
        self._leases[self._last_lease] = block
        return references, self._last_lease

    def release(self, leases: Sequence[int]) -> None:
        """Raises ProtocolError for one that is not held."""
        for lease in leases:
            block = self._leases.pop(lease, None)
            if block is None or self._store is None:
                raise errors.ProtocolError("release of lease {}, which is not held".format(lease))
            self._store.free(block)

    def take_frames(self) -> List[bytes]:
        """The inline tensors since the last call: they belong into the message that names them."""
        frames, self._frames = self._frames, []
        return frames

    def trim(self, now_s: float) -> None:
        if self._store is not None:
            self._store.trim(now_s)

    def _allocate(self, nbytes: int) -> Optional[store.Block]:
        if self._store is None or nbytes == 0:
            return None
        try:
            return self._store.allocate(nbytes)
        except shm_errors.ShmFull:
            return None

    def _place_inline(self, tensor: PlacedTensor) -> messages.TensorRef:
        name, datatype, shape, data = tensor
        self._frames.append(bytes(data))  # a copy, since the model may use its array again before the message leaves
        return messages.TensorRef(name, datatype, shape, len(self._frames) - 1)


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
            self._trims_due = 2

    def _timeout_ms(self) -> int:
        return _RETAINED_POLL_MS if self._session.has_retained else _TRIM_AFTER_MS[self._trims_due]

    def _trim(self) -> None:
        now_ns = time.monotonic_ns()
        if self._trims_due and now_ns - self._trimmed_ns >= _TRIM_AFTER_MS[self._trims_due] * 1_000_000:
            self._trimmed_ns = now_ns
            self._trims_due -= 1
            self._outputs.trim(now_ns / 1e9)
            self._reader.trim()
