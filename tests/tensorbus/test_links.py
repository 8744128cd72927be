"""Both ends on real sockets, on the loop of production; the other end is libzmq's own where it has to misbehave."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq
from structlog.testing import capture_logs

from broker.router import DoesNotRead, Unreachable
from tensorbus.listener import Listener
from tensorbus.running import CannotListen
from tests.tensorbus.link_ends import LOCAL, Broker, Keys, Service, on_the_loop, pair, raw_socket, until

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
ECHO = """
import sys, uvloop, asyncio
from tensorbus.listener import Listener

async def run():
    listener = Listener(sys.argv[1], None, lambda service, header, frames: listener.send(service, header, frames), int)
    listener.start()
    print(listener.address, flush=True)
    await asyncio.Event().wait()

uvloop.run(run())
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


# --- messages ---------------------------------------------------------------------------------------------------


@on_the_loop
async def test_messages_arrive_whole_and_in_order_both_ways(keys: Keys) -> None:
    async with pair(keys.broker(), keys.service(), echo=True) as (broker, service):
        sent = [(b"%d" % number, [b"x" * (number % 300)] * (number % 4)) for number in range(900)]
        for header, frames in sent:
            service.dialer.send(header, frames)
        await until(lambda: len(service.heard) == len(sent))
        assert service.heard == sent
        assert broker.heard == [("0123abcd", header, frames) for header, frames in sent]
        assert broker.turns < len(sent)


@on_the_loop
async def test_large_frames_travel_beside_small_ones(keys: Keys) -> None:
    async with pair(keys.broker(), keys.service(), echo=True) as (_, service):
        large, writable = os.urandom(64 * MIB), bytearray(os.urandom(MIB))
        frames = [b"small", large, b"", memoryview(writable), large[: 64 * 1024]]
        service.dialer.send(b"large", frames)
        service.dialer.send(b"next")
        await until(lambda: len(service.heard) == 2, 60)
        assert service.heard == [(b"large", [bytes(frame) for frame in frames]), (b"next", [])]


@on_the_loop
async def test_a_burst_does_not_keep_the_loop_from_others(keys: Keys) -> None:
    async with pair() as (broker, service):
        turns = 0
        for number in range(900):
            service.dialer.send(b"%d" % number)

        def turn() -> None:
            nonlocal turns
            turns += 1
            if len(broker.heard) < 900:
                asyncio.get_running_loop().call_soon(turn)

        turn()
        await until(lambda: len(broker.heard) == 900)
        assert turns > 5 and broker.turns >= 9


@on_the_loop
async def test_a_fault_in_what_hears_does_not_stop_the_link(keys: Keys) -> None:
    heard = []

    def hear(service: str, header: bytes, frames: list[memoryview]) -> None:
        heard.append(header)
        if header == b"bad":
            raise KeyError("a fault of ours")

    listener = Listener(LOCAL, None, hear, lambda: None)
    listener.start()
    service = await Service(listener.address).connected()
    with capture_logs() as logs:
        service.dialer.send(b"bad")
        service.dialer.send(b"good")
        await until(lambda: len(heard) == 2)
    assert [line["event"] for line in logs] == ["a message was not understood"]
    service.dialer.close()
    listener.close()


@on_the_loop
async def test_hundreds_of_services_are_told_apart(keys: Keys) -> None:
    broker = Broker(keys.broker(), echo=True)
    context: zmq.Context = zmq.Context()
    trust = keys.service()
    ends = {}
    for number in range(300):
        end = ends[f"{number:08x}"] = context.socket(zmq.DEALER)
        end.routing_id, end.linger = b"%08x" % number, 0
        end.curve_secretkey, end.curve_publickey, end.curve_serverkey = trust.secret, trust.public, trust.broker
        end.connect(broker.listener.address)
        end.send_multipart([b"header %d" % number, b"frame"])
    await until(lambda: len(broker.heard) == len(ends), 60)
    assert {service: header for service, header, _ in broker.heard} == {
        service: b"header %d" % int(service, 16) for service in ends
    }
    for service, end in ends.items():
        assert end.poll(20000) and end.recv_multipart() == [b"header %d" % int(service, 16), b"frame"]
    for end in ends.values():
        end.close()
    context.term()
    broker.listener.close()


# --- peers that are not there, or do not read -------------------------------------------------------------------


