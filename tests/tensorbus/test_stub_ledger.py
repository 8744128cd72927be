"""What stubs hold and have asked, by the messages that pass: no socket, no process."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.codec import decode_from_stub, encode, kind_of
from protocol.errors import ProtocolError
from protocol.messages import (
    ANSWERED,
    CALL,
    CONTROL,
    EXECUTE,
    FAILED,
    GOODBYE,
    READY,
    RESULTS,
    TOLD,
    UPDATE_METRIC,
    Answered,
    Batch,
    Call,
    Control,
    DropMetrics,
    Execute,
    Executed,
    Failed,
    Goodbye,
    Handle,
    NewFamily,
    NewMetric,
    Ready,
    Request,
    Response,
    Results,
    TensorRef,
    Told,
    UpdateMetric,
)
from protocol.services import HeldMetric, HeldStub
from tensorbus.stub_ledger import Question, StubLedger
from tests.random_events import examples

KEY = "k1"
TENSOR = TensorRef("IN", "FP32", (2,), Handle("tensorbus-1-" + 32 * "0", 128, 8))


@pytest.fixture
def ledger() -> StubLedger:
    return made()


def made() -> StubLedger:
    ledger = StubLedger()
    ledger.add(HeldStub(KEY, "m", 1, "m_0", "stamp", "", b"", [], []))
    return ledger


def tell(ledger: StubLedger, message, address: str = KEY) -> bool:
    data = encode(message)
    return ledger.told(address, kind_of(data), data)


def say(ledger: StubLedger, message, address: str = KEY) -> None:
    data = encode(message)
    ledger.said(address, kind_of(data), memoryview(data))


def execute(*batches: tuple[int, list[int]]) -> Execute:
    made = [
        Batch(batch, [Request(one, "m", 1, [TENSOR], parameters={"a": 1}) for one in ids]) for batch, ids in batches
    ]
    return Execute(EXECUTE, made, [4], [(1, 2)], [3])


def results(*executed: tuple[int, list[int]], sent: tuple[Response, ...] = (), again: tuple[int, ...] = ()) -> Results:
    done = [Executed(batch, 1, 2, 3, False, [answer(one) for one in ids], list(again)) for batch, ids in executed]
    return Results(RESULTS, done, [7], list(sent), [("k2", 5)])


def answer(request: int, final: bool = True) -> Response:
    return Response(request, [TENSOR], 9, None, {"p": "x"}, final)


def held(ledger: StubLedger) -> tuple[list[tuple[int, list[int]]], list[int]]:
    (one,) = ledger.held()
    return one.batches, one.open


def test_a_batch_is_held_from_execute_to_executed(ledger: StubLedger) -> None:
    tell(ledger, execute((1, [10, 11]), (2, [-5])))
    assert held(ledger) == ([(1, [10, 11]), (2, [-5])], [])
    say(ledger, results((1, [10, 11])))
    assert held(ledger) == ([(2, [-5])], [])


def test_what_execute_left_unanswered_is_open_until_its_final_response(ledger: StubLedger) -> None:
    tell(ledger, execute((1, [10, 11, 12])))
    say(ledger, results(sent=(answer(10, final=False), answer(11))))
    assert held(ledger) == ([(1, [10, 12])], [])
    say(ledger, results((1, [])))
    assert held(ledger) == ([], [10, 12])
    say(ledger, results(sent=(answer(10),)))
    assert held(ledger) == ([], [12])


def test_outputs_are_lent_until_the_stub_is_told_that_they_were_read(ledger: StubLedger) -> None:
    tell(ledger, execute((1, [10]), (2, [11])))
    say(ledger, results((1, [10]), sent=(answer(11, final=False)._replace(lease=12),)))  # 9 and 12
    say(ledger, results(sent=(Response(11, []),)))  # has no outputs on lease
    assert ledger.held()[0].lent == [9, 12]
    tell(ledger, Execute(EXECUTE, [], [9], [], []))
    assert ledger.held()[0].lent == [12]
    tell(ledger, Execute(EXECUTE, [], [12, 77], [], []))
    assert ledger.held()[0].lent == []


def test_outputs_of_other_models_are_read_until_the_stub_says_so(ledger: StubLedger) -> None:
    say(ledger, Call(CALL, 1, Request(0, "other", -1, [TENSOR]), 3, True, True))
    tell(ledger, Answered(ANSWERED, 1, answer(0, final=False)._replace(lease=4), "k2"))
    tell(ledger, Answered(ANSWERED, 1, answer(0)._replace(lease=5), "k2"))
    tell(ledger, Answered(ANSWERED, 9, answer(0)._replace(lease=6), "k2"))  # which it gets not
    assert ledger.held()[0].reading == [("k2", 4), ("k2", 5)]
    say(ledger, results())  # says that it has read ("k2", 5)
    assert ledger.held()[0].reading == [("k2", 4)]


def test_a_rescheduled_request_is_held_no_more(ledger: StubLedger) -> None:
    tell(ledger, execute((1, [10, 11])))
    say(ledger, results((1, [11]), again=(10,)))
    assert held(ledger) == ([], [])


def test_a_stub_is_held_with_what_it_was_started_as_until_it_says_goodbye(ledger: StubLedger) -> None:
    ledger.loaded(KEY, '{"name": "m"}')
    ready = Ready(READY, b"nonce", "segment", True)
    say(ledger, ready)
    assert ledger.held() == [HeldStub(KEY, "m", 1, "m_0", "stamp", '{"name": "m"}', encode(ready), [], [])]
    say(ledger, Goodbye(GOODBYE, ""))
    assert ledger.held() == []


def test_one_that_could_not_load_is_not_held(ledger: StubLedger) -> None:
    say(ledger, Failed(FAILED, 1, "no"))
    assert ledger.held() == []


def test_questions_are_open_until_they_are_answered(ledger: StubLedger) -> None:
    say(ledger, Call(CALL, 1, Request(0, "other", -1, [TENSOR]), 3, True, True))
    say(ledger, Control(CONTROL, 2, "load", "m"))
    say(ledger, UpdateMetric(UPDATE_METRIC, 0, 1, "set", 2.0))  # wants no answer
    say(ledger, UpdateMetric(UPDATE_METRIC, 3, 1, "value", 0.0), f"{KEY}/77-ab")
    assert tell(ledger, Answered(ANSWERED, 1, answer(0, final=False), "k2"))
    assert tell(ledger, Told(TOLD, 2, None))
    assert sorted(ledger.take_questions()) == [Question(KEY, 1, True), Question(f"{KEY}/77-ab", 3, False)]
    assert list(ledger.take_questions()) == []


def test_an_answer_to_what_has_been_answered_goes_no_further(ledger: StubLedger) -> None:
    """A stub that got it would take it for a broken protocol."""
    say(ledger, Call(CALL, 1, Request(0, "other", -1, []), 3, True, True))
    list(ledger.take_questions())
    assert not tell(ledger, Answered(ANSWERED, 1, answer(0), "k2"))
    assert not tell(ledger, Told(TOLD, 8, None))


def test_with_a_stub_its_questions_go(ledger: StubLedger) -> None:
    for address in (KEY, f"{KEY}/77-ab"):
        say(ledger, Control(CONTROL, 2, "load", "m"), address)
    ledger.remove(KEY)
    assert (ledger.held(), list(ledger.take_questions())) == ([], [])


@pytest.mark.parametrize("data", [b"", b"\x92\xa1S", b"\xc0", b"\x94\xa1S\x01\x90\x90", encode(Goodbye(GOODBYE, ""))])
def test_what_is_malformed_is_a_protocol_error(ledger: StubLedger, data: bytes) -> None:
    with pytest.raises(ProtocolError):
        ledger.said(KEY, RESULTS, data)
    with pytest.raises(ProtocolError):
        ledger.told(KEY, EXECUTE, data)


def test_messages_of_stubs_that_are_not_known_change_nothing(ledger: StubLedger) -> None:
    tell(ledger, execute((1, [10])), "k9")
    say(ledger, results((1, [10])), "k9")
    say(ledger, results((1, [10])))
    assert held(ledger) == ([], [])


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_whatever_is_held_is_what_was_given_and_not_answered(data: st.DataObject) -> None:
    """Against plain books of all requests."""
    ledger, batches, unanswered, number = made(), {}, {}, 0
    for _ in range(data.draw(st.integers(1, 30))):
        step = data.draw(st.sampled_from(["execute", "send", "executed"]))
        if step == "execute":
            ids = [number := number + 1 for _ in range(data.draw(st.integers(0, 3)))]
            number += 1
            tell(ledger, execute((number, ids)))
            batches[number] = ids
            unanswered.update(dict.fromkeys(ids))
        elif step == "send" and unanswered:
            one, final = data.draw(st.sampled_from(sorted(unanswered))), data.draw(st.booleans())
            say(ledger, results(sent=(answer(one, final),)))
            if final:
                del unanswered[one]
        elif step == "executed" and batches:
            batch = min(batches)
            left = [one for one in batches.pop(batch) if one in unanswered]
            finals = data.draw(st.sets(st.sampled_from(left))) if left else set()
            again = data.draw(st.sets(st.sampled_from(left))) - finals if left else set()
            say(ledger, results((batch, sorted(finals)), again=tuple(again)))
            for one in finals | again:
                del unanswered[one]
        ledger.check()
        inside = {one for ids in batches.values() for one in ids}
        expected = [(batch, [one for one in ids if one in unanswered]) for batch, ids in batches.items()]
        assert held(ledger)[0] == expected
        assert sorted(held(ledger)[1]) == sorted(set(unanswered) - inside)


def test_what_metrics_its_model_has_is_known_with_what_was_added_to_them(ledger) -> None:
    say(ledger, NewFamily("N", 1, 1, "seen", "What was seen", "counter"))
    say(ledger, NewMetric("M", 2, 1, 1, {"b": "2", "a": "1"}, None))
    say(ledger, NewMetric("M", 3, 2, 1, {}, None))
    say(ledger, NewFamily("N", 4, 2, "sizes", "", "histogram"), KEY + "/1")
    say(ledger, NewMetric("M", 5, 3, 2, {}, [1.0]), KEY + "/1")
    say(ledger, NewFamily("N", 6, 3, "no name", "", "counter"))  # as the broker refuses it
    for metric, operation, value in (
        (1, "increment", 2.0),
        (1, "increment", 3.0),
        (3, "observe", 0.5),
        (2, "set", 1.0),
    ):
        say(ledger, UpdateMetric(UPDATE_METRIC, 0, metric, operation, value))
    (stub,) = ledger.held()
    assert [decode_from_stub(one) for one in stub.made] == [
        NewFamily("N", 0, 1, "seen", "What was seen", "counter"),
        NewFamily("N", 0, 2, "sizes", "", "histogram"),
        NewMetric("M", 0, 1, 1, {"b": "2", "a": "1"}, None),
        NewMetric("M", 0, 2, 1, {}, None),
        NewMetric("M", 0, 3, 2, {}, [1.0]),
    ]
    assert ledger.metrics() == [
        HeldMetric("seen", [("a", "1"), ("b", "2")], 5.0, False, [0], 0.0),
        HeldMetric("seen", [], 0.0, False, [0], 0.0),
        HeldMetric("sizes", [], 0.0, False, [1, 0], 0.5),
    ]
    say(ledger, DropMetrics("V", [1], [3]))
    assert len(ledger.held()[0].made) == 1 and [one.family for one in ledger.metrics()] == ["sizes"]
    ledger.remove(KEY)
    assert ledger.metrics() == []
