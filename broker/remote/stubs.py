"""Stubs on stub hosts: the broker's Stubs (broker/stubs.py) by way of the services that have started them.

What goes to the stubs of a host in one turn of the event loop leaves as one message. A message that refers to memory
which the host does not share waits until the bytes are there, and with it what comes after it for the same stub.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker.events import Event, Send, Spawn, StubDied, StubSaid, WatchStatus
from broker.model import VersionSource
from broker.queue import Frames
from broker.remote.catalogue import SendTo
from broker.remote.fetches import Fetches, owner_of
from broker.remote.members import Members
from broker.router import Unreachable
from broker.stubs import Heard, replace_handles
from broker.turn import Soon
from protocol.codec import encode
from protocol.errors import ProtocolError
from protocol.messages import FAILED, Answered, Execute, Failed, Handle, TensorRef, ToStub
from protocol.services import (
    COUNTER_BITS,
    START,
    STOP,
    TO_STUBS,
    Died,
    FromStubs,
    Start,
    Stop,
    ToStubs,
)

_Buffers = list[memoryview | bytes]


class _Outbox:
    """What leaves for one host at the end of the turn."""

    __slots__ = ("frames", "messages")

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes, int]] = []
        self.frames: _Buffers = []


class _Held:
    """A message that waits for its bytes, or ``is_whole`` and waits for those before it."""

    __slots__ = ("action", "is_whole")

    def __init__(self, action: Send, is_whole: bool) -> None:
        self.action = action
        self.is_whole = is_whole


class RemoteStubs:
    """``key`` is of a socket of a stub: that of a process the model has forked has a suffix after a slash."""

    def __init__(
        self,
        members: Members,
        fetches: Fetches,
        send: SendTo,
        files: Callable[[VersionSource], dict[str, bytes]],
        post: Callable[[Event], None],
        soon: Soon,
    ) -> None:
        """``files`` are those of a model that lies in no repository; ``post`` has the core told; ``soon`` is of a
        Turn."""
        self._members = members
        self._fetches = fetches
        self._send_to = send
        self._files = files
        self._post = post
        self._soon = soon
        self._hosts: dict[str, str] = {}  # by the key of a process that was started there
        self._outboxes: dict[str, _Outbox] = {}
        self._held: dict[str, deque[_Held]] = {}  # by the key of a socket; the first of each waits for its bytes
        self.gateway_domains: dict[int, str] = {}  # by the bits of Request.id that say which gateway

    def start(self, heard: Heard, done: Callable[[], None]) -> None:
        """What came together the ServiceBus knows."""
        self._heard = heard

    # --- processes --------------------------------------------------------------------------------------------------

    def spawn(self, order: Spawn) -> None:
        source = order.source
        self._hosts[order.key] = order.host
        start = Start(
            START,
            order.key,
            order.title,
            source.model,
            source.version,
            order.instance,
            source.stamp,
            source.directory,
            order.environment,
            self._files(source),
            source.given,
        )
        self._send_to(order.host, start, ())

    def kill(self, key: str) -> None:
        self._stop(key, abort=False)

    def abort(self, key: str) -> None:
        self._stop(key, abort=True)

    def _stop(self, key: str, abort: bool) -> None:
        key = _process(key)
        host = self._hosts.get(key)
        if host is not None:
            self._flush_host(host)
            self._send_to(host, Stop(STOP, key, abort), ())

    def host_joined(self, host: str, keys: list[str]) -> None:
        """With these stubs. Raises ProtocolError if they cannot be its own: each host has instances of its own."""
        others = {_instance(key) for key, of in self._hosts.items() if of != host}
        if len(set(keys)) < len(keys) or any(_instance(key) in others for key in keys):
            raise ProtocolError("a stub host holds stubs of another one, or one twice")
        self._hosts.update(dict.fromkeys(keys, host))

    def host_lost(self, host: str) -> None:
        """The core has been told."""
        self._outboxes.pop(host, None)
        for key in [key for key, of in self._hosts.items() if of == host]:
            self._forget(key)

    def _forget(self, key: str) -> None:
        del self._hosts[key]
        for socket in [socket for socket in self._held if _process(socket) == key]:
            del self._held[socket]

    # --- what they say ----------------------------------------------------------------------------------------------

    def from_stubs(self, host: str, message: FromStubs, frames: list[memoryview]) -> None:
        """Raises ProtocolError."""
        start = 0
        for key, header, count in message.messages:
            if not 0 <= count <= len(frames) - start:
                raise ProtocolError("messages of stubs with other frames than they say")
            if self._hosts.get(_process(key)) == host:
                self._heard(key, memoryview(header), frames[start : start + count])
            start += count

    def died(self, host: str, message: Died) -> None:
        key = message.key
        if self._hosts.get(key) != host:
            return
        if message.error is not None:
            self._post(StubSaid(key, Failed(FAILED, *message.error), ()))
        self._forget(key)
        self._post(StubDied(key, message.status, message.inside))

    def watch(self, action: WatchStatus) -> None:
        """Its host does."""

    def hear_out(self, key: str) -> int | None:
        raise NotImplementedError  # ``died`` says it

    # --- what they are told -----------------------------------------------------------------------------------------

    def send(self, action: Send) -> None:
        """Raises Unreachable. Bytes are asked for at once, whatever waits before them: a lease may end with this."""
        key, message, _, shared = action
        host = self._hosts.get(_process(key))
        if host is None:
            raise Unreachable
        member = self._members.get(host)
        if member is None:
            return
        foreign = self._foreign(message, member.domain if shared else None)
        if not foreign and key not in self._held:
            self._send_on(host, action)
            return
        held = _Held(action, not foreign)
        self._held.setdefault(key, deque()).append(held)
        if foreign:
            fleeting = isinstance(message, Answered) and not message.response.lease
            self._fetches.begin(foreign, lambda found: self._fetched(held, foreign, found), fleeting)

    def _send_on(self, host: str, action: Send) -> None:
        member = self._members.get(host)
        if member is None:
            return
        key, message, frames, shared = action
        if type(message) is Execute:
            message = self._with_inline(message, member.domain if shared else None)
        self._put(host, key, message, frames)

    def _foreign(self, message: ToStub, domain: str | None) -> list[Handle]:
        """The places that its reader cannot look at; None shares with nobody."""
        of = self._members.domains.of
        return [handle for handle in _handles(message) if domain is None or of(owner_of(handle)) != domain]

    def _with_inline(self, message: Execute, domain: str | None) -> Execute:
        """Says for which requests the outputs are to be in frames: their gateway is of another domain."""
        domains = self.gateway_domains
        inline = [
            request.id
            for batch in message.batches
            for request in batch.requests
            if request.id > 0 and domains.get(request.id >> COUNTER_BITS) != domain
        ]
        return message._replace(inline=inline) if inline else message

    def _fetched(self, held: _Held, foreign: list[Handle], found: _Buffers) -> None:
        action = held.action
        places = dict(zip(foreign, found, strict=True))
        frames = list(action.frames)

        def inlined(handle: Handle) -> Handle | int:
            frame = places.get(handle)
            if frame is None:
                return handle
            frames.append(frame)
            return len(frames) - 1

        held.action = action._replace(message=replace_handles(action.message, inlined), frames=frames)
        held.is_whole = True
        waiting = self._held.get(action.key)
        if waiting is None:  # the stub is dead
            return
        host = self._hosts[_process(action.key)]
        while waiting and waiting[0].is_whole:
            self._send_on(host, waiting.popleft().action)
        if not waiting:
            del self._held[action.key]

    def _put(self, host: str, key: str, message: ToStub, frames: Frames) -> None:
        outbox = self._outboxes.get(host)
        if outbox is None:
            outbox = self._outboxes[host] = _Outbox()
            if len(self._outboxes) == 1:
                self._soon(self._flush)
        outbox.messages.append((key, encode(message), len(frames)))
        outbox.frames.extend(frames)

    def _flush(self) -> None:
        for host in list(self._outboxes):
            self._flush_host(host)

    def _flush_host(self, host: str) -> None:
        outbox = self._outboxes.pop(host, None)
        if outbox is not None:
            self._send_to(host, ToStubs(TO_STUBS, outbox.messages), outbox.frames)

    def close(self) -> None:
        self._flush()


def _process(key: str) -> str:
    return key.partition("/")[0] if "/" in key else key


def _instance(key: str) -> str:
    return key.partition(".")[0]


def _handles(message: ToStub) -> list[Handle]:
    tensors: list[TensorRef] = []
    if isinstance(message, Execute):
        tensors = [tensor for batch in message.batches for request in batch.requests for tensor in request.inputs]
    elif isinstance(message, Answered):
        tensors = message.response.outputs
    return [tensor.place for tensor in tensors if isinstance(tensor.place, Handle)]