@on_the_loop
async def test_nothing_is_kept_for_a_peer_that_is_not_there(keys: Keys) -> None:
    broker = Broker()
    with pytest.raises(Unreachable):
        broker.listener.send("00000001", b"header", [b"frame"])
    service = Service(broker.listener.address, service_id="00000001")
    with pytest.raises(Unreachable):
        service.dialer.send(b"too early")
    await service.connected()
    service.dialer.send(b"first")
    await until(lambda: broker.heard)
    broker.listener.send("00000001", b"answer")
    await until(lambda: service.heard)
    assert (broker.heard, service.heard) == ([("00000001", b"first", [])], [(b"answer", [])])
    service.dialer.close()
    with pytest.raises(Unreachable):
        service.dialer.send(b"too late")
    broker.listener.close()


@on_the_loop
async def test_a_service_that_does_not_read_is_given_a_bounded_number_of_messages(keys: Keys) -> None:
    broker = Broker()
    with raw_socket(zmq.DEALER) as end:
        end.routing_id = b"00000001"
        end.connect(broker.listener.address)
        end.send(b"join")
        await until(lambda: broker.heard)
        service = await Service(broker.listener.address).connected()
        service.dialer.send(b"join")
        await until(lambda: len(broker.heard) == 2)
        sent = 0
        with pytest.raises(DoesNotRead):
            for sent in range(20000):
                broker.listener.send("00000001", b"%d" % sent, [bytes(10000)])
                if not sent % 100:
                    await asyncio.sleep(0)
        assert 1000 <= sent < 10000
        broker.listener.send("0123abcd", b"others are not kept waiting")
        await until(lambda: service.heard)
        for number in range(sent):
            assert end.poll(20000) and end.recv_multipart()[0] == b"%d" % number
    service.dialer.close()
    broker.listener.close()


@on_the_loop
async def test_a_broker_that_does_not_read_is_given_a_bounded_number_of_messages(keys: Keys) -> None:
    with raw_socket(zmq.ROUTER) as end:
        port = end.bind_to_random_port("tcp://127.0.0.1")
        service = await Service(f"tcp://127.0.0.1:{port}").connected()
        with pytest.raises(DoesNotRead):
            for _ in range(20000):
                service.dialer.send(b"header", [bytes(10000)])
        service.dialer.close()


# --- connections that end ---------------------------------------------------------------------------------------


