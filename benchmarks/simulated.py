"""Stub hosts and a gateway without processes of their own: what they say to a broker, by real sockets of one process.

They speak protocol.services, and stub hosts protocol.messages for their stubs, which answer at once. They have no
shared memory, as on other machines: tensors travel in frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from protocol import messages, services
from protocol.codec import decode_to_service, encode, kind_of
from protocol.messages import (
    EXECUTE,
    FINISH,
    GOODBYE,
    HELLO,
    LOAD,
    READY,
    RESULTS,
    TO_STUB,
    Execute,
    Executed,
    Goodbye,
    Handle,
    Hello,
    Load,
    Ready,
    Request,
    Response,
    Results,
    TensorRef,
    ToBroker,
)
from protocol.services import (
    ASK,
    BEAT,
    DIED,
    FROM_STUBS,
    GATEWAY,
    HOLDS,
    JOIN,
    LEAVE,
    NEW_REQUESTS,
    PROVED,
    STUB_HOST,
    UNANSWERED,
    Answers,
    Ask,
    Beat,
    Catalogue,
    Died,
    Dismissed,
    Error,
    FromService,
    FromStubs,
    HeldStub,
    Holds,
    Join,
    Leave,
    NewRequests,
    Proved,
    Refused,
    Said,
    Start,
    Stop,
    ToStubs,
    Unanswered,
    Welcome,
    first_request,
)

Socket = zmq.Socket[bytes]
Frames = list[bytes]
_FOR_STUBS = {kind: msgspec.msgpack.Decoder(message) for kind, message in TO_STUB.items()}
_SHAPE = (16,)
_FRAME = bytes(64)  # FP32


def new_context(peers: int) -> zmq.Context[Socket]:
    context: zmq.Context[Socket] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 2 * peers + 16)
    return context


class Peer:
    """A service that dials. ``cluster`` is the broker's default."""

    role = ""

    def __init__(self, context: zmq.Context[Socket], address: str, service: str, cluster: str = "tensorbus") -> None:
        self._context = context
        self._address = address
        self._cluster = cluster
        self.service = service
        self.is_member = False
        self._loop = asyncio.get_running_loop()
        self._beating: asyncio.TimerHandle | None = None
        self._again: asyncio.Handle | None = None
        self._dial()

    def _dial(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in ((zmq.LINGER, 0), (zmq.SNDHWM, 0), (zmq.RCVHWM, 0), (zmq.RECONNECT_IVL, 50)):
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.ROUTING_ID, self.service.encode())
        self._socket.connect(self._address)
        self._loop.add_reader(self._socket.FD, self._read)
        nonce = self.service.encode() * 4
        join = Join(JOIN, services.VERSION, self._cluster, self.role, self.service, self.service, _NO_PROBE, nonce)
        self.say(join._replace(models=["*"] if self.role == STUB_HOST else []))

    def redial(self) -> None:
        """Anew, as after a broker that is lost."""
        self.hang_up()
        self._dial()

    def hang_up(self) -> None:
        """Without a word, as one that is killed."""
        self.is_member = False
        for handle in (self._beating, self._again):
            if handle is not None:
                handle.cancel()
        self._again = None
        self._loop.remove_reader(self._socket.FD)
        self._socket.close(0)

    def say(self, message: FromService, frames: Frames | None = None) -> None:
        self._socket.send_multipart([encode(message), *(frames or ())], zmq.NOBLOCK)
        if self._again is None:  # its descriptor tells of a change once
            self._again = self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._again = None
        while not self._socket.closed:
            try:
                header, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard(decode_to_service(header), frames)

    def _heard(self, message: Any, frames: Frames) -> None:
        if isinstance(message, Welcome):
            self.is_member = True
            self.say(Proved(PROVED, {}))
            self._beat(message.beat_ns / 1e9)
            self._joined()
        elif isinstance(message, Refused):
            raise RuntimeError(message.reason)
        elif not isinstance(message, Beat):
            self._on(message, frames)

    def _beat(self, every_s: float) -> None:
        self.say(Beat(BEAT))
        self._beating = self._loop.call_later(every_s, self._beat, every_s)

    def leave(self) -> None:
        self.say(Leave(LEAVE))

    def _joined(self) -> None: ...

    def _on(self, message: Any, frames: Frames) -> None:
        raise NotImplementedError


