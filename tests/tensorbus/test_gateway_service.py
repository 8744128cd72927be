"""A gateway as it is run, over real sockets: its fronts, its way to the broker, and a bare broker at the other end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from protocol.messages import Handle
from protocol.services import (
    CATALOGUE,
    FATE,
    WELCOME,
    Answers,
    Beat,
    Catalogue,
    Fate,
    Join,
    Leave,
    NewRequests,
    Proved,
    Row,
    Unanswered,
    Welcome,
    first_request,
)
from shm.store import Store
from tensorbus import gateway_service
from tensorbus.gateway_service import GatewayService
from tensorbus.listener import Listener
from tensorbus.service_settings import GatewaySettings
from tests.gateway.bare_broker import MS, BareBroker, make_probe
from tests.gateway.fake_bus import FakeBus, add_models
from tests.gateway.http_stand import Client, Reply, post

ADD_SUB = post(
    "/v2/models/add_sub/infer",
    json.dumps(
        {
            "inputs": [
                {"name": name, "datatype": "FP32", "shape": [16], "data": [1] * 16} for name in ("INPUT0", "INPUT1")
            ]
        }
    ).encode(),
)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


class Broker:
    """A BareBroker behind a real socket, which may go and come again."""

    def __init__(self, bus: FakeBus, shares: bool = True) -> None:
        self.bare = BareBroker(bus, lambda *of: self.listener.send(*of), shares)
        self.address = "tcp://127.0.0.1:0"
        self._beats: asyncio.Task[None] | None = None

    def open(self) -> None:
        self.listener = Listener(self.address, None, self.bare.receive, lambda: None)
        self.listener.start()
        self.address = self.listener.address
        self._beats = asyncio.get_running_loop().create_task(self._beat_for_ever())

    async def _beat_for_ever(self) -> None:
        while True:
            if not self.bare.is_deaf:
                self.bare.beat()
            await asyncio.sleep(self.bare.beat_ms / 2000)

    def close(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            self._beats = None
            self.bare.gateways.clear()
            self.listener.close()


class Stand:
    def __init__(self, bus: FakeBus, broker: Broker, gateway: GatewayService) -> None:
        self.bus, self.broker, self.gateway = bus, broker, gateway
        self.bare = broker.bare

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.ports["http"])
        try:
            yield Client(reader, writer)
        finally:
            writer.close()

    async def ask(self, data: bytes) -> Reply:
        async with self.client() as client:
            return await client.ask(data)

    async def ready(self) -> None:
        while (await self.ask(get("/v2/health/ready"))).status != 200:
            await asyncio.sleep(0.005)

    async def metrics(self) -> dict[str, float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.ports["metrics"])
        writer.write(get("/metrics"))
        text = (await reader.read()).decode().partition("\r\n\r\n")[2]
        writer.close()
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}


Test = Callable[[Stand], Awaitable[None]]
Run = Callable[..., None]


def settings(address: str, **changes: Any) -> GatewaySettings:
    free = GatewaySettings(
        broker=address,
        exit_timeout_secs=5,
        http_address="127.0.0.1",
        http_port=0,
        allow_grpc=False,
        metrics_address="127.0.0.1",
        metrics_port=0,
        small_nbytes=0,
    )
    return replace(free, **changes)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a test beside a gateway and, with ``opens``, a broker that it has joined; then stops it."""
    monkeypatch.setattr(gateway_service, "default_directory", lambda: str(tmp_path))

    async def main(test: Test, opens: bool, shares: bool, changes: dict[str, Any]) -> None:
        bus = FakeBus(str(tmp_path))
        add_models(bus)
        broker = Broker(bus, shares)
        broker.open()
        if not opens:
            broker.close()
        gateway = GatewayService(settings(broker.address, **changes))
        await gateway.start()
        try:
            async with asyncio.timeout(20):
                stand = Stand(bus, broker, gateway)
                if opens:
                    await stand.ready()
                await test(stand)
        finally:
            await gateway.stop()
            broker.close()
            bus.close()
        assert not list(tmp_path.iterdir()), "segments are left"

    def runner(test: Test, opens: bool = True, shares: bool = True, **changes: Any) -> None:
        uvloop.run(main(test, opens, shares, changes))

    return runner


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