def echoing_process(address: str) -> tuple[subprocess.Popen, str]:
    process = subprocess.Popen([sys.executable, "-c", ECHO, address], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline() if process.stdout else ""
    while line and not line.startswith("tcp:"):  # what it logs
        line = process.stdout.readline()
    return process, line.strip()


@on_the_loop
async def test_a_broker_that_is_killed_is_dialed_again_when_it_is_back(keys: Keys) -> None:
    process, address = await asyncio.to_thread(echoing_process, LOCAL)
    try:
        service = await Service(address).connected()
        service.dialer.send(b"one")
        await until(lambda: service.heard)
        with capture_logs() as logs:
            process.kill()
            await asyncio.to_thread(process.wait)
            await until(lambda: not service.dialer.is_connected)
            with pytest.raises(Unreachable):
                service.dialer.send(b"lost")
            process, _ = await asyncio.to_thread(echoing_process, address)
            await service.connected()
        service.dialer.send(b"two")
        await until(lambda: len(service.heard) == 2)
        assert service.heard == [(b"one", []), (b"two", [])]
        assert service.events == ["connected", "lost", "connected"]
        assert [line.get("cause", line["event"]) for line in logs] == [
            "the connection to the broker is lost",
            "nobody listens there",
            "connected to the broker",
        ]
        service.dialer.close()
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


@on_the_loop
async def test_a_broker_may_start_after_who_dials_it(keys: Keys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://localhost:{taken.getsockname()[1]}"
    with capture_logs() as logs:
        service = Service(address)
        await until(lambda: logs)
        broker = Broker(address=address.replace("localhost", "127.0.0.1"))
        await service.connected()
    causes = [line["cause"] for line in logs if line["event"] == "cannot connect to the broker"]
    assert causes == ["nobody listens there"]
    service.dialer.close()
    broker.listener.close()


@on_the_loop
async def test_the_last_words_of_a_broker_are_heard_before_it_counts_as_lost(keys: Keys) -> None:
    async with pair(keys.broker(), keys.service()) as (broker, service):
        service.dialer.send(b"join")
        await until(lambda: broker.heard)
        for number in range(900):
            broker.listener.send("0123abcd", b"%d" % number, [bytes(1000)])
        lost_after = []
        service.dialer._lost = lambda: lost_after.append(len(service.heard))
        broker.listener.close()
        await until(lambda: lost_after)
        assert lost_after == [900]


@on_the_loop
async def test_the_last_words_of_a_service_are_heard(keys: Keys) -> None:
    broker = Broker(keys.broker())
    service = await Service(broker.listener.address, keys.service()).connected()
    for number in range(900):
        service.dialer.send(b"%d" % number, [bytes(1000)])
    service.dialer.close()
    await until(lambda: len(broker.heard) == 900)
    broker.listener.close()


@on_the_loop
async def test_a_service_that_is_dropped_dials_again(keys: Keys) -> None:
    async with pair(keys.broker(), keys.service()) as (broker, service):
        service.dialer.send(b"one")
        await until(lambda: broker.heard)
        assert broker.listener.peer("0123abcd").startswith("127.0.0.1:")
        broker.listener.drop("0123abcd")
        await until(lambda: service.events == ["connected", "lost", "connected"])
        service.dialer.send(b"two")
        await until(lambda: len(broker.heard) == 2)
        broker.listener.send("0123abcd", b"answer")
        await until(lambda: service.heard)
        broker.listener.drop("ffffffff")


@on_the_loop
async def test_who_gets_the_descriptor_of_one_that_has_gone_is_not_taken_for_it(keys: Keys) -> None:
    """Both are noticed in the same turn of the loop: what the new one says may be read before the other's end is."""
    context = zmq.Context()

    def dial(service: bytes) -> zmq.Socket:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, service)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(broker.listener.address)
        socket.send(service)
        return socket

    broker = Broker()
    hung_up: list[str] = []
    broker.listener._hung_up = hung_up.append
    for number in range(10):
        before, after = (f"{number:07x}{end}".encode() for end in "ab")
        first = dial(before)
        await until(lambda before=before: (before.decode(), before, []) in broker.heard)  # type: ignore[misc]
        first.close()
        time.sleep(0.05)
        second = dial(after)
        time.sleep(0.05)
        await until(lambda after=after: (after.decode(), after, []) in broker.heard)  # type: ignore[misc]
        await until(lambda number=number: len(hung_up) > 2 * number)  # type: ignore[misc]
        await asyncio.sleep(0.01)
        assert hung_up[2 * number :] == [before.decode()]
        second.close()
        await until(lambda number=number: len(hung_up) == 2 * number + 2)  # type: ignore[misc]
    broker.listener.close()
    context.destroy(linger=0)


@on_the_loop
async def test_what_a_service_is_told_before_it_is_dropped_arrives(keys: Keys) -> None:
    async with pair(keys.broker(), keys.service()) as (broker, service):
        for number in range(1, 11):
            service.dialer.send(b"here")
            await until(lambda number=number: len(broker.heard) == number)  # type: ignore[misc]
            broker.listener.send("0123abcd", b"why", [bytes(100_000)])
            broker.listener.drop("0123abcd")
            await until(lambda number=number: service.events.count("connected") == number + 1)  # type: ignore[misc]
            assert len(service.heard) == number


@on_the_loop
async def test_a_service_dials_again_under_another_id(keys: Keys) -> None:
    async with pair(keys.broker(), keys.service()) as (broker, service):
        service.dialer.send(b"one")
        service.dialer.redial("00000002")
        with pytest.raises(Unreachable):
            service.dialer.send(b"not yet")
        await service.connected()
        service.dialer.send(b"two")
        await until(lambda: ("00000002", b"two", []) in broker.heard)
        broker.listener.send("00000002", b"answer")
        await until(lambda: service.heard)
        assert "lost" not in service.events


@on_the_loop
async def test_a_service_that_comes_back_takes_its_id_over(keys: Keys) -> None:
    async with pair(keys.broker(), keys.service()) as (broker, first):
        first.dialer.send(b"one")
        await until(lambda: broker.heard)
        second = await Service(broker.listener.address, keys.service()).connected()
        second.dialer.send(b"two")
        await until(lambda: len(broker.heard) == 2)
        broker.listener.send("0123abcd", b"answer")
        await until(lambda: second.heard)
        assert not first.heard
        second.dialer.close()


@on_the_loop
async def test_closing_leaves_no_descriptor_and_no_thread(keys: Keys) -> None:
    async def life() -> None:
        async with pair(keys.broker(), keys.service(), echo=True) as (broker, service):
            service.dialer.send(b"one", [bytes(MIB)])
            await until(lambda: service.heard)
            broker.listener.drop("0123abcd")
            await until(lambda: service.events[-1] == "connected" and len(service.events) == 3)
        nobody = Service("tcp://127.0.0.1:1")
        await until(lambda: nobody.dialer._said)
        nobody.dialer.close()

    def held() -> tuple[int, int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), threading.active_count()

    await life()  # the loop keeps threads that look names up; pyzmq one that lets go of what is sent uncopied
    before = held()
    for _ in range(3):
        await life()
    assert held() == before


# --- slow links -------------------------------------------------------------------------------------------------


async def throttled(address: str, nbytes_per_s: int) -> tuple[asyncio.Server, str]:
    """A way to ``address`` that takes so much, in each direction."""
    host, port = address.removeprefix("tcp://").split(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(nbytes_per_s // 20):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(len(data) / nbytes_per_s)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, onward_writer), copy(onward_reader, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0, limit=1 << 16)
    return server, f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@on_the_loop
async def test_a_peer_whose_large_message_is_on_its_way_is_not_silent(keys: Keys) -> None:
    broker = Broker(keys.broker())
    at_broker, at_service = [], []
    broker.listener._arriving = at_broker.append
    server, address = await throttled(broker.listener.address, 8 * MIB)
    service = await Service(address, keys.service()).connected()
    service.dialer._arriving = lambda: at_service.append(len(service.heard))
    service.dialer.send(b"join")
    await until(lambda: broker.heard)
    service.dialer.send(b"large", [bytes(20 * MIB)])
    await until(lambda: len(at_broker) >= 3)
    assert len(broker.heard) == 1 and not at_service
    await until(lambda: len(broker.heard) == 2)
    broker.listener.send("0123abcd", b"large", [bytes(20 * MIB)])
    await until(lambda: len(at_service) >= 3)
    assert at_service == [0] * len(at_service)
    await until(lambda: service.heard)
    service.dialer.close()
    broker.listener.close()
    server.close()


# --- addresses --------------------------------------------------------------------------------------------------


@on_the_loop
async def test_an_address_that_cannot_be_listened_at_is_said_and_leaves_nothing(keys: Keys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = [f"tcp://127.0.0.1:{taken.getsockname()[1]}", "tcp://192.0.2.1:1", "nonsense", "tcp://nowhere:1"]
        before = len(os.listdir("/proc/self/fd"))
        for address in addresses:
            listener = Listener(address, None, lambda *_: None, lambda: None)
            with pytest.raises(CannotListen, match=f"cannot listen at {address}: "):
                listener.start()
        assert len(os.listdir("/proc/self/fd")) == before


@on_the_loop
async def test_a_name_that_cannot_be_resolved_is_said_once(keys: Keys) -> None:
    with capture_logs() as logs:
        service = Service("tcp://nowhere.invalid:8003")
        await until(lambda: service.dialer._attempts >= 3)
    assert [line["cause"].partition(": ")[0] for line in logs] == ["cannot resolve nowhere.invalid"]
    service.dialer.close()


@on_the_loop
async def test_a_port_where_nobody_speaks_zeromq_is_said(keys: Keys) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 this is a mail server\r\n" * 10)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    with capture_logs() as logs:
        service = Service(f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await until(lambda: logs)
    assert len(logs) == 1 and not service.events
    service.dialer.close()
    server.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
@on_the_loop
async def test_ipv6_addresses_stand_in_brackets(keys: Keys) -> None:
    broker = Broker(keys.broker(), address="tcp://[::1]:0")
    assert broker.listener.address.startswith("tcp://[::1]:")
    service = await Service(broker.listener.address, keys.service()).connected()
    service.dialer.send(b"one")
    await until(lambda: broker.heard)
    assert broker.listener.peer("0123abcd").startswith("::1")
    service.dialer.close()
    broker.listener.close()
