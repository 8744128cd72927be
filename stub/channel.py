"""The stub's end of the wire, one DEALER socket; the only file here that knows ZeroMQ.

A thread blocks in the socket itself while it is the only one. Once there are others, which may log at any time, it
waits for the socket or for one of them instead, and the lock passes the socket between them.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import select
import threading
from typing import List, NamedTuple, Optional, Sequence, Union

import zmq

from . import codec, forks
from .closed import Closed as Closed
from .shared import messages

# Numbers and ``set``: pyzmq's enums and attributes are slow.
_RCVMORE, _RCVTIMEO, _EVENTS, _POLLIN = int(zmq.RCVMORE), int(zmq.RCVTIMEO), int(zmq.EVENTS), int(zmq.POLLIN)
_LINGER_MS = 2000  # at exit; a server that does not read for longer will not miss our Goodbye
# Answered by libzmq's own thread, so only a stopped or vanished peer fails to. A server that is stopped for a while
# (a debugger, a laptop's lid) must find its stubs again.
_HEARTBEAT_INTERVAL_MS = 5_000
_HEARTBEAT_TIMEOUT_MS = 60_000


class Received(NamedTuple):
    message: codec.ToStub
    frames: List[memoryview]  # inline tensors; writable


class Channel:
    """Connects at once; ZeroMQ goes on trying until ``close``. One thread at a time receives; any thread may send.

    A process that the model forks must not touch it: ``is_ours`` is False there.
    """

    def __init__(self, bus: str, key: str, lifeline: Optional[int] = None) -> None:
        """``lifeline`` is a descriptor, from now on the channel's, that becomes readable when nobody will answer."""
        self._lifeline = lifeline
        self._generation = forks.generation
        self._wake_read, self._wake_write = os.pipe()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.routing_id = key.encode()
        self._socket.linger = _LINGER_MS
        self._socket.heartbeat_ivl = _HEARTBEAT_INTERVAL_MS
        self._socket.heartbeat_timeout = _HEARTBEAT_TIMEOUT_MS
        self._socket.connect(bus)
        self._timeout_ms = -1  # the socket's own
        self._closed = False
        self._lock = threading.RLock()  # a signal handler of the model may log while we send
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)
        if lifeline is not None:
            self._poll.register(lifeline, select.POLLIN)

    @property
    def is_ours(self) -> bool:
        return forks.generation == self._generation

    def send(self, message: messages.ToBroker, frames: Sequence[Union[bytes, memoryview]] = ()) -> None:
        """Copies the frames. Blocks while a thousand messages are unread. Raises Closed."""
        if not self.is_ours:
            os._exit(1)  # a process that the model forked has come back to us by an exception, as if it were the stub
        header = codec.encode(message)
        with self._lock:
            if self._closed:
                raise Closed
            if frames:
                self._socket.send_multipart([header, *frames])
            else:
                self._socket.send(header)
            # The descriptor tells only of what came since someone last looked, and sending looks: see ``receive``.
            if _thread._count() and self._has_message():
                self.wake()

    def send_from_finalizer(self, message: messages.ToBroker) -> bool:
        """Never waits; False if it cannot be sent now, perhaps since this thread is in the midst of another message."""
        is_sending = self._lock._is_owned()  # type: ignore[attr-defined]  # what threading.Condition asks, too
        if not self.is_ours or is_sending or not self._lock.acquire(blocking=False):
            return False
        try:
            if not self._closed:
                self._socket.send(codec.encode_anew(message), zmq.NOBLOCK)
                self.wake()
            return True
        except zmq.Again:
            return False
        finally:
            self._lock.release()

    def receive(self, timeout_ms: int = -1) -> Optional[Received]:
        """The next message; None if there is none in time, after ``wake``, and now and then for no reason.

        -1 waits for ever. Raises ProtocolError and Closed.
        """
        if _thread._count() or self._lifeline is not None:
            return self._receive_polled(timeout_ms)
        with self._lock:
            if timeout_ms != self._timeout_ms:
                self._socket.set(_RCVTIMEO, timeout_ms)
                self._timeout_ms = timeout_ms
            try:
                return self._take(0)
            except zmq.Again:
                return None

    def receive_now(self) -> Optional[Received]:
        """A message that has come. Raises ProtocolError and Closed."""
        with self._lock:
            if self._closed:
                raise Closed
            return self._take(zmq.NOBLOCK) if self._has_message() else None

    def wake(self) -> None:
        """Ends a ``receive``, the next one if there is none now. From any thread, from a finalizer too."""
        with contextlib.suppress(BlockingIOError):  # full: it will wake as it is
            os.write(self._wake_write, b"\0")

    def close(self) -> None:
        """Returns when all is sent, or after two seconds; two more if a thread of the model is stuck in ``send``."""
        self._closed = True
        self.wake()
        if self._lock.acquire(timeout=_LINGER_MS / 1000):
            try:
                self._socket.close()
                self._context.term()
            finally:
                self._lock.release()

    def __del__(self) -> None:
        """Not before: nothing may write to a descriptor that is another's by then."""
        for fd in (self._wake_read, self._wake_write, self._lifeline):
            if fd is not None:
                os.close(fd)

    def _has_message(self) -> bool:
        return bool(int(self._socket.get(_EVENTS)) & _POLLIN)

    def _take(self, flags: int) -> Received:
        header = self._socket.recv(flags)
        frames = []
        while self._socket.get(_RCVMORE):
            frames.append(self._socket.recv(copy=False).buffer)
        return Received(codec.decode(header), frames)

    def _receive_polled(self, timeout_ms: int) -> Optional[Received]:
        received = self.receive_now()
        if received is None and timeout_ms:
            ready = [fd for fd, _ in self._poll.poll(None if timeout_ms < 0 else timeout_ms)]
            if self._wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            received = self.receive_now()
            if received is None and self._lifeline in ready:
                raise Closed
        return received
