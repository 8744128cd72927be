"""The broker's end of the connection to gateways, over plain functions in place of models (fake_bus.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from gateway.bus import Frames
from gateway.remote_bus import READ_DELAY_S, RemoteBus
from protocol.codec import decode_from_service, decode_to_service, encode
from protocol.errors import ServingError
from protocol.messages import Handle, Response, TensorRef
from protocol.services import (
    ANSWERS,
    BEAT,
    CATALOGUE,
    DISMISSED,
    FATE,
    SAID,
    VERSION,
    WELCOME,
    Answers,
    Ask,
    Beat,
    Catalogue,
    Dismissed,
    Fate,
    Fetched,
    FromService,
    Join,
    Leave,
    NewRequests,
    Proved,
    Read,
    Row,
    Said,
    ToService,
    Unanswered,
    Welcome,
    Withdrawn,
)
from shm.store import Block, Store

MS = 1_000_000
ORIGIN = "stub"


class _Sink:
    """Of one request: what its model answers goes to its gateway."""

    def __init__(self, broker: BareBroker, service: str, request: int) -> None:
        self.broker, self.service, self.request = broker, service, request

    def on_response(self, response: Response, origin: str, frames: Frames) -> None:
        if response.final:
            self.broker.unanswered.discard(self.request)
        self.broker.answer(self.service, response, origin, frames)

    def on_inputs_released(self) -> None:
        self.broker.send(self.service, Answers(ANSWERS, [], [self.request]), ())


class Gateway(NamedTuple):
    """What is known of one that has joined."""

    join: Join
    shares: bool


class BareBroker:
    """``bus`` (a FakeBus) has the models. Without ``shares`` gateways count as sharing no memory with them, and tensors
    go by frames both ways. ``fate`` says what becomes of what a gateway says is unanswered: by default what this broker
    has is answered, and the rest is to be sent again."""

    def __init__(self, bus: Any, transmit: Callable[[str, bytes, Frames], None], shares: bool = True) -> None:
        self.bus = bus
        self._transmit = transmit
        self.shares = shares
        self.name = "one"
        self.beat_ms, self.silence_ms = 50, 500
        self.gateways: dict[str, Gateway] = {}
        self.heard_all: list[FromService] = []
        self.unanswered: set[int] = set()
        self.fetched: dict[int, tuple[str, list[bytes]]] = {}
        self.refuses = ""  # the reason, of Joins
        self.is_deaf = False
        self.tells_models = True
        self.fate: Callable[[Unanswered], Fate] = self._fate
        self.probe: Handle | None = None
        self.nonces: dict[str, bytes] = {}
        self.news = asyncio.Event()

    # --- what comes in --------------------------------------------------------------------------------------------

    def receive(self, service: str, header: bytes | memoryview, frames: Frames) -> None:
        if self.is_deaf:
            return
        message = decode_from_service(header)
        self.heard_all.append(message)
        self.news.set()
        handle: dict[type, Callable[[str, Any, Frames], None]] = {
            Join: self._join,
            Proved: lambda service, message, frames: self.nonces.update(message.nonces),
            Beat: lambda service, message, frames: None,
            Leave: lambda service, message, frames: self.send(service, Dismissed(DISMISSED)),
            NewRequests: self._new_requests,
            Withdrawn: lambda service, message, frames: [self.bus.cancel(id) for id in message.requests],
            Read: lambda service, message, frames: self._read(message.leases),
            Ask: self._asked,
            Unanswered: lambda service, message, frames: self.send(service, self.fate(message)),
            Fetched: self._fetched,
        }
        handle[type(message)](service, message, frames)

    def heard(self, kind: type) -> list[Any]:
        return [message for message in self.heard_all if type(message) is kind]

    async def until(self, condition: Callable[[], Any], timeout_s: float = 10) -> None:
        """``condition`` is looked at after each message."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self.news.clear()
                await self.news.wait()

    def _join(self, service: str, message: Join, frames: Frames) -> None:
        if self.refuses:
            from protocol.services import REFUSED, Refused

            self.send(service, Refused(REFUSED, self.refuses))
            return
        self.gateways[service] = Gateway(message, self.shares)
        probes = {} if self.probe is None else {"0badcafe": self.probe}
        times = (self.beat_ms * MS, self.silence_ms * MS)
        self.send(service, Welcome(WELCOME, VERSION, self.name, *times, probes))
        if self.tells_models:
            self.tell_models(service)

    def tell_models(self, service: str, *models: str) -> None:
        """All of them, or these."""
        rows = {name: [self._row(one)] for name, one in self.bus.signatures.items() if not models or name in models}
        rows.update({name: [] for name in models if name not in rows})
        self.send(service, Catalogue(CATALOGUE, rows, ["0badcafe"]))

    def _row(self, signature: Any) -> Row:
        return Row(signature.version, "READY", signature, self.shares)

    def _read(self, leases: list[tuple[str, int]]) -> None:
        for lease in leases:
            self.bus.release(*lease)

    def _new_requests(self, service: str, message: NewRequests, frames: Frames) -> None:
        self._read(message.read)
        position = 0
        for request, nframes in message.requests:
            own = frames[position : position + nframes]
            position += nframes
            self.unanswered.add(request.id)
            self.bus.submit(request, own, _Sink(self, service, request.id))
        assert position == len(frames)

    def _fate(self, message: Unanswered) -> Fate:
        return Fate(FATE, [id for id in message.requests if id not in self.unanswered], [])

    def _fetched(self, service: str, message: Fetched, frames: Frames) -> None:
        self.fetched[message.number] = (message.error, [bytes(frame) for frame in frames])

    def _asked(self, service: str, ask: Ask, frames: Frames) -> None:
        def say(**fields: Any) -> None:
            self.send(service, Said(SAID, ask.number, **fields))

        def say_done(error: ServingError | None) -> None:
            say(error=None if error is None else (int(error.kind), str(error)))

        def say_rows(name: str) -> Callable[[Any], None]:
            return lambda told: say_done(told) if isinstance(told, ServingError) else say(**{name: told})

        if ask.operation == "statistics":
            self.bus.statistics(ask.model, ask.version, say_rows("statistics"))
        elif ask.operation == "index":
            self.bus.index(ask.ready, say_rows("rows"))
        elif ask.operation == "load":
            self.bus.load(ask.model, ask.config, ask.files, say_done)
        elif ask.operation == "unload":
            self.bus.unload(ask.model, ask.unload_dependents, say_done)
        elif ask.model:
            self.bus.model_ready(ask.model, ask.version, lambda ready: say(ready=ready))
        else:
            self.bus.ready(lambda ready: say(ready=ready))

    # --- what goes out --------------------------------------------------------------------------------------------

    def send(self, service: str, message: ToService, frames: Frames = ()) -> None:
        self._transmit(service, encode(message), frames)

    def beat(self) -> None:
        for service in self.gateways:
            self.send(service, Beat(BEAT))

    def answer(self, service: str, response: Response, origin: str, frames: Frames) -> None:
        """Where memory is not shared the outputs become frames, and their lease ends here."""
        if not self.shares and response.outputs:
            own = list(frames)
            refs = [self._in_frame(ref, own) for ref in response.outputs]
            if response.lease:
                self.bus.release(origin, response.lease)
            response, frames = response._replace(outputs=refs, lease=0), own
        self.send(service, Answers(ANSWERS, [(response, origin, len(frames))], []), frames)

    def _in_frame(self, ref: TensorRef, frames: list[memoryview | bytes]) -> TensorRef:
        if isinstance(ref.place, int):
            return ref
        frames.append(bytes(self.bus.stub_store.view(*ref.place)))
        return ref._replace(place=len(frames) - 1)


