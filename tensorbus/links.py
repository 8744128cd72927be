"""TCP between the services of a scaled stack: the broker's Listener (a ROUTER), and the Dialer of each other service.

libzmq does its work in a thread of its own, encryption included; the event loop only hands messages over. A message is
a header and frames; it arrives whole, once and in order, or its connection ends. Nothing is kept for a peer that is not
there. A connection that ends takes with it what was under way, in both directions, and both ends are to expect that:
a Dialer says so (``lost``), and whoever dials anew joins anew.

Frames that are sent must stay as they are until the peer has answered them: large ones are not copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import socket as sockets
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import structlog
import zmq

from broker.router import DoesNotRead, Unreachable
from tensorbus.curve import Doorkeeper, Trust, protect_dialer, protect_listener
from tensorbus.running import CannotListen
from tensorbus.tcp_address import TcpAddress, tcp_address

__all__ = ["CannotListen", "Dialer", "DoesNotRead", "Listener", "Unreachable"]

log = structlog.get_logger()

Socket: TypeAlias = "zmq.Socket[bytes]"
Context: TypeAlias = "zmq.Context[Socket]"
Frame: TypeAlias = bytes | memoryview

# From so many bytes on a frame is not copied: one that was received, which is passed on as it is too; and one of ours,
# for which libzmq has to tell another thread when it has left.
_LARGE, _LARGE_OF_OURS = 64 * 1024, 512 * 1024
_HWM = 1000  # messages to or from one peer that lie unread; a message holds what one turn of a loop brought
_BURST = 100  # messages at once, before others have their turn
_LINGER_MS = 1000  # of what was said just before the end
_BACKLOG = 1024  # all services of a stack may dial at once
# A peer whose host is gone is found out by TCP (what is sent is not acknowledged), one that has stopped by a ping; its
# answer may have to wait until a large frame is through.
_UNACKNOWLEDGED_MS = 5000
_PING_MS, _PONG_MS = 1000, 15000
_CONNECT_MS, _HANDSHAKE_MS = 3000, 5000
_RETRY_S, _MAX_RETRY_S = 0.1, 1.0
_SAY_AGAIN_S = 60.0  # a peer that is refused comes back every second
_MAX_REFUSED = 1000
_LOOK_S, _ARRIVING_NBYTES = 0.5, 64 * 1024  # pings and beats are far less
_TCP_INFO_RECEIVED = struct.Struct("=128xQ")  # tcpi_bytes_received in Linux's struct tcp_info
_SERVICE = re.compile(b"[0-9a-f]{8}")


_NEVER_MS = 2**31 - 1

_LISTENER_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_DIALER_EVENTS = (
    zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_LISTENER_CAUSES: dict[int, str] = {  # of EVENT_HANDSHAKE_FAILED_PROTOCOL
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "it does not know our key",
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "one of us has a key, the other one has none",
}


class Listener:
    """Services are known by their ids. ``heard`` is called with the id, header and frames of each message, ``done``
    after those that came together. Call its methods on the loop that it was started on."""

    def __init__(
        self,
        address: str,
        trust: Trust | None,
        heard: Callable[[str, bytes, list[memoryview]], None],
        done: Callable[[], None],
        hung_up: Callable[[str], None] = lambda service: None,
        arriving: Callable[[str], None] = lambda service: None,
    ) -> None:
        """``address`` is tcp://HOST:PORT; port 0 takes a free one. ``hung_up`` is told whose connection is over, after
        its last words; ``arriving`` twice a second of whom a large message is on its way, behind which no other is
        heard."""
        self.address = address
        self._hung_up, self._arriving = hung_up, arriving
        self._received: dict[str, int] = {}  # bytes, by service, when that was looked at last
        self._trust = trust
        self._heard, self._done = heard, done
        self._peers: dict[int, str] = {}  # addresses, by the descriptor of the connection
        self._connections: dict[str, int] = {}  # descriptors, by service
        self._context: Context | None = None  # until it starts
        self._looking: asyncio.TimerHandle | None = None
        self._readers: list[_Reader] = []
        self._failure = ""  # of a handshake whose connection is about to end
        self._refused: dict[tuple[str, str], float] = {}  # when that was said, by address and cause

    def start(self) -> None:
        """Raises CannotListen."""
        self._context = zmq.Context()
        self._socket = _new_socket(self._context, zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        self._reader = _Reader(self._socket, self._receive, self._done)
        self._readers = [self._reader, _monitor(self._socket, _LISTENER_EVENTS, self._on_event)]
        if self._trust is not None:
            protect_listener(self._socket, self._trust)
            doorkeeper = Doorkeeper(self._context, self._trust, self._on_unknown_key)
            self._readers.append(_Reader(doorkeeper.socket, doorkeeper.answer))
        try:
            self._bind()
        except (zmq.ZMQError, ValueError) as error:
            self.close()
            raise CannotListen(f"cannot listen at {self.address}: {error}") from None
        self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look_for_arriving)
        log.info("listening for services", address=self.address, encrypted=self._trust is not None)

    def _bind(self) -> None:
        address = tcp_address(self.address)
        self._socket.setsockopt(zmq.IPV6, ":" in address.host)
        self._socket.bind(str(address))
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        self.address = endpoint.rstrip(b"\0").decode()

    def send(self, service: str, header: bytes, frames: Sequence[Frame] = ()) -> None:
        """Never waits. Raises Unreachable and DoesNotRead."""
        try:
            _send(self._socket, [service.encode(), header], frames)
        except zmq.Again:
            raise DoesNotRead from None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            raise Unreachable from None
        finally:
            self._reader.look_again()

    def peer(self, service: str) -> str:
        """Where it dials from, host:port; "" if that is not known."""
        return self._peers.get(self._connections.get(service, -1), "")

    def drop(self, service: str) -> None:
        """Ends its connection at once: what it was sent last may be lost. It may dial again."""
        descriptor = self._connections.pop(service, -1)
        if descriptor in self._peers:  # libzmq's, which finds the connection ended
            with _borrowed(descriptor) as connection, contextlib.suppress(OSError):
                connection.shutdown(sockets.SHUT_RDWR)

    def close(self) -> None:
        """What was sent last has a second to leave; this waits for it."""
        for reader in self._readers:
            reader.close(_LINGER_MS)
        if self._looking is not None:
            self._looking.cancel()
        if self._context is not None:
            self._context.term()

    def _look_for_arriving(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look_for_arriving)
        received = {service: _received_nbytes(descriptor) for service, descriptor in self._connections.items()}
        before, self._received = self._received, received
        for service, nbytes in received.items():
            if nbytes - before.get(service, nbytes) >= _ARRIVING_NBYTES:
                self._arriving(service)

    def _receive(self) -> None:
        sender = self._socket.recv(zmq.NOBLOCK)
        header = self._socket.recv(zmq.NOBLOCK, copy=False)
        frames = _receive_frames(self._socket)
        if not _SERVICE.fullmatch(sender):
            return
        service = sender.decode()
        self._connections[service] = int(header.get("__fd"))
        self._heard(service, header.bytes, frames)

    # --- who is not let in ----------------------------------------------------------------------------------------

    def _on_event(self, event: int, value: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._peers[value] = _peer_of(value)
        elif event == zmq.EVENT_DISCONNECTED:
            peer = self._peers.pop(value, "")
            gone = [service for service, descriptor in self._connections.items() if descriptor == value]
            if gone:
                self._reader.read_all()
            for service in gone:
                if self._connections.get(service) == value:  # else it is back already
                    del self._connections[service]
                    self._hung_up(service)
            if self._failure and peer:  # it was gone before we asked who it is: it will dial again
                self._say_refused(peer, self._failure)
            self._failure = ""
        else:  # it says for which connection when that ends, which is what it says next
            self._failure = _LISTENER_CAUSES.get(value, f"ZeroMQ protocol error {value:#x}")

    def _on_unknown_key(self, host: str, key: str) -> None:
        self._say_refused(host, "its key is not authorized", key=key)

    def _say_refused(self, peer: str, cause: str, **fields: str) -> None:
        host, now = peer.rpartition(":")[0] or peer, time.monotonic()
        if now - self._refused.get((host, cause), -_SAY_AGAIN_S) >= _SAY_AGAIN_S:
            self._refused = dict(list(self._refused.items())[-_MAX_REFUSED:])
            self._refused[host, cause] = now
            log.warning("a service was refused", peer=peer, cause=cause, **fields)


class Dialer:
    """One service's way to the broker. ``heard`` is called with the header and frames of each message, ``done`` after
    those that came together; ``connected`` when the broker can be sent to, ``lost`` when that is over: what was under
    way then is lost, and another connection is dialed. Call its methods on the loop that it was started on."""

    def __init__(
        self,
        address: str,
        service_id: str,
        trust: Trust | None,
        heard: Callable[[bytes, list[memoryview]], None],
        done: Callable[[], None],
        connected: Callable[[], None] = lambda: None,
        lost: Callable[[], None] = lambda: None,
        arriving: Callable[[], None] = lambda: None,
    ) -> None:
        """``address`` is tcp://HOST:PORT; the name of the host is looked up for each connection. ``arriving`` as of
        Listener."""
        self._address = address
        self._service_id = service_id
        self._trust = trust
        self._heard, self._done = heard, done
        self._connected, self._lost, self._arriving = connected, lost, arriving
        self._descriptor = -1  # of the connection
        self._received = 0  # bytes, when that was looked at last
        self._looking: asyncio.TimerHandle | None = None
        self.is_connected = False
        self._socket: Socket | None = None  # of one connection, never of a second one
        self._readers: list[_Reader] = []
        self._attempts = 0  # since there was a connection
        self._said: set[str] = set()  # the causes that it had to fail since
        self._dialing: asyncio.Task[None] | None = None
        self._context: Context | None = None  # until it starts

    def start(self) -> None:
        """Dials, until ``close``. Raises ValueError for an address that is none."""
        self._place = tcp_address(self._address)
        self._context = zmq.Context()
        self._look_for_arriving()
        self._dial_after(0)

    def send(self, header: bytes, frames: Sequence[Frame] = ()) -> None:
        """Never waits. Raises Unreachable and DoesNotRead."""
        if not self.is_connected or self._socket is None:
            raise Unreachable
        try:
            _send(self._socket, [header], frames)
        except zmq.Again:
            raise DoesNotRead from None
        finally:
            self._readers[0].look_again()

    def redial(self, service_id: str) -> None:
        """Another connection, under an id that may be another one too. What this one has not sent is lost; ``lost`` is
        not called."""
        self._service_id = service_id
        self._hang_up(linger_ms=0)
        self._dial_after(0)

    def close(self) -> None:
        """What was sent last has a second to leave; this waits for it."""
        if self._dialing is not None:
            self._dialing.cancel()
        if self._looking is not None:
            self._looking.cancel()
        self._hang_up(_LINGER_MS)
        if self._context is not None:
            self._context.term()

    def _receive(self) -> None:
        assert self._socket is not None
        header = self._socket.recv(zmq.NOBLOCK)
        self._heard(header, _receive_frames(self._socket))

    def _look_for_arriving(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look_for_arriving)
        before, self._received = self._received, _received_nbytes(self._descriptor) if self.is_connected else 0
        if before and self._received - before >= _ARRIVING_NBYTES:
            self._arriving()

    # --- the connection -------------------------------------------------------------------------------------------

    def _dial_after(self, delay_s: float) -> None:
        if self._dialing is not None:
            self._dialing.cancel()
        self._dialing = asyncio.get_running_loop().create_task(self._dial(delay_s))

    async def _dial(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        loop = asyncio.get_running_loop()
        host, port = self._place
        try:
            found = await loop.getaddrinfo(host, port, type=sockets.SOCK_STREAM)
        except OSError as error:
            self._failed(f"cannot resolve {host}: {error.strerror}")
            return
        # One after the other, beginning with IPv4: "localhost" is both, where most listen to one.
        found.sort(key=lambda one: one[0] == sockets.AF_INET6)
        ip = found[self._attempts % len(found)][4][0]
        self._open(TcpAddress(str(ip), port))

    def _open(self, address: TcpAddress) -> None:
        assert self._context is not None
        socket = self._socket = _new_socket(self._context, zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, self._service_id.encode())
        socket.setsockopt(zmq.IPV6, ":" in address.host)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
        # The next connection is another socket's, so that no message of it is taken for one of this.
        socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        if self._trust is not None:
            protect_dialer(socket, self._trust)
        self._readers = [
            _Reader(socket, self._receive, self._done),
            _monitor(socket, _DIALER_EVENTS, self._on_event),
        ]
        socket.connect(str(address))

    def _hang_up(self, linger_ms: int) -> None:
        self.is_connected = False
        readers, self._readers, self._socket = self._readers, [], None
        for reader in readers:
            reader.close(linger_ms)

    def _on_event(self, event: int, value: int) -> None:
        if event == zmq.EVENT_CONNECTED:
            self._descriptor = value
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._succeeded()
        elif self.is_connected:
            self._disconnected()
        else:
            self._failed(self._cause(event, value))

    def _succeeded(self) -> None:
        self._attempts = 0
        self._said.clear()
        self.is_connected = True
        log.info("connected to the broker", address=self._address, encrypted=self._trust is not None)
        self._connected()

    def _disconnected(self) -> None:
        data = self._readers[0]
        data.read_all()  # the broker's last words
        if not self._readers or self._readers[0] is not data:
            return  # redialed, or closed, because of them
        log.warning("the connection to the broker is lost", address=self._address)
        self._hang_up(linger_ms=0)
        self._dial_after(_RETRY_S)
        self._lost()

    def _failed(self, cause: str) -> None:
        self._hang_up(linger_ms=0)
        if cause not in self._said:
            self._said.add(cause)
            log.warning("cannot connect to the broker", address=self._address, cause=cause)
        delay_s = min(_RETRY_S * 2**self._attempts, _MAX_RETRY_S)
        self._attempts += 1
        self._dial_after(delay_s)

    def _cause(self, event: int, value: int) -> str:
        if event == zmq.EVENT_CLOSED:
            return "nobody listens there"
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return "the broker does not know our key"
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value != zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return f"it does not speak our protocol ({value:#x})"
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and value in (errno.ETIMEDOUT, errno.EAGAIN):
            return "it does not speak our protocol (nothing came)"
        # It has hung up, which is all that a broker says to who does not know its key. Of two of which one has no key
        # both hang up, and whoever is second does not see why.
        like = "asks for a key" if self._trust is None else "has another key, or none"
        return f"it hangs up, as a broker does that {like}"


# --- sockets on the loop ------------------------------------------------------------------------------------------


class _Reader:
    """Calls ``receive`` while it has something to receive, and then ``done``. It raises zmq.Again if not.

    The descriptor of a ZeroMQ socket is no socket's: it can be read when something has happened since it was asked what
    has. So whoever receives asks until there is nothing, and whoever sends has asked and looks again."""

    def __init__(self, socket: Socket, receive: Callable[[], None], done: Callable[[], None] = lambda: None) -> None:
        self._socket = socket
        self._receive, self._done = receive, done
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._again: asyncio.Handle | None = None
        self._reading = False
        self._loop.add_reader(self._fd, self._read)
        self.look_again()

    def look_again(self) -> None:
        if self._again is None and not self._reading and not self._socket.closed:
            self._again = self._loop.call_soon(self._read)

    def read_all(self) -> None:
        while not self._socket.closed and self._read():
            pass

    def close(self, linger_ms: int) -> None:
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close(linger_ms)

    def _read(self) -> bool:
        """Whether there may be more."""
        self._again = None
        self._reading = True
        count = 0
        while count < _BURST and not self._socket.closed:
            try:
                self._receive()
            except zmq.Again:
                break
            except Exception:
                log.exception("a message was not understood")
            count += 1
        self._reading = False
        if count == _BURST:
            self.look_again()
        if count and not self._socket.closed:
            self._done()
        return count == _BURST


def _monitor(socket: Socket, events: int, on_event: Callable[[int, int], None]) -> _Reader:
    """``on_event`` is told events of the socket, each with its value."""
    monitor = socket.get_monitor_socket(events)

    def receive() -> None:
        (event, value), _ = struct.unpack("=Hi", monitor.recv(zmq.NOBLOCK)), monitor.recv(zmq.NOBLOCK)
        on_event(event, value)

    return _Reader(monitor, receive)


def _new_socket(context: Context, kind: int) -> Socket:
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


def _send(socket: Socket, header: list[bytes], frames: Sequence[Frame]) -> None:
    """Raises zmq.Again if it cannot leave; then nothing of it has."""
    parts: list[Frame | zmq.Frame] = [*header, *map(_uncopied, frames)]
    socket.send_multipart(parts, zmq.NOBLOCK, copy=False)


def _uncopied(frame: Frame) -> Frame | zmq.Frame:
    """What the memory belongs to, if that is a whole frame that was received."""
    if isinstance(frame, memoryview) and isinstance(frame.obj, zmq.Frame) and frame.nbytes == len(frame.obj):
        return frame.obj
    return frame


def _receive_frames(socket: Socket) -> list[memoryview]:
    """The rest of the message that has begun to be received."""
    frames = []
    while socket.getsockopt(zmq.RCVMORE):
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        frames.append(frame.buffer if len(frame) >= _LARGE else memoryview(frame.bytes))
    return frames


def _peer_of(descriptor: int) -> str:
    """The address at the other end of a connection of libzmq's; "" if it has ended already."""
    try:
        with _borrowed(descriptor) as connection:
            host, port, *_ = connection.getpeername()
    except (OSError, ValueError):
        return ""
    return f"{host}:{port}"


def _received_nbytes(descriptor: int) -> int:
    """How much has come by a connection of libzmq's; 0 if it has ended, or the system does not say."""
    try:
        with _borrowed(descriptor) as connection:
            info = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _TCP_INFO_RECEIVED.size)
    except OSError:
        return 0
    return int(_TCP_INFO_RECEIVED.unpack(info)[0]) if len(info) == _TCP_INFO_RECEIVED.size else 0


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[sockets.socket]:
    """A connection of libzmq's, which stays its. Raises OSError if there is none."""
    connection = sockets.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