# --- with a broker ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [True, False])
def test_a_request_goes_to_the_broker_and_its_answer_to_the_client(run: Run, shares: bool) -> None:
    async def test(stand: Stand) -> None:
        reply = await stand.ask(ADD_SUB)
        assert reply.status == 200
        assert [output["data"] for output in reply.json()["outputs"]] == [[2.0] * 16, [0.0] * 16]
        figures = await stand.metrics()
        assert figures["tensorbus_gateway_broker_up"] == 1
        assert figures["tensorbus_gateway_rejoins_total"] == figures["tensorbus_gateway_pending_requests"] == 0
        way, other = ("shm", "frames") if shares else ("frames", "shm")
        assert figures[f'tensorbus_gateway_requests_total{{path="{way}"}}'] == 1
        assert figures[f'tensorbus_gateway_tensor_bytes_total{{path="{way}"}}'] == 4 * 64
        assert figures[f'tensorbus_gateway_requests_total{{path="{other}"}}'] == 0

    run(test, shares=shares)


def test_what_is_asked_of_the_broker_is_answered(run: Run) -> None:
    async def test(stand: Stand) -> None:
        assert (await stand.ask(get("/v2/models/add_sub/ready"))).status == 200
        assert (await stand.ask(get("/v2/models/nope/ready"))).status == 404
        [stats] = (await stand.ask(get("/v2/models/add_sub/stats"))).json()["model_stats"]
        assert stats["name"] == "add_sub" and stats["inference_stats"]["queue"]["count"] == 3
        reply = await stand.ask(get("/v2/models/nope/stats"))
        assert (reply.status, reply.json()["error"]) == (400, "requested model 'nope' is not available")
        assert {"name": "cold"} in (await stand.ask(post("/v2/repository/index", b""))).json()
        assert (await stand.ask(post("/v2/repository/models/m/load", b""))).status == 200
        assert stand.bus.controlled == [("load", "m", None, {})]
        assert (await stand.ask(get("/v2/models/add_sub/config"))).json() == {"name": "add_sub"}

    run(test)


def test_requests_have_the_ids_and_segments_the_names_of_their_gateway(run: Run) -> None:
    async def test(stand: Stand) -> None:
        await stand.ask(ADD_SUB)
        [join] = stand.bare.heard(Join)
        [submitted] = stand.bare.heard(NewRequests)
        [(request, _)] = submitted.requests
        assert request.id == first_request(join.service) + 1
        assert all(isinstance(ref.place, Handle) for ref in request.inputs)
        assert request.inputs[0].place.segment[-32:-24] == join.service == join.probe.segment[-32:-24]
        assert bytes(stand.bus.stub_reader.view(*join.probe)) == join.nonce and len(join.nonce) == 32

    run(test)


def test_the_probes_of_those_who_share_its_memory_are_proved(run: Run, tmp_path: Path) -> None:
    async def test(stand: Stand) -> None:
        assert stand.bare.heard(Proved)[0].nonces == {}
        other = Store(str(tmp_path))
        _, stand.bare.probe = make_probe(other, b"a nonce")
        stand.broker.close()
        stand.broker.open()
        await until(lambda: len(stand.bare.heard(Proved)) == 2)
        assert stand.bare.heard(Proved)[1].nonces == {"0badcafe": b"a nonce"}
        other.close()

    run(test)


def test_it_beats_while_it_has_nothing_to_say(run: Run) -> None:
    async def test(stand: Stand) -> None:
        await stand.bare.until(lambda: len(stand.bare.heard(Beat)) >= 3)

    run(test)


# --- without one ------------------------------------------------------------------------------------------------


def test_without_a_broker_it_is_live_and_not_ready_and_refuses(run: Run) -> None:
    async def test(stand: Stand) -> None:
        assert (await stand.ask(get("/v2/health/live"))).status == 200
        assert (await stand.ask(get("/v2/health/ready"))).status == 400
        for request in (ADD_SUB, get("/v2/models/add_sub"), post("/v2/repository/index", b"")):
            reply = await stand.ask(request)
            assert (reply.status, reply.json()["error"]) == (503, "the broker cannot be reached")
        assert (await stand.metrics())["tensorbus_gateway_broker_up"] == 0
        stand.broker.open()
        await stand.ready()
        assert (await stand.ask(ADD_SUB)).status == 200
        assert (await stand.metrics())["tensorbus_gateway_rejoins_total"] == 0

    run(test, opens=False)


