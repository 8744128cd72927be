"""The other services' end of TCP between the services of a scaled stack: a DEALER for each connection to the broker.

Nothing is kept for a broker that is not there. A connection that ends takes with it what was under way, in both
directions: a Dialer says so (``lost``) and dials anew, and whoever dials anew joins anew.
"""

from __future__ import annotations

import asyncio
import errno
import socket as sockets
from collections.abc import Callable, Sequence

import structlog
import zmq

from broker.router import DoesNotRead, Unreachable
from tensorbus.curve import Trust, protect_dialer
from tensorbus.tcp_address import TcpAddress, tcp_address
from tensorbus.zmq_sockets import (
    ARRIVING_NBYTES,
    LINGER_MS,
    LOOK_S,
    Context,
    Frame,
    Socket,
    SocketReader,
    monitor,
    new_socket,
    receive_message,
    received_nbytes,
    send_message,
)

log = structlog.get_logger()

_CONNECT_MS = 3000
_RETRY_S, _MAX_RETRY_S = 0.1, 1.0
_NEVER_MS = 2**31 - 1
_EVENTS = (
    zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


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
        self._readers: list[SocketReader] = []
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
            send_message(self._socket, header, frames)
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
        self._hang_up(LINGER_MS)
        if self._context is not None:
            self._context.term()

    def _receive(self) -> None:
        assert self._socket is not None
        header, frames = receive_message(self._socket)
        self._heard(header.bytes, frames)

    def _look_for_arriving(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look_for_arriving)
        before, self._received = self._received, received_nbytes(self._descriptor) if self.is_connected else 0
        if before and self._received - before >= ARRIVING_NBYTES:
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
        socket = self._socket = new_socket(self._context, zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, self._service_id.encode())
        socket.setsockopt(zmq.IPV6, ":" in address.host)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
        # The next connection is another socket's, so that no message of it is taken for one of this.
        socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        if self._trust is not None:
            protect_dialer(socket, self._trust)
        self._readers = [
            SocketReader(socket, self._receive, self._done),
            monitor(socket, _EVENTS, self._on_event),
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
