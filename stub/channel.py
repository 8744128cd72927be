"""The stub's end of the wire: one socket, and ZeroMQ's protocol on it.

A thread blocks in the socket itself while it is the only one. Once there are others, which may want it woken, it waits
for the socket or for one of them instead.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import select
import socket
import struct
import threading
from collections import deque
from typing import Deque, List, NamedTuple, Optional, Sequence, Union

from . import codec, forks
from .closed import Closed as Closed
from .shared import messages, zmtp

# Taken before the model is there: gevent may replace those of the modules.
_Socket, _Poll = socket.socket, select.poll
_IPC = "ipc://"
_LINGER_S = 2.0  # at exit; a server that does not read for longer will not miss our Goodbye
_AT_ONCE = 16 * 1024  # the kernel takes so much whole or not at all
_READ_SIZE = 64 * 1024
_ENDS = {errno.EPIPE, errno.ECONNRESET, errno.EBADF, errno.ENOTCONN}
_NOW = socket.MSG_DONTWAIT

Buffers = List[Union[bytes, memoryview]]


class Received(NamedTuple):
    message: codec.ToStub
    frames: List[memoryview]  # inline tensors; writable


class Channel:
    """One thread at a time receives; any thread may send.

    A process that the model forks must not touch it: ``is_ours`` is False there.
    """

    def __init__(self, bus: str, key: str, lifeline: Optional[int] = None) -> None:
        """``lifeline`` is a descriptor, from now on the channel's, that becomes readable when nobody will answer.

        Raises ProtocolError, and Closed if there is no broker at ``bus``, an address ipc://.
        """
        self._lifeline = lifeline
        self._generation = forks.generation
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._socket = _Socket(socket.AF_UNIX)
        self._inbound = zmtp.Inbound()
        self._came: Deque[bytes] = deque()  # what was read and is not in ``_inbound`` yet
        self._timeout_ms = -1  # the socket's own
        self._closed = False
        self._sending = False
        self._late: Deque[Buffers] = deque()  # what a signal handler said in the midst of another message
        self._lock = threading.RLock()  # a signal handler of the model may log while we send
        self._poll = _Poll()
        for readable in (self._socket.fileno(), self._wake_read, lifeline):
            if readable is not None:
                self._poll.register(readable, select.POLLIN)
        try:
            self._socket.connect(bus[len(_IPC) :])
            self._socket.sendall(zmtp.greeting())
            zmtp.check_greeting(self._socket.recv(zmtp.GREETING_SIZE, socket.MSG_WAITALL))
            self._socket.sendall(zmtp.ready("DEALER", key.encode()))
        except OSError:
            self._socket.close()
            raise Closed from None

    @property
    def is_ours(self) -> bool:
        return forks.generation == self._generation

    def send(self, message: messages.ToBroker, frames: Sequence[Union[bytes, memoryview]] = ()) -> None:
        """Blocks while the broker does not read. Raises Closed."""
        if not self.is_ours:
            os._exit(1)  # a process that the model forked has come back to us by an exception, as if it were the stub
        buffers = zmtp.encode(codec.encode(message), frames)
        with self._lock:
            if self._closed:
                raise Closed
            if self._sending:
                self._late.append(buffers)
                return
            self._sending = True
            try:
                self._write(buffers)
                while self._late:
                    self._write(self._late.popleft())
            finally:
                self._sending = False

    def send_from_finalizer(self, message: messages.ToBroker) -> bool:
        """Never waits; False if it cannot be sent now, perhaps since this thread is in the midst of another message."""
        is_sending = self._lock._is_owned()  # type: ignore[attr-defined]  # what threading.Condition asks, too
        if not self.is_ours or is_sending or not self._lock.acquire(blocking=False):
            return False
        try:
            (data,) = zmtp.encode(codec.encode_anew(message))
            if len(data) > _AT_ONCE:
                return False
            if not self._closed:
                self._socket.send(data, _NOW)
            return True
        except BlockingIOError:
            return False
        except OSError:
            return True  # nobody is there to be told
        finally:
            self._lock.release()

    def receive(self, timeout_ms: int = -1) -> Optional[Received]:
        """The next message; None if there is none in time, after ``wake``, and now and then for no reason.

        -1 waits for ever. Raises ProtocolError and Closed.
        """
        if _thread._count() or self._lifeline is not None:
            return self._receive_polled(timeout_ms)
        received = self._take()
        if received is None and timeout_ms:
            if timeout_ms != self._timeout_ms:
                self._set_timeout(timeout_ms)
            self._read(0)
            received = self._take()
        return received

    def receive_now(self) -> Optional[Received]:
        """A message that has come. Raises ProtocolError and Closed."""
        received = self._take()
        if received is None:
            self._read(_NOW)
            received = self._take()
        return received

    def has_come(self) -> bool:
        """Whether a message, or the beginning of one, is there that nobody has received."""
        if self._came or self._inbound.has_more:
            return True
        return self._socket.fileno() in [fd for fd, _ in self._poll.poll(0)]

    def wake(self) -> None:
        """Ends a ``receive``, the next one if there is none now. From any thread, from a finalizer too."""
        with contextlib.suppress(BlockingIOError):  # full: it will wake as it is
            os.write(self._wake_write, b"\0")

    def close(self) -> None:
        """Returns when all is sent, or after two seconds if a thread of the model is stuck in ``send``."""
        self._closed = True
        self.wake()
        if self._lock.acquire(timeout=_LINGER_S):
            try:
                self._socket.close()
            finally:
                self._lock.release()

    def __del__(self) -> None:
        """Not before: nothing may write to a descriptor that is another's by then."""
        for fd in (self._wake_read, self._wake_write, self._lifeline):
            if fd is not None:
                os.close(fd)

    def _write(self, buffers: Buffers) -> None:
        """Small messages leave in one call, whole or not at all, whatever signal comes."""
        try:
            if len(buffers) == 1 and len(buffers[0]) <= _AT_ONCE:
                self._socket.sendall(buffers[0])
                return
            try:
                for buffer in buffers:
                    self._socket.sendall(buffer)
            except BaseException:  # of a signal handler: nobody knows how much of it has left
                self._closed = True
                self._socket.shutdown(socket.SHUT_RDWR)
                raise
        except OSError as error:
            raise _ended(error) from None

    def _take(self) -> Optional[Received]:
        while self._came:
            self._inbound.feed(self._came.popleft())
        frames = self._inbound.take()
        return None if frames is None else messages.new(Received, (codec.decode(frames[0]), frames[1:]))

    def _read(self, flags: int) -> None:
        """What has come; with flags 0 it waits for something to come."""
        if self._closed:
            raise Closed
        try:
            # In one step: what another thread raises here is noticed as soon as recv has returned.
            self._came.extend(map(self._socket.recv, (_READ_SIZE,), (flags,)))
        except BlockingIOError:
            return
        except OSError as error:
            raise _ended(error) from None
        if not self._came[-1]:
            raise Closed

    def _set_timeout(self, timeout_ms: int) -> None:
        seconds, rest_ms = divmod(max(0, timeout_ms), 1000)  # 0 is for ever
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, rest_ms * 1000))
        self._timeout_ms = timeout_ms

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


def _ended(error: OSError) -> Exception:
    """Another error is of a signal handler of the model: TimeoutError is an OSError."""
    return Closed() if error.errno in _ENDS else error
