"""The broker's end of the bus: a ROUTER on a Unix socket, in the broker's event loop.

Each stub has a connection and is known by its routing id, its key. Messages are sent in the call of ``send`` and heard
in the callback of the loop for the connection that they came by: nothing is handed to another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable

import structlog

from broker.queue import Frames
from protocol import zmtp
from protocol.errors import ProtocolError

log = structlog.get_logger()

Heard = Callable[[str, memoryview, list[memoryview]], None]

_IPC = "ipc://"
# At once, before others have their turn: some dozens of small messages, or a piece of a large one.
_READ_SIZE, _LARGE_READ_SIZE = 4 * 1024, 256 * 1024
_UNREAD = 1000  # messages; a stub that lets so many lie does not read any more, what it holds is far fewer
_BACKLOG = 1000
_RETRY_S = 0.1


class Unreachable(Exception):
    """There is nobody of that key, or not any more."""


class DoesNotRead(Exception):
    """Too many messages lie unread."""


class Router:
    """``heard`` is called with each message, ``done`` after those that one connection brought together."""

    def __init__(self, heard: Heard, done: Callable[[], None]) -> None:
        self.heard, self.done = heard, done
        self.peers: dict[str, Peer] = {}
        self._unknown: set[Peer] = set()  # have not said yet who they are
        self.paused = False

    def bind(self, address: str) -> None:
        """``address`` is ipc://<path>; call it on the running loop. Raises OSError."""
        self.loop = asyncio.get_running_loop()
        self._path = address[len(_IPC) :]
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        self._socket.bind(self._path)
        self._socket.listen(_BACKLOG)
        self._listen()

    def _listen(self) -> None:
        if self._socket.fileno() >= 0:
            self.loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError as fault:  # no descriptor is free: it would be told of for ever
            log.error("a stub cannot be connected", cause=str(fault))
            self.loop.remove_reader(self._socket)
            self.loop.call_later(_RETRY_S, self._listen)
            return
        connection.setblocking(False)
        peer = Peer(self, connection)
        self._unknown.add(peer)
        peer.greet()

    def introduce(self, peer: Peer) -> None:
        """It has said its key. A peer that was known by it is one no more."""
        self._unknown.discard(peer)
        former = self.peers.get(peer.key)
        if former is not None:
            former.close()
        self.peers[peer.key] = peer

    def forget(self, peer: Peer) -> None:
        self._unknown.discard(peer)
        if self.peers.get(peer.key) is peer:
            del self.peers[peer.key]

    def send(self, key: str, header: bytes, frames: Frames) -> None:
        """Never waits; what cannot leave now is kept, the frames included. Raises Unreachable and DoesNotRead."""
        peer = self.peers.get(key)
        if peer is None:
            raise Unreachable
        peer.send(zmtp.encode(header, frames))

    def hear_out(self, key: str) -> None:
        """Hears all that a process has said that is dead now."""
        peer = self.peers.get(key)
        if peer is not None:
            peer.hear_out()

    def pause(self) -> None:
        """Nobody is read from until ``resume``: what is said stays with who says it."""
        if not self.paused:
            self.paused = True
            for peer in [*self.peers.values(), *self._unknown]:
                peer.pause()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            for peer in [*self.peers.values(), *self._unknown]:
                peer.resume()

    def close(self) -> None:
        for peer in [*self.peers.values(), *self._unknown]:
            peer.close()
        self.loop.remove_reader(self._socket)
        self._socket.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


class Peer:
    """One connection."""

    def __init__(self, router: Router, connection: socket.socket) -> None:
        self.key = ""
        self._router = router
        self._socket = connection
        self._greeting = b""
        self._inbound = zmtp.Inbound()
        self._unsent: deque[list[bytes | memoryview]] = deque()  # by messages; of the first perhaps only a part
        if not router.paused:
            self.resume()

    def greet(self) -> None:
        with contextlib.suppress(Unreachable):
            self.send([zmtp.greeting()])

    # --- in -------------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self._router.loop.remove_reader(self._socket)

    def resume(self) -> None:
        self._router.loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        heard = self._receive()
        while heard == 0 and not self._inbound.missing:  # a message may be a little longer than what was read
            heard = self._receive()
        if heard:
            self._router.done()

    def hear_out(self) -> None:
        while self._receive() is not None:
            pass
        self.close()

    def _receive(self) -> int | None:
        """How many messages were heard; None if nothing has come."""
        try:
            missing = self._inbound.missing
            data = self._socket.recv(min(max(missing, _READ_SIZE), _LARGE_READ_SIZE) if missing else _READ_SIZE)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.close()
            return None
        try:
            return self._hear(data)
        except ProtocolError as fault:
            log.error("a connection to the bus was refused", stub=self.key, cause=str(fault))
            self.close()
        except Unreachable:
            pass  # it has not waited for our greeting
        return None

    def _hear(self, data: bytes) -> int:
        if len(self._greeting) < zmtp.GREETING_SIZE:
            data = self._be_greeted(data)
        self._inbound.feed(data)
        heard = 0
        while (frames := self._inbound.take()) is not None:
            if not self.key:
                self._introduce()
            self._router.heard(self.key, frames[0], frames[1:])
            heard += 1
        if not self.key and self._inbound.identity is not None:
            self._introduce()
        return heard

    def _be_greeted(self, data: bytes) -> bytes:
        """Returns what came behind the greeting."""
        said = self._greeting + data
        self._greeting = said[: zmtp.GREETING_SIZE]
        if len(self._greeting) == zmtp.GREETING_SIZE:
            zmtp.check_greeting(self._greeting)
            self.send([zmtp.ready("ROUTER")])
        return said[zmtp.GREETING_SIZE :]

    def _introduce(self) -> None:
        identity = self._inbound.identity or b""
        if not identity.isascii() or not identity:
            raise ProtocolError(f"READY without an identity of use: {identity!r}")
        self.key = identity.decode()
        self._router.introduce(self)

    # --- out ------------------------------------------------------------------------------------------------------

    def send(self, buffers: list[bytes | memoryview]) -> None:
        """Raises Unreachable and DoesNotRead."""
        if self._unsent:
            if len(self._unsent) > _UNREAD:
                raise DoesNotRead
            self._unsent.append(buffers)
            return
        for number, data in enumerate(buffers, 1):
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close()
                raise Unreachable from None
            if sent < len(data):
                self._unsent.append([memoryview(data)[sent:], *buffers[number:]])
                self._router.loop.add_writer(self._socket, self._send_on)
                return

    def _send_on(self) -> None:
        unsent, self._unsent = self._unsent, deque()
        self._router.loop.remove_writer(self._socket)
        with contextlib.suppress(Unreachable):
            for buffers in unsent:
                self.send(buffers)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._router.loop.remove_reader(self._socket)
            self._router.loop.remove_writer(self._socket)
            self._socket.close()
            self._unsent.clear()
            self._router.forget(self)
