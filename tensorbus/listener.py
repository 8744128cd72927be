"""The broker's end of TCP between the services of a scaled stack: a ROUTER, which knows each service by its id.

Nothing is kept for a service that is not there. A connection that ends takes with it what was under way, in both
directions; whoever dials anew joins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket as sockets
import time
from collections.abc import Callable, Sequence

import structlog
import zmq

from broker.router import DoesNotRead, Unreachable
from tensorbus.curve import Doorkeeper, Trust, protect_listener
from tensorbus.running import CannotListen
from tensorbus.tcp_address import tcp_address
from tensorbus.zmq_sockets import (
    ARRIVING_NBYTES,
    LINGER_MS,
    LOOK_S,
    NOBLOCK,
    Context,
    Frame,
    SocketReader,
    borrowed,
    monitor,
    new_socket,
    receive_message,
    received_nbytes,
    send_message,
)

log = structlog.get_logger()

_BACKLOG = 1024  # all services of a stack may dial at once
_SAY_AGAIN_S = 60.0  # a peer that is refused comes back every second
_MAX_REFUSED = 1000
_LAST_WORDS_S = 0.2  # libzmq does not say when it has sent what it was given
_SERVICE = re.compile(b"[0-9a-f]{8}")
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_CAUSES: dict[int, str] = {  # of EVENT_HANDSHAKE_FAILED_PROTOCOL
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
        self._ending: dict[int, asyncio.TimerHandle] = {}  # connections that are about to be hung up, by descriptor
        self._context: Context | None = None  # until it starts
        self._looking: asyncio.TimerHandle | None = None
        self._readers: list[SocketReader] = []
        self._failure = ""  # of a handshake whose connection is about to end
        self._refused: dict[tuple[str, str], float] = {}  # when that was said, by address and cause

    def start(self) -> None:
        """Raises CannotListen."""
        self._context = zmq.Context()
        self._socket = new_socket(self._context, zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        self._reader = SocketReader(self._socket, self._receive, self._done)
        self._events = monitor(self._socket, _EVENTS, self._on_event)
        self._readers = [self._reader, self._events]
        if self._trust is not None:
            protect_listener(self._socket, self._trust)
            doorkeeper = Doorkeeper(self._context, self._trust, self._on_unknown_key)
            self._readers.append(SocketReader(doorkeeper.socket, doorkeeper.answer))
        try:
            self._bind()
        except (zmq.ZMQError, ValueError) as error:
            self.close()
            raise CannotListen(f"cannot listen at {self.address}: {error}") from None
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look_for_arriving)
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
            send_message(self._socket, header, frames, to=service.encode())
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
        """Ends its connection, as soon as what it was sent last may be thought to have left. It may dial again."""
        descriptor = self._connections.pop(service, -1)
        if descriptor in self._peers and descriptor not in self._ending:
            ending = asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._hang_up, descriptor)
            self._ending[descriptor] = ending

    def _hang_up(self, descriptor: int) -> None:
        """The connection is libzmq's, which finds it ended."""
        self._events.read_all()  # it may have ended by now, and the descriptor be another one's
        if self._ending.pop(descriptor, None) is not None:
            with contextlib.suppress(OSError), borrowed(descriptor) as connection:
                connection.shutdown(sockets.SHUT_RDWR)

    def close(self) -> None:
        """What was sent last has a second to leave; this waits for it."""
        for ending in self._ending.values():
            ending.cancel()
        for reader in self._readers:
            reader.close(LINGER_MS)
        if self._looking is not None:
            self._looking.cancel()
        if self._context is not None:
            self._context.term()

    def _look_for_arriving(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(LOOK_S, self._look_for_arriving)
        received = {service: received_nbytes(descriptor) for service, descriptor in self._connections.items()}
        before, self._received = self._received, received
        for service, nbytes in received.items():
            if nbytes - before.get(service, nbytes) >= ARRIVING_NBYTES:
                self._arriving(service)

    def _receive(self) -> None:
        sender = self._socket.recv(NOBLOCK)
        header, frames = receive_message(self._socket)
        if not _SERVICE.fullmatch(sender):
            return
        service = sender.decode()
        descriptor = int(header.get("__fd"))
        if self._connections.get(service) != descriptor:
            self._events.read_all()  # the end of whose it was before: else the new one would be taken for that
            self._connections[service] = descriptor
        self._heard(service, header.bytes, frames)

    # --- who is not let in ----------------------------------------------------------------------------------------

    def _on_event(self, event: int, value: int) -> None:
        if event == zmq.EVENT_ACCEPTED:
            self._peers[value] = _peer_of(value)
        elif event == zmq.EVENT_DISCONNECTED:
            peer = self._peers.pop(value, "")
            if value in self._ending:  # it has hung up itself; the descriptor may be another connection's now
                self._ending.pop(value).cancel()
            gone = [service for service, descriptor in self._connections.items() if descriptor == value]
            if gone:
                asyncio.get_running_loop().call_soon(self._have_gone, gone, value)
            if self._failure and peer:  # it was gone before we asked who it is: it will dial again
                self._say_refused(peer, self._failure)
            self._failure = ""
        else:  # it says for which connection when that ends, which is what it says next
            self._failure = _CAUSES.get(value, f"ZeroMQ protocol error {value:#x}")

    def _have_gone(self, services: list[str], descriptor: int) -> None:
        self._reader.read_all()  # their last words
        for service in services:
            if self._connections.get(service) == descriptor and not self._socket.closed:  # else it is back already
                del self._connections[service]
                self._hung_up(service)

    def _on_unknown_key(self, host: str, key: str) -> None:
        self._say_refused(host, "its key is not authorized", key=key)

    def _say_refused(self, peer: str, cause: str, **fields: str) -> None:
        host, now = peer.rpartition(":")[0] or peer, time.monotonic()
        if now - self._refused.get((host, cause), -_SAY_AGAIN_S) >= _SAY_AGAIN_S:
            self._refused = dict(list(self._refused.items())[-_MAX_REFUSED:])
            self._refused[host, cause] = now
            log.warning("a service was refused", peer=peer, cause=cause, **fields)


def _peer_of(descriptor: int) -> str:
    """The address at the other end of a connection of libzmq's; "" if it has ended already."""
    try:
        with borrowed(descriptor) as connection:
            host, port, *_ = connection.getpeername()
    except (OSError, ValueError):
        return ""
    return f"{host}:{port}"