def test_a_request_that_comes_while_the_broker_restarts_is_answered_by_the_next_one(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.broker.close()
        await until(lambda: not stand.gateway.record.broker_up)
        async with stand.client() as client:
            client.send(ADD_SUB)
            await until(lambda: stand.gateway.record.pending or stand.gateway._bus._open)
            stand.bare.name = "two"
            stand.broker.open()
            assert (await client.reply()).status == 200
        assert [message.requests for message in stand.bare.heard(Unanswered)] == [[], []], "no broker has had it"
        assert (await stand.metrics())["tensorbus_gateway_rejoins_total"] == 1

    run(test)


def test_what_a_broker_has_taken_along_fails_once_and_names_its_model(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.hold = True
        async with stand.client() as client:
            client.send(ADD_SUB)
            await until(lambda: stand.bus.held)
            stand.broker.close()
            stand.bare.fate = lambda message: Fate(FATE, [], message.requests)
            stand.broker.open()
            reply = await client.reply()
            assert reply.status == 503 and "model 'add_sub' was lost" in reply.json()["error"]
            stand.bus.hold = False
            assert (await client.ask(ADD_SUB)).status == 200

    run(test)


def test_a_broker_that_is_gone_for_long_has_its_requests_failed_and_new_ones_refused(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.hold = True
        async with stand.client() as client:
            client.send(ADD_SUB)
            await until(lambda: stand.bus.held)
            stand.broker.close()
            reply = await client.reply()
            assert reply.status == 503 and "was lost, and may have been executed" in reply.json()["error"]
            reply = await client.ask(ADD_SUB)
            assert reply.json()["error"] == "model 'add_sub' cannot be asked now: the broker cannot be reached"
        assert stand.gateway.record.pending == 0

    run(test, broker_timeout_secs=1, broker_wait_secs=1)


def test_new_requests_wait_for_a_broker_far_longer_than_its_silence(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.broker.close()
        await until(lambda: not stand.gateway.record.broker_up)
        lost_at = time.monotonic()
        async with stand.client() as first, stand.client() as second:
            first.send(ADD_SUB)
            await until(lambda: time.monotonic() - lost_at > 3 * stand.bare.silence_ms / 1000)
            assert (await stand.ask(get("/v2/health/ready"))).status == 400
            second.send(ADD_SUB)
            await until(lambda: len(stand.gateway._bus._open) == 2)
            stand.broker.open()
            assert [(await client.reply()).status for client in (first, second)] == [200, 200]

    run(test)


def test_a_new_request_waits_no_longer_than_it_may_whatever_is_kept_for_its_answer(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.hold = True
        async with stand.client() as old, stand.client() as new:
            old.send(ADD_SUB)
            await until(lambda: stand.bus.held)
            stand.broker.close()
            await until(lambda: not stand.gateway.record.broker_up)
            new.send(ADD_SUB)
            reply = await new.reply()
            assert (reply.status, "cannot be asked now" in reply.json()["error"]) == (503, True)
            asked_at = time.monotonic()
            assert (await new.ask(ADD_SUB)).status == 503
            assert time.monotonic() - asked_at < 0.5, "it has given up: others need not wait"
            stand.broker.open()
            await stand.ready()
            stand.bus.held[0].run()
            assert (await old.reply()).status == 200

    run(test, broker_wait_secs=1, broker_timeout_secs=60)


def test_brokers_that_come_and_go_do_not_have_a_request_wait_for_ever(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bare.tells_models = False
        stand.bus.hold = True
        async with stand.client() as client:
            client.send(ADD_SUB)
            await until(lambda: stand.bus.held)
            stand.broker.close()
            await until(lambda: not stand.gateway.record.broker_up)
            lost_at = time.monotonic()
            stand.bare.fate = lambda message: Fate(FATE, [], [])
            answer = asyncio.create_task(client.reply())
            while not answer.done():
                stand.broker.open()
                await until(lambda: stand.gateway.record.broker_up or answer.done())
                stand.broker.close()
                await until(lambda: not stand.gateway.record.broker_up)
            assert (await answer).status == 503
            assert time.monotonic() - lost_at < 5

    run(test, broker_timeout_secs=1)


def test_a_broker_that_says_nothing_is_lost_though_the_connection_stands(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bare.is_deaf = True
        await until(lambda: not stand.gateway.record.broker_up)
        assert (await stand.ask(get("/v2/health/ready"))).status == 400
        stand.bare.is_deaf = False
        await stand.ready()
        assert len(stand.bare.heard(Join)) >= 2

    run(test)


# --- a broker that breaks the protocol --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x00",
        b"\x92\xa1W\x01",
        b"\x91\xa1Z",
        Welcome(WELCOME, 99, "one", 50 * MS, 500 * MS, {}),
        Welcome(WELCOME, 1, "two", 0, 500 * MS, {}),
        Answers("N", [], [1]),
        Catalogue(CATALOGUE, {"m": [Row(1, "READY")]}, []),
    ],
)
def test_what_is_no_message_is_logged_once_and_the_broker_joined_anew(
    run: Run, said: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    breaks = not isinstance(said, Answers)

    async def test(stand: Stand) -> None:
        [service] = stand.bare.gateways
        for number in (2, 3):
            if isinstance(said, bytes):
                stand.broker.listener.send(service, said, [b"frame"])
            else:
                stand.bare.send(service, said, [] if breaks else [b"frame"])
            await stand.bare.until(lambda number=number: len(stand.bare.heard(Join)) >= number)  # type: ignore[misc]
            await stand.ready()
        assert (await stand.ask(ADD_SUB)).status == 200

    run(test)
    assert capsys.readouterr().out.count("the broker broke the protocol") == 1


# --- refused, and the end ---------------------------------------------------------------------------------------


def test_who_is_refused_has_failed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    async def test(stand: Stand) -> None:
        assert not stand.gateway.is_over.is_set()
        stand.bare.refuses = "another cluster"
        stand.broker.open()
        await asyncio.wait_for(stand.gateway.is_over.wait(), 10)

    run(test, opens=False)
    assert "another cluster" in capsys.readouterr().out


def test_another_id_is_chosen_for_one_that_is_in_use(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bare.refuses = "id in use: by somebody"
        stand.broker.open()
        await stand.bare.until(lambda: len({join.service for join in stand.bare.heard(Join)}) >= 3)
        stand.bare.refuses = ""
        await stand.ready()
        assert (await stand.ask(ADD_SUB)).status == 200
        join = stand.bare.heard(Join)[-1]
        [(request, _)] = stand.bare.heard(NewRequests)[0].requests
        assert request.id == first_request(join.service) + 1
        place = request.inputs[0].place
        assert isinstance(place, Handle) and place.segment[-32:-24] == join.service

    run(test, opens=False)


def test_an_id_that_requests_have_is_kept(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.hold = True
        async with stand.client() as client:
            client.send(ADD_SUB)
            await until(lambda: stand.bus.held)
            stand.bare.refuses = "id in use: it is thought to be there still"
            stand.broker.close()
            stand.broker.open()
            await stand.bare.until(lambda: len(stand.bare.heard(Join)) >= 3)
            assert len({join.service for join in stand.bare.heard(Join)}) == 1
            stand.bare.refuses = ""
            stand.bare.fate = lambda message: Fate(FATE, message.requests, [])
            await until(lambda: len(stand.bus.held) == 2)
            stand.bus.held[1].run()
            assert (await client.reply()).status == 200

    run(test)


def test_it_says_that_it_is_not_ready_for_a_while_before_it_refuses_requests(run: Run) -> None:
    async def test(stand: Stand) -> None:
        async with stand.client() as client:
            assert (await client.ask(get("/v2/health/ready"))).status == 200
            stop = asyncio.create_task(stand.gateway.stop())
            while (await client.ask(get("/v2/health/ready"))).status == 200:
                await asyncio.sleep(0.005)
            assert (await stand.ask(ADD_SUB)).status == 200  # a new connection
            assert (await client.ask(ADD_SUB)).status == 200
            assert not stop.done()
            assert await stop
        assert stand.bare.heard(Leave)

    run(test, exit_delay_secs=1)


def test_it_answers_what_is_in_flight_and_takes_its_leave(run: Run) -> None:
    async def test(stand: Stand) -> None:
        stand.bus.hold = True
        async with stand.client() as client:
            client.send(ADD_SUB)
            await until(lambda: stand.bus.held)
            stop = asyncio.create_task(stand.gateway.stop())
            await asyncio.sleep(0)
            stand.bus.held[0].run()
            assert (await client.reply()).json()["outputs"][0]["data"] == [2.0] * 16
            assert await stop
        assert stand.bare.heard(Leave)

    run(test)


def test_it_does_not_wait_for_loads(run: Run) -> None:
    async def test(stand: Stand) -> None:
        loads: list[str] = []
        stand.bus.load = lambda model, *_: loads.append(model)  # type: ignore[method-assign]
        async with stand.client() as client:
            client.send(post("/v2/repository/models/add_sub/load", b"{}"))
            await until(lambda: loads)
            assert await stand.gateway.stop()
            answer = await client.reply()
        assert (answer.status, answer.json()) == (503, {"error": "Server not ready"})

    run(test)
