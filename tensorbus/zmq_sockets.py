"""ZeroMQ sockets on the event loop: what the Listener and the Dialer share.

libzmq does its work in a thread of its own, encryption included; the event loop only hands messages over. A message is
a header and frames; it arrives whole, once and in order, or its connection ends.

Frames that are sent must stay as they are until the peer has answered them: large ones are not copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import structlog
import zmq

log = structlog.get_logger()

Socket: TypeAlias = "zmq.Socket[bytes]"
Context: TypeAlias = "zmq.Context[Socket]"
Frame: TypeAlias = bytes | memoryview

LINGER_MS = 1000  # of what was said just before the end
LOOK_S, ARRIVING_NBYTES = 0.5, 64 * 1024  # whether a large message is on its way; pings and beats are far less
# From so many bytes on a frame is not copied: one that was received, which is passed on as it is too; and one of ours,
# for which libzmq has to tell another thread when it has left.
_LARGE, _LARGE_OF_OURS = 64 * 1024, 512 * 1024
_HWM = 1000  # messages to or from one peer that lie unread; a message holds what one turn of a loop brought
_BURST = 100  # messages at once, before others have their turn
# A peer whose host is gone is found out by TCP (what is sent is not acknowledged), one that has stopped by a ping; its
# answer may have to wait until a large frame is through.
_UNACKNOWLEDGED_MS = 5000
_PING_MS, _PONG_MS = 1000, 15000
_HANDSHAKE_MS = 5000
# As plain numbers: of flags that are enums each combination makes an object anew.
NOBLOCK, _SNDMORE, _EVENTS, _POLLIN = int(zmq.NOBLOCK), int(zmq.SNDMORE), int(zmq.EVENTS), int(zmq.POLLIN)
_TCP_INFO_RECEIVED = struct.Struct("=128xQ")  # tcpi_bytes_received in Linux's struct tcp_info


class SocketReader:
    """Calls ``receive`` for each message, and then ``done``.

    The descriptor of a ZeroMQ socket is no socket's: it can be read when something has happened since it was asked what
    has. So whoever receives asks until there is nothing, and whoever sends has asked and looks again. To ask costs less
    than half of what zmq.Again does, and still as much as to send."""

    def __init__(self, socket: Socket, receive: Callable[[], None], done: Callable[[], None] = lambda: None) -> None:
        self._socket = socket
        self._receive, self._done = receive, done
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._again: asyncio.Handle | None = None
        self._is_reading = self._looks_again = False
        self._loop.add_reader(self._fd, self._read)
        self.look_again()

    def look_again(self) -> None:
        """What was sent while messages are read is looked after once, when they have been."""
        if self._is_reading:
            self._looks_again = True
        elif self._again is None and self._has_message():
            self._again = self._loop.call_soon(self._read)

    def read_all(self) -> None:
        while self._has_message():
            self._read()

    def close(self, linger_ms: int) -> None:
        """A socket before its monitor: libzmq's thread would wait for ever to tell an event that nobody receives."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.disable_monitor()
            self._socket.close(linger_ms)

    def _has_message(self) -> bool:
        return not self._socket.closed and bool(int(self._socket.get(_EVENTS)) & _POLLIN)

    def _read(self) -> None:
        """There is a message, most probably."""
        self._again = None
        self._is_reading = True
        count = 0
        while not self._socket.closed:
            try:
                self._receive()
            except zmq.Again:
                break
            except Exception:
                log.exception("a message was not understood")
            count += 1
            if count == _BURST or not self._has_message():
                break
        try:
            if count and not self._socket.closed:
                self._done()
        finally:
            self._is_reading = False
            if self._looks_again or count == _BURST:
                self._looks_again = False
                self.look_again()


def monitor(socket: Socket, events: int, on_event: Callable[[int, int], None]) -> SocketReader:
    """``on_event`` is told events of the socket, each with its value."""
    told = socket.get_monitor_socket(events)

    def receive() -> None:
        (event, value), _ = struct.unpack("=Hi", told.recv(NOBLOCK)), told.recv(NOBLOCK)
        on_event(event, value)

    return SocketReader(told, receive)


def new_socket(context: Context, kind: int) -> Socket:
    socket = context.socket(kind)
    socket.copy_threshold = _LARGE_OF_OURS
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, _HWM),
        (zmq.RCVHWM, _HWM),
        (zmq.HANDSHAKE_IVL, _HANDSHAKE_MS),
        (zmq.HEARTBEAT_IVL, _PING_MS),
        (zmq.HEARTBEAT_TIMEOUT, _PONG_MS),
        (zmq.TCP_MAXRT, _UNACKNOWLEDGED_MS),
    ):
        socket.setsockopt(option, value)
    return socket


def send_message(socket: Socket, header: bytes, frames: Sequence[Frame], to: bytes = b"") -> None:
    """``to`` is the routing id of the peer of a ROUTER. Raises zmq.Again if it cannot leave; then nothing of it has."""
    if to:
        socket.send(to, NOBLOCK | _SNDMORE)
    last = len(frames)
    socket.send(header, NOBLOCK | _SNDMORE if last else NOBLOCK)
    for number, frame in enumerate(frames, 1):
        socket.send(_uncopied(frame), NOBLOCK | _SNDMORE if number < last else NOBLOCK, copy=False)


def _uncopied(frame: Frame) -> Frame | zmq.Frame:
    """What the memory belongs to, if that is a whole frame that was received."""
    if isinstance(frame, memoryview) and isinstance(frame.obj, zmq.Frame) and frame.nbytes == len(frame.obj):
        return frame.obj
    return frame


def receive_message(socket: Socket) -> tuple[zmq.Frame, list[memoryview]]:
    """The header, or what is left from there on of a message that has begun to be received, and the frames. Raises
    zmq.Again."""
    header = socket.recv(NOBLOCK, copy=False)
    frames = []
    more = header.more
    while more:
        frame = socket.recv(NOBLOCK, copy=False)
        frames.append(frame.buffer if len(frame) >= _LARGE else memoryview(frame.bytes))
        more = frame.more
    return header, frames


def received_nbytes(descriptor: int) -> int:
    """How much has come by a connection of libzmq's; 0 if it has ended, or the system does not say."""
    try:
        with borrowed(descriptor) as connection:
            info = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _TCP_INFO_RECEIVED.size)
    except OSError:
        return 0
    return int(_TCP_INFO_RECEIVED.unpack(info)[0]) if len(info) == _TCP_INFO_RECEIVED.size else 0


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[sockets.socket]:
    """A connection of libzmq's, which stays its. Raises OSError if there is none."""
    connection = sockets.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