def make_probe(store: Store, nonce: bytes) -> tuple[Block, Handle]:
    block = store.allocate(len(nonce))
    block.view[:] = nonce
    return block, Handle(block.segment, block.offset, block.nbytes)


class _RunningLoop:
    """Whichever runs when it is needed."""

    def call_soon(self, callback: Callable[[], None]) -> object:
        return asyncio.get_running_loop().call_soon(callback)

    def call_later(self, delay: float, callback: Callable[..., None], *args: int) -> asyncio.TimerHandle:
        """Without the delay that spares a message: tests end in the turn in which they have their answers."""
        return asyncio.get_running_loop().call_later(0 if delay == READ_DELAY_S else delay, callback, *args)


class Loopback:
    """A RemoteBus and a BareBroker, each of whose messages is heard at once; ``cut`` loses them."""

    SERVICE = "00000007"

    def __init__(self, bus: Any, store: Store, shares: bool = True) -> None:
        self.is_cut = False
        self.broker = BareBroker(bus, self._to_gateway, shares)
        self.remote = RemoteBus(_RunningLoop(), store, self._to_broker)

    def join(self) -> None:
        self.is_cut = False
        self.remote.joined()
        self.broker.tell_models(self.SERVICE)

    def cut(self) -> None:
        self.is_cut = True
        self.remote.lost()

    def _to_broker(self, message: FromService, frames: Frames) -> None:
        if not self.is_cut:
            self.broker.receive(self.SERVICE, encode(message), [memoryview(bytes(frame)) for frame in frames])

    def _to_gateway(self, service: str, header: bytes, frames: Frames) -> None:
        if not self.is_cut:
            self.remote.heard(decode_to_service(header), [memoryview(bytes(frame)) for frame in frames])
