"""The bus to a broker in another process: messages as they are on the wire, no socket, shared memory is real."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import remote_bus
from gateway.calls import InferCall, InputTensor, Reply
from protocol.errors import Cancelled as RequestCancelled
from protocol.errors import InvalidArgument, NotFound, ProtocolError, ServingError, Unavailable
from protocol.messages import Handle, Response
from protocol.services import (
    ANSWERS,
    CATALOGUE,
    FATE,
    FETCH,
    Answers,
    Ask,
    Catalogue,
    Fate,
    Fetch,
    Fetched,
    NewRequests,
    Read,
    Row,
    Unanswered,
    Welcome,
    Withdrawn,
)
from tests.gateway.fake_bus import REMOTE, REMOTE_FRAMES, FakeBus, add_models, memory_in_use

ONES, TWOS = struct.pack("<16f", *[1.0] * 16), struct.pack("<16f", *[2.0] * 16)

Test = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=[REMOTE, REMOTE_FRAMES])
def bus(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBus]:
    """A gateway and a broker; each test is for both ways that tensors go."""
    monkeypatch.setattr(remote_bus, "LOST_S", 0.0)
    bus = FakeBus(str(tmp_path), request.param)
    add_models(bus)
    yield bus
    assert bus.loopback is not None
    bus.loopback.remote.check()
    assert memory_in_use(bus.gateway_store) == memory_in_use(bus.stub_store) == 0
    bus.close()


class Calls:
    """Requests of clients and what they are answered."""

    def __init__(self, bus: FakeBus) -> None:
        self.bus = bus
        assert bus.loopback is not None
        self.loopback = bus.loopback
        self.broker, self.remote = bus.loopback.broker, bus.loopback.remote
        self.replies: list[Reply] = []

    def infer(self, request_id: str = "", model: str = "add_sub") -> int:
        inputs = [InputTensor("INPUT0", "FP32", [16], ONES), InputTensor("INPUT1", "FP32", [16], TWOS)]
        return self.bus.dataplane.infer(InferCall(model, -1, inputs, request_id), self._on_reply)

    def _on_reply(self, reply: Reply) -> None:
        self.replies.append(reply)
        self.outputs = [bytes(output.data) for output in reply.outputs]
        reply.release()

    async def answered(self, number: int) -> list[Reply]:
        await until(lambda: len(self.replies) >= number)
        return self.replies

    def sent(self, kind: type) -> list[Any]:
        return self.broker.heard(kind)

    def tell(self, message: Any, *frames: bytes) -> None:
        self.remote.heard(message, [memoryview(frame) for frame in frames])


@pytest.fixture
def calls(bus: FakeBus) -> Calls:
    return Calls(bus)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def run(test: Test) -> None:
    async def main() -> None:
        await test()
        for _ in range(4):  # what was released is told at the end of the turn
            await asyncio.sleep(0)

    asyncio.run(main())


# --- requests ---------------------------------------------------------------------------------------------------


def test_what_one_turn_brings_leaves_as_one_message(calls: Calls) -> None:
    async def test() -> None:
        for number in range(5):
            calls.infer(str(number))
        assert not calls.sent(NewRequests), "never synchronously"
        replies = await calls.answered(5)
        assert [reply.request_id for reply in replies] == ["0", "1", "2", "3", "4"]
        assert struct.unpack("<16f", calls.outputs[0]) == (3.0,) * 16
        assert [len(message.requests) for message in calls.sent(NewRequests)] == [5]

    run(test)
    assert sum(len(message.leases) for message in calls.sent(Read)) in (0, 5)


def test_tensors_go_by_handle_where_memory_is_shared_and_else_by_frame(calls: Calls) -> None:
    async def test() -> None:
        calls.infer()
        await calls.answered(1)

    run(test)
    [[request, nframes]] = calls.sent(NewRequests)[0].requests
    places = [ref.place for ref in request.inputs]
    record = calls.remote.record
    counted = (record.requests_by_shm, record.bytes_by_shm, record.requests_by_frames, record.bytes_by_frames)
    if calls.broker.shares:
        assert nframes == 0 and all(isinstance(place, Handle) for place in places)
        assert counted == (1, 4 * 64, 0, 0)
    else:
        assert nframes == 2 and places == [0, 1]
        assert counted == (0, 0, 1, 4 * 64)
    assert record.pending == 0


def test_a_cancelled_request_is_answered_and_told_of_once(calls: Calls, bus: FakeBus) -> None:
    bus.hold = True

    async def test() -> None:
        id = calls.infer()
        await bus.wait_for(1)
        bus.dataplane.cancel(id)
        calls.remote.cancel(id)
        calls.remote.cancel(id + 1)
        await bus.wait_for_cancel(0)
        bus.held[0].answer(error=RequestCancelled(""))
        await until(lambda: calls.remote.is_idle)

    run(test)
    assert [message.requests for message in calls.sent(Withdrawn)] == [[1]] and not calls.replies


def test_inputs_that_the_model_keeps_are_freed_when_it_lets_go_of_them(calls: Calls, bus: FakeBus) -> None:
    bus.hold = True

    async def test() -> None:
        calls.infer()
        [entry] = await bus.wait_for(1)
        entry.sink.on_response(Response(entry.request.id, [], retained=True), "stub", ())
        await calls.answered(1)
        assert memory_in_use(bus.gateway_store) > 0
        entry.sink.on_inputs_released()
        assert memory_in_use(bus.gateway_store) == 0

    run(test)


def test_a_front_that_fails_at_one_answer_gets_the_next(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(reply: Reply) -> None:
        raise RuntimeError("of this one")

    async def test() -> None:
        inputs = [InputTensor("INPUT0", "FP32", [16], ONES), InputTensor("INPUT1", "FP32", [16], TWOS)]
        calls.bus.dataplane.infer(InferCall("add_sub", -1, inputs), fail)
        calls.infer("second")
        assert [reply.request_id for reply in await calls.answered(1)] == ["second"]
        for lease in list(calls.bus.leases):  # of the reply that nobody has
            calls.bus.release("stub", lease)

    run(test)
    assert "an answer was lost" in capsys.readouterr().out


def test_what_comes_for_a_request_that_was_given_up_is_let_go_of(calls: Calls) -> None:
    async def test() -> None:
        calls.tell(Answers(ANSWERS, [(Response(77, [], lease=5, final=False), "some stub", 0)], [78]))
        calls.bus.leases[5] = calls.bus.stub_store.allocate(1)
        await until(lambda: calls.sent(Read))

    run(test)
    assert calls.sent(Read)[0].leases == [("some stub", 5)]


# --- the broker is lost -----------------------------------------------------------------------------------------


def test_without_a_broker_requests_are_refused_by_the_name_of_their_model(tmp_path: Path) -> None:
    bus = FakeBus(str(tmp_path), REMOTE)
    add_models(bus)
    calls = Calls(bus)
    calls.loopback.cut()
    calls.remote.refuse()
    for ask in (calls.infer, lambda: bus.dataplane.refuse_large("add_sub", -1, 10**6)):
        with pytest.raises(Unavailable) as caught:
            ask()
        assert str(caught.value) == "model 'add_sub' cannot be asked now: the broker cannot be reached"
    assert memory_in_use(bus.gateway_store) == 0
    bus.close()


def test_before_the_broker_has_told_of_its_models_none_is_unknown(calls: Calls) -> None:
    calls.remote.refuse()
    calls.broker.gateways.clear()
    calls.remote.joined()
    for ask in (calls.remote.signature, lambda *of: calls.remote.versions(of[0])):
        with pytest.raises(Unavailable, match=r"^the broker cannot be reached$"):
            ask("nope", -1)
    calls.loopback.join()
    with pytest.raises(NotFound):
        calls.remote.signature("nope", -1)


def test_requests_that_come_while_the_connection_is_away_are_sent_when_it_is_back(calls: Calls) -> None:
    async def test() -> None:
        calls.loopback.cut()
        calls.infer("kept")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not calls.sent(NewRequests)
        calls.loopback.join()
        assert [reply.request_id for reply in await calls.answered(1)] == ["kept"]

    run(test)
    assert [(message.requests, message.hosts) for message in calls.sent(Unanswered)] == [([], []), ([], ["0badcafe"])]


def test_what_no_broker_has_had_is_sent_whatever_becomes_of_the_others(calls: Calls, bus: FakeBus) -> None:
    bus.hold = True

    async def test() -> None:
        calls.infer("had")
        await bus.wait_for(1)
        calls.loopback.cut()
        calls.infer("unsent")
        calls.broker.fate = lambda message: Fate(FATE, [], message.requests)
        calls.loopback.join()
        entries = await bus.wait_for(2)
        assert entries[1].request.request_id == "unsent"
        entries[1].run()
        assert [(reply.request_id, reply.error is None) for reply in await calls.answered(2)] == [
            ("had", False),
            ("unsent", True),
        ]

    run(test)


def test_a_client_that_goes_while_its_request_waits_for_a_broker_leaves_nothing(calls: Calls, bus: FakeBus) -> None:
    async def test() -> None:
        calls.loopback.cut()
        id = calls.infer()
        bus.dataplane.cancel(id)
        await until(lambda: calls.remote.is_idle)
        assert memory_in_use(bus.gateway_store) == 0
        calls.loopback.join()

    run(test)
    assert not calls.sent(NewRequests) and not calls.sent(Withdrawn) and not calls.replies


def test_fate_says_what_is_sent_again_what_fails_and_what_is_answered(calls: Calls, bus: FakeBus) -> None:
    bus.hold = True

    async def test() -> None:
        again, lost, _ = (calls.infer(name) for name in ("again", "lost", "other"))
        await bus.wait_for(3)
        calls.loopback.cut()
        meanwhile = calls.infer("meanwhile")
        calls.broker.fate = lambda message: Fate(FATE, [meanwhile, again, 99], [lost, 98])
        calls.loopback.join()
        [reply] = await calls.answered(1)
        assert reply.request_id == "lost" and isinstance(reply.error, Unavailable) and reply.final
        assert "model 'add_sub' was lost" in str(reply.error)
        entries = await bus.wait_for(5)
        assert [entry.request.request_id for entry in entries[3:]] == ["again", "meanwhile"]
        for entry in entries[2:]:
            entry.run()
        names = [reply.request_id for reply in await calls.answered(4)]
        assert names == ["lost", "other", "again", "meanwhile"]

    run(test)


def test_a_request_to_an_ensemble_is_lost_with_the_broker_and_never_sent_again(calls: Calls, bus: FakeBus) -> None:
    """No stub has it, so it would be: what of it has been executed would be executed twice, and a stream begin anew."""
    bus.add(bus.signatures["add_sub"]._replace(model="both", platform="ensemble"), bus.models["add_sub"])
    bus.hold = True

    async def test() -> None:
        calls.infer("lost", "both")
        calls.infer("again")
        await bus.wait_for(2)
        calls.loopback.cut()
        calls.infer("unsent", "both")
        calls.broker.fate = lambda message: Fate(FATE, message.requests, [])
        calls.loopback.join()
        [reply] = await calls.answered(1)
        assert reply.request_id == "lost" and isinstance(reply.error, Unavailable) and reply.final
        entries = await bus.wait_for(4)
        assert [entry.request.request_id for entry in entries[2:]] == ["again", "unsent"]
        for entry in entries[2:]:
            entry.run()
        await calls.answered(3)

    run(test)


def test_nothing_overtakes_what_is_undecided(calls: Calls, bus: FakeBus) -> None:
    fates = []

    async def test() -> None:
        bus.hold = True
        calls.infer("old")
        await bus.wait_for(1)
        bus.submitted.clear()
        calls.loopback.cut()
        bus.hold = False
        calls.broker.fate = lambda message: fates.append(message) or Fate(FATE, [], [])
        calls.remote.heard = lambda *of: None  # type: ignore[method-assign]
        calls.loopback.join()
        del calls.remote.heard  # type: ignore[method-assign]
        calls.broker.tell_models(calls.loopback.SERVICE)
        calls.infer("new")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not bus.submitted
        calls.tell(Fate(FATE, fates[0].requests, []))
        assert [reply.request_id for reply in await calls.answered(2)] == ["old", "new"]

    run(test)


def test_who_went_while_the_broker_was_away_has_nothing_executed(calls: Calls, bus: FakeBus) -> None:
    bus.hold = True

    async def test() -> None:
        unsent, held = calls.infer("unsent"), calls.infer("held")
        await bus.wait_for(2)
        calls.loopback.cut()
        for id in (unsent, held):
            bus.dataplane.cancel(id)
        calls.broker.fate = lambda message: Fate(FATE, [unsent], [])
        calls.loopback.join()
        await bus.wait_for_cancel(1)
        assert not bus.submitted[0].cancelled, "that is over already"
        bus.submitted[1].run()
        await until(lambda: calls.remote.is_idle)

    run(test)
    assert len(bus.submitted) == 2 and not calls.replies
    bus.submitted.clear()


def test_what_is_unanswered_for_too_long_fails_once(calls: Calls, bus: FakeBus) -> None:
    bus.hold = True

    async def test() -> None:
        calls.infer("first")
        await bus.wait_for(1)
        calls.loopback.cut()
        calls.infer("second")
        calls.remote.give_up()
        assert [reply.request_id for reply in await calls.answered(1)] == ["first"]
        calls.remote.refuse()
        assert [str(reply.error).partition(":")[0] for reply in await calls.answered(2)] == [
            "a request for model 'add_sub' was lost, and may have been executed",
            "model 'add_sub' cannot be asked now",
        ]
        assert all(isinstance(reply.error, Unavailable) for reply in calls.replies)
        calls.loopback.join()
        bus.held[0].run()  # late
        calls.remote.give_up()
        assert not any(message.requests for message in calls.sent(Unanswered))

    run(test)
    assert len(calls.replies) == 2


def test_nobody_writes_to_the_inputs_of_what_a_stub_may_yet_execute(calls: Calls, bus: FakeBus, monkeypatch) -> None:
    monkeypatch.setattr(remote_bus, "LOST_S", 0.1)
    bus.hold = True

    async def test() -> None:
        calls.infer()
        await bus.wait_for(1)
        calls.loopback.cut()
        calls.remote.give_up()
        await calls.answered(1)
        assert bool(memory_in_use(bus.gateway_store)) == calls.broker.shares
        await until(lambda: not memory_in_use(bus.gateway_store))

    run(test)


def test_what_came_after_the_loss_outlives_what_was_given_up(calls: Calls, bus: FakeBus) -> None:
    async def test() -> None:
        bus.hold = True
        calls.infer("old")
        await bus.wait_for(1)
        bus.hold = False
        calls.loopback.cut()
        calls.remote.joined()
        calls.loopback.is_cut = False  # Unanswered was lost, so no Fate comes
        calls.broker.tell_models(calls.loopback.SERVICE)
        calls.infer("new")
        calls.remote.give_up()
        replies = await calls.answered(2)
        assert [(reply.request_id, reply.error is None) for reply in replies] == [("old", False), ("new", True)]

    run(test)


# --- questions --------------------------------------------------------------------------------------------------


def test_questions_are_answered(calls: Calls, bus: FakeBus) -> None:
    told: list[Any] = []
    remote = calls.remote

    async def test() -> None:
        remote.ready(told.append)
        remote.model_ready("add_sub", -1, told.append)
        bus.is_ready = False
        remote.model_ready("add_sub", 1, told.append)
        remote.statistics("add_sub", -1, told.append)
        remote.statistics("nope", -1, told.append)
        remote.index(True, told.append)
        remote.load("new", "{}", {"file:1/model.py": b"x"}, told.append)
        bus.control_error = InvalidArgument("no such model")
        remote.unload("new", True, told.append)

    run(test)
    assert told[:3] == [True, True, False]
    assert told[3][0].name == "add_sub" and told[3][0].inference_stats.queue.count == 3
    assert isinstance(told[4], InvalidArgument) and str(told[4]) == "requested model 'nope' is not available"
    assert ("add_sub", 1, "READY", "") in told[5] and told[6] is None
    assert isinstance(told[7], InvalidArgument) and str(told[7]) == "no such model"
    assert bus.controlled == [("load", "new", "{}", {"file:1/model.py": b"x"}), ("unload", "new", True)]
    assert remote.is_idle


def test_the_readiness_of_what_is_not_there_is_known_without_asking(calls: Calls) -> None:
    async def test() -> None:
        with pytest.raises(NotFound):
            calls.remote.model_ready("nope", -1, lambda ready: None)

    run(test)
    assert not calls.sent(Ask)


def test_questions_without_a_broker_and_those_it_took_along_are_answered_with_that(calls: Calls) -> None:
    told: list[Any] = []

    async def test() -> None:
        calls.broker.is_deaf = True
        calls.remote.statistics("", -1, told.append)
        calls.remote.load("m", None, {}, told.append)
        calls.remote.model_ready("add_sub", -1, told.append)
        calls.loopback.cut()
        calls.remote.index(False, told.append)
        calls.remote.ready(told.append)
        calls.remote.model_ready("add_sub", -1, told.append)

    run(test)
    errors = [one for one in told if isinstance(one, ServingError)]
    assert [str(error) for error in errors] == ["the broker cannot be reached"] * 3
    assert [one for one in told if not isinstance(one, ServingError)] == [False] * 3


def test_a_question_that_gets_no_answer_is_given_up(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    async def test() -> None:
        calls.broker.is_deaf = True
        calls.remote._ask(Ask("A", 0, "statistics"), told.append, timeout_s=0.01)
        await until(lambda: told)

    run(test)
    assert isinstance(told[0], Unavailable) and str(told[0]) == "the broker does not answer"
    assert calls.remote.is_idle


# --- memory -----------------------------------------------------------------------------------------------------


def test_what_the_broker_fetches_comes_as_frames(calls: Calls, bus: FakeBus) -> None:
    block = bus.gateway_store.allocate(5)
    block.view[:] = b"bytes"
    handle = Handle(block.segment, block.offset, block.nbytes)

    async def test() -> None:
        calls.tell(Fetch(FETCH, 3, [handle, handle._replace(nbytes=2)]))
        calls.tell(Fetch(FETCH, 4, [handle, Handle("tensorbus-1-" + "0" * 32, 128, 1)]))
        calls.tell(Fetch(FETCH, 5, [handle._replace(nbytes=1 << 40)]))

    run(test)
    assert [(message.number, bool(message.error)) for message in calls.sent(Fetched)] == [
        (3, False),
        (4, True),
        (5, True),
    ]
    assert calls.broker.fetched[3] == ("", [b"bytes", b"by"]) and calls.broker.fetched[4][1] == []
    bus.gateway_store.free(block)


# --- a broker that breaks the protocol --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message, frames",
    [
        (Answers(ANSWERS, [(Response(1, []), "", 1)], []), []),
        (Answers(ANSWERS, [(Response(1, []), "", 0)], []), [b"x"]),
        (Answers(ANSWERS, [(Response(1, []), "", -1), (Response(1, []), "", 2)], []), [b"x"]),
        (Catalogue(CATALOGUE, {"m": [Row(1, "READY")]}, []), []),
        (Welcome("W", 1, "one", 1, 2, {}), []),
    ],
)
def test_what_makes_no_sense_breaks_the_protocol_and_changes_nothing(
    calls: Calls, message: Any, frames: list[bytes]
) -> None:
    async def test() -> None:
        id = calls.infer()
        assert id == 1
        with pytest.raises(ProtocolError):
            calls.tell(message, *frames)
        [reply] = await calls.answered(1)
        assert reply.error is None

    run(test)


def test_a_broker_that_is_joined_anew_is_told_which_outputs_are_still_read(calls: Calls, bus: FakeBus) -> None:
    bus.hold = True
    replies: list[Reply] = []

    async def test() -> None:
        inputs = [InputTensor("INPUT0", "FP32", [16], ONES), InputTensor("INPUT1", "FP32", [16], TWOS)]
        for _ in range(2):
            bus.dataplane.infer(InferCall("add_sub", -1, inputs), replies.append)
        for entry in await bus.wait_for(2):
            entry.run()
        await until(lambda: len(replies) == 2)
        calls.loopback.cut()
        replies[0].release()
        calls.loopback.join()
        await until(lambda: len(calls.sent(Unanswered)) == 2)
        replies[1].release()

    run(test)
    expected = [("stub", 1), ("stub", 2)] if calls.broker.shares else []
    assert calls.sent(Unanswered)[1].reading == expected
    assert sorted(lease for message in calls.sent(Read) for lease in message.leases) == expected
    assert not calls.remote._reading


def test_a_host_that_has_still_to_join_may_have_what_is_undecided(calls: Calls, bus: FakeBus) -> None:
    bus.hold = True
    said: list[Any] = []

    async def test() -> None:
        calls.infer("held")
        (entry,) = await bus.wait_for(1)
        calls.loopback.cut()
        to_broker, calls.remote._send = calls.remote._send, lambda message, frames: said.append(message)
        for _ in range(2):
            calls.remote.joined()
            calls.tell(Catalogue(CATALOGUE, {}, []))  # of a broker that no host has joined yet
            calls.remote.lost()
        calls.remote._send = to_broker
        calls.loopback.join()
        entry.run()
        await calls.answered(1)

    run(test)
    assert [message.hosts for message in said if isinstance(message, Unanswered)] == [["0badcafe"]] * 2
