"""What becomes of the words of stubs while the broker is away, or does not read. Stubs are real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import zmq

from broker.router import DoesNotRead, Unreachable
from metrics.stub_host_record import StubHostRecord
from protocol.codec import decode_from_service, decode_from_stub, encode
from protocol.messages import GOODBYE, LOG, RESULTS, Executed, Goodbye, Log, Response, Results
from protocol.services import Died, FromStubs, HeldStub, Holds
from tensorbus import relay
from tensorbus.relay import Relay

DEADLINE_S = 20
BOUND = 1 << 20


class Broker:
    """Takes what the relay sends, unless it is told not to."""

    def __init__(self) -> None:
        self.fault: type[Exception] | None = None
        self.headers: list[bytes] = []
        self.frames: list[bytes] = []

    def send(self, header: bytes, frames: object = ()) -> None:
        if self.fault is not None:
            raise self.fault
        self.headers.append(header)
        self.frames += map(bytes, frames)

    @property
    def messages(self) -> list:
        return [decode_from_service(header) for header in self.headers]

    def texts(self, key: str) -> list[str]:
        said = [one for message in self.messages if isinstance(message, FromStubs) for one in message.messages]
        return [decode_from_stub(header).text for address, header, _ in said if address == key]


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a test's coroutine with a relay, its broker and a bus to dial."""
    monkeypatch.setattr(relay, "_MOST_NBYTES", BOUND)

    def go(test: Callable[[Relay, Broker, str], Awaitable[None]]) -> None:
        async def main() -> None:
            broker, bus = Broker(), f"ipc://{tmp_path}/bus"
            made = Relay(bus, "/dev/shm", StubHostRecord(), broker.send, lambda key, load: load, lambda key: None)
            made.start()
            try:
                await test(made, broker, bus)
            finally:
                made.close()

        asyncio.run(main())

    return go


def dial(context: zmq.Context, bus: str, key: str) -> zmq.Socket:
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, key.encode())
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.connect(bus)
    return socket


def line(text: str) -> bytes:
    return encode(Log(LOG, "I", "model.py", 1, text))


async def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def settled(value: Callable[[], object]) -> None:
    """It has not changed for a while."""
    last, since = value(), time.monotonic()
    while time.monotonic() - since < 0.3:
        await asyncio.sleep(0.01)
        if value() != last:
            last, since = value(), time.monotonic()


def test_what_is_said_before_there_is_a_broker_comes_after_what_is_held(run, context) -> None:
    async def test(made: Relay, broker: Broker, bus: str) -> None:
        stub = dial(context, bus, "k1")
        made.add(HeldStub("k1", "m", 1, "m_0", "stamp", "", b"", [], []))
        for number in range(5):
            stub.send_multipart([line(str(number)), b"frame"])
        await until(lambda: made._record.from_stubs == 5)
        assert broker.headers == []
        made.joined()
        assert isinstance(broker.messages[0], Holds)
        assert broker.texts("k1") == list("01234") and broker.frames == [b"frame"] * 5
        assert len(broker.headers) == 2

    run(test)


def test_stubs_wait_when_too_much_is_kept_and_go_on_in_order(run, context) -> None:
    async def test(made: Relay, broker: Broker, bus: str) -> None:
        stub, other = dial(context, bus, "k1"), None
        texts = [f"{number}:" + "x" * 20_000 for number in range(400)]
        for text in texts:
            stub.send(line(text))
        await until(lambda: made._router.paused)
        other = dial(context, bus, "k2")  # connects meanwhile
        other.send(line("late"))
        await settled(lambda: made._unsent_nbytes)
        assert BOUND < made._unsent_nbytes < BOUND + (64 << 10)
        made.joined()
        await until(lambda: len(broker.texts("k1")) == len(texts) and broker.texts("k2"))
        assert broker.texts("k1") == texts
        assert (made._unsent_nbytes, made._router.paused) == (0, False)

    run(test)


@pytest.mark.parametrize("fault", [DoesNotRead, Unreachable])
def test_nothing_is_lost_and_nothing_is_said_twice_if_the_broker_takes_nothing_for_a_while(run, context, fault) -> None:
    async def test(made: Relay, broker: Broker, bus: str) -> None:
        stub = dial(context, bus, "k1")
        made.joined()
        broker.fault = fault
        for number in range(1500):  # more than go into one message
            stub.send(line(str(number)))
        await until(lambda: made._record.from_stubs == 1500)
        broker.fault = None
        if fault is Unreachable:  # the link says so, and then that there is one again
            made.lost()
            made.joined()
        await until(lambda: len(broker.texts("k1")) == 1500)
        assert broker.texts("k1") == [str(number) for number in range(1500)]

    run(test)


def test_a_death_comes_after_the_last_word(run, context) -> None:
    async def test(made: Relay, broker: Broker, bus: str) -> None:
        made.joined()
        made.add(HeldStub("k1", "m", 1, "m_0", "stamp", "", b"", [], []))
        stub = dial(context, bus, "k1")
        stub.send(line("first"))
        await until(lambda: broker.texts("k1"))
        stub.send(encode(Results(RESULTS, [], [])))
        stub.send(encode(Goodbye(GOODBYE, "")))
        time.sleep(0.1)  # libzmq writes in a thread of its own; here nobody reads meanwhile
        made.died("k1", -9)
        await until(lambda: isinstance(broker.messages[-1], Died))
        kinds = [header[2:3] for message in broker.messages[2:-1] for _, header, _ in message.messages]
        assert kinds == [b"S", b"B"]
        assert broker.messages[-1] == Died("X", "k1", -9, None)
        made.lost()
        made.joined()
        assert broker.messages[-1] == Holds("H", [])

    run(test)


def test_what_was_answered_so_late_that_it_may_not_have_been_heard_is_told(run, context) -> None:
    """Else a broker that knows nothing of it would have it executed again."""

    async def test(made: Relay, broker: Broker, bus: str) -> None:
        made.joined()
        made.add(HeldStub("k1", "m", 1, "m_0", "stamp", "", b"", [], []))
        stub = dial(context, bus, "k1")
        for request in (5, 6):
            executed = Executed(request, 0, 0, 0, False, [Response(request, [])])
            of_a_call = Response(-request, [])
            stub.send(encode(Results(RESULTS, [executed], [], [Response(request + 10, [], final=False), of_a_call])))
            await until(lambda request=request: len(broker.headers) == request - 3)
            if request == 5:
                made.heard(time.monotonic_ns() + 41 * 10**9)
        made.heard(time.monotonic_ns() + 35 * 10**9)  # a gateway may not have read for so long
        made.lost()
        made.died("k1", -9)
        made.joined()
        (holds,) = [message for message in broker.messages[1:] if isinstance(message, Holds)]
        assert (holds.answered, [held.key for held in holds.stubs]) == ([6], ["k1"])

    run(test)


def test_of_very_many_answers_the_last_are_remembered(run, context, monkeypatch) -> None:
    monkeypatch.setattr(relay, "_MOST_ANSWERED", 10)

    async def test(made: Relay, broker: Broker, bus: str) -> None:
        made.joined()
        made.add(HeldStub("k1", "m", 1, "m_0", "stamp", "", b"", [], []))
        stub = dial(context, bus, "k1")
        for request in range(1, 31):
            stub.send(encode(Results(RESULTS, [], [], [Response(request, [])])))
            await until(lambda request=request: len(broker.headers) == request + 1)
        made.heard(time.monotonic_ns())
        made.lost()
        made.joined()
        (holds,) = [message for message in broker.messages[1:] if isinstance(message, Holds)]
        assert holds.answered == list(range(21, 31))

    run(test)
