"""The stub's end of the bus, one DEALER socket; the only file here that knows ZeroMQ.

The main thread blocks in the socket itself while it is the only thread. Once the model has threads of its own, which
may log at any time, it waits for the socket or for one of them instead, and the lock passes the socket between them.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from typing import List, NamedTuple, Optional, Sequence, Union

import zmq

from . import codec
from .shared import messages

_RCVMORE = int(zmq.RCVMORE)  # pyzmq's enums are slow
_LINGER_MS = 2000  # at exit; a server that does not read for longer will not miss our Goodbye
# Answered by libzmq's own thread, so only a stopped or vanished peer fails to. A server that is stopped for a while
# (a debugger, a laptop's lid) must find its stubs again.
_HEARTBEAT_INTERVAL_MS = 5_000
_HEARTBEAT_TIMEOUT_MS = 60_000


class Closed(Exception):
    """A line of a thread or an exit handler of the model that comes after the stub's last message."""


class Received(NamedTuple):
    message: codec.ToStub
    frames: List[memoryview]  # inline tensors; writable


class Channel:
    """Connects at once; ZeroMQ goes on trying until ``close``. Only the main thread receives; any thread may send.

    A process that the model forks must not touch it: ``is_ours`` is False there.
    """

    def __init__(self, bus: str, key: str) -> None:
        self._pid = os.getpid()
        self._owner = threading.get_ident()
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
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._wake_read, select.POLLIN)

    @property
    def is_ours(self) -> bool:
        return os.getpid() == self._pid

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
        if threading.get_ident() != self._owner:
            self._wake()

    def receive(self, timeout_ms: int = -1) -> Optional[Received]:
        """The next message, None if there is none in time; -1 waits for ever. Raises ProtocolError."""
        if threading.active_count() > 1:
            return self._receive_among_threads(timeout_ms)
        with self._lock:
            if timeout_ms != self._timeout_ms:
                self._socket.rcvtimeo = self._timeout_ms = timeout_ms
            return self._take(0)

    def close(self) -> None:
        """Returns when all is sent, or after two seconds; two more if a thread of the model is stuck in ``send``."""
        self._closed = True
        if self._lock.acquire(timeout=_LINGER_MS / 1000):
            try:
                self._socket.close()
                self._context.term()
            finally:
                self._lock.release()

    def _take(self, flags: int) -> Optional[Received]:
        try:
            header = self._socket.recv(flags)
        except zmq.Again:
            return None
        frames = []
        while self._socket.get(_RCVMORE):
            frames.append(self._socket.recv(copy=False).buffer)
        return Received(codec.decode(header), frames)

    def _receive_among_threads(self, timeout_ms: int) -> Optional[Received]:
        deadline = None if timeout_ms < 0 else time.monotonic() + timeout_ms / 1000
        while True:
            # The socket's descriptor tells only of what came since someone last looked, and a sending thread looks too.
            with self._lock:
                received = self._take(zmq.NOBLOCK)
            left_ms = None if deadline is None else (deadline - time.monotonic()) * 1000
            if received is not None or (left_ms is not None and left_ms <= 0):
                return received
            self._poll.poll(left_ms)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: the main thread will wake as it is
            os.write(self._wake_write, b"\0")