class StubHost(Peer):
    """Runs every model. ``stubs`` are those that are up, by key."""

    role = STUB_HOST

    def __init__(self, context: zmq.Context[Socket], address: str, number: int) -> None:
        self.stubs: dict[str, HeldStub] = {}
        self._starting: dict[str, HeldStub] = {}
        self.executed = 0
        self.is_dismissed = False
        super().__init__(context, address, f"{number:08x}")

    def _joined(self) -> None:
        self.say(Holds(HOLDS, list(self.stubs.values())))

    def _on(self, message: Any, frames: Frames) -> None:
        if isinstance(message, ToStubs):
            self._for_stubs(message, frames)
        elif isinstance(message, Start):
            key, model, version, instance, stamp = message.key, *message[3:7]
            self._starting[key] = HeldStub(key, model, version, instance, stamp, "", b"", [], [])
            self._tell(key, Hello(HELLO, messages.VERSION, 1))
        elif isinstance(message, Stop):
            self._die(message.key)
        elif isinstance(message, Dismissed):
            self.is_dismissed = True
            self.hang_up()

    def _for_stubs(self, message: ToStubs, frames: Frames) -> None:
        said: list[tuple[str, bytes, int]] = []
        dead = []
        for key, header, _ in message.messages:
            order = _FOR_STUBS[kind_of(header)].decode(header)
            if order.kind == LOAD:
                said.append(self._load(key, order))
            elif order.kind == EXECUTE and order.batches:
                said.append(self._execute(key, order))
            elif order.kind == FINISH:
                said.append((key, encode(Goodbye(GOODBYE, "")), 0))
                dead.append(key)
        if said:
            count = sum(frames for _, _, frames in said)
            self.say(FromStubs(FROM_STUBS, said), [_FRAME] * count)
        for key in dead:
            self._die(key)

    def _load(self, key: str, load: Load) -> tuple[str, bytes, int]:
        ready = encode(Ready(READY, b"", ""))
        self.stubs[key] = self._starting.pop(key)._replace(config=load.args["model_config"], ready=ready)
        return key, ready, 0

    def _execute(self, key: str, order: Execute) -> tuple[str, bytes, int]:
        executed = []
        count = 0
        for batch in order.batches:
            responses = []
            for request in batch.requests:
                outputs = [TensorRef(f"OUTPUT{n}", "FP32", _SHAPE, count + n) for n in range(2)]
                responses.append(Response(request.id, outputs))
                count += 2
            self.executed += len(responses)
            executed.append(Executed(batch.id, 1000, 1000, 1000, False, responses))
        return key, encode(Results(RESULTS, executed, [])), count

    def _die(self, key: str) -> None:
        self._starting.pop(key, None)
        self.stubs.pop(key, None)
        self.say(Died(DIED, key, 0, None))

    def _tell(self, key: str, message: ToBroker) -> None:
        header = encode(message)  # type: ignore[arg-type]
        self.say(FromStubs(FROM_STUBS, [(key, header, 0)]))


class Gateway(Peer):
    """Keeps so many requests under way, for one model after the other. ``hosts`` and ``rows`` are what it was told."""

    role = GATEWAY

    def __init__(self, context: zmq.Context[Socket], address: str, models: list[str]) -> None:
        self._models = models
        self.hosts: list[str] = []
        self.states: dict[str, str] = {}
        self.errors: list[Error] = []
        self.catalogues = 0
        self._left = self._open = 0
        self._done: Callable[[], None] = lambda: None
        self._answered = asyncio.Event()
        service = "ffffffff"
        self._last = first_request(service)
        super().__init__(context, address, service)

    def _joined(self) -> None:
        self.say(Unanswered(UNANSWERED, [], []))

    async def settle(self) -> None:
        """Until the broker has answered a question, and so heard what was said before."""
        self._answered.clear()
        self.say(Ask(ASK, 1, "ready"))
        await self._answered.wait()

    async def infer(self, requests: int, window: int) -> None:
        """All are answered, some perhaps by ``errors``."""
        done = self._loop.create_future()
        self._done = lambda: done.set_result(None)
        self._left, self._open = requests, 0
        self._submit(min(window, requests))
        await done

    def _submit(self, count: int) -> None:
        requests = []
        for _ in range(count):
            self._last += 1
            model = self._models[self._last % len(self._models)]
            inputs = [TensorRef(f"INPUT{n}", "FP32", _SHAPE, n) for n in range(2)]
            requests.append((Request(self._last, model, -1, inputs), 2))
        self._left -= count
        self._open += count
        self.say(NewRequests(NEW_REQUESTS, requests), [_FRAME] * (2 * count))

    def _on(self, message: Any, frames: Frames) -> None:
        if isinstance(message, Answers):
            self.errors += [response.error for response, _, _ in message.responses if response.error is not None]
            self._open -= len(message.responses)
            if self._left:
                self._submit(min(self._left, len(message.responses)))
            elif not self._open:
                self._done()
        elif isinstance(message, Catalogue):
            self.catalogues += 1
            self.hosts = message.hosts
            self.states.update({model: rows[0].state for model, rows in message.models.items() if rows})
        elif isinstance(message, Said):
            self._answered.set()


_NO_PROBE = Handle("", 0, 0)
