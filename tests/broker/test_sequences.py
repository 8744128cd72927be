"""Requests of sequences on their way through the core: slots, ends, deaths and reloads."""

from __future__ import annotations

import pytest

from broker.events import ClientGone, LoadModels, Say, StubSaid
from broker.model import VersionSource
from broker.model_config import ModelConfigMessage, from_message
from broker.queue import Pending
from broker.sequence_batch import Choice, Sequence, Slot, choose
from broker.sequence_rules import SequenceRules
from broker.settings import DelayScheduler
from protocol.messages import (
    CALL,
    SEQUENCE_END,
    SEQUENCE_START,
    Answered,
    Call,
    Handle,
    Request,
    Response,
    TensorRef,
)

S, E = SEQUENCE_START, SEQUENCE_END
NOT_STARTED = (
    "inference request for sequence {} to model 'm' must specify the START flag on the first request of the sequence"
)


@pytest.fixture
def serving(make_bench):
    """A function that loads "m" with this ``sequence_batching``, and returns the bench."""

    def serve(batching=None, instances=1, size=2, settings=None, **fields):
        bench = make_bench(**settings or {})
        bench.load(instances=instances, max_batch_size=size, sequence_batching=batching or {"direct": {}}, **fields)
        bench.bring_up()
        return bench

    return serve


def send(bench, id, flags=0, **fields) -> int:
    request = bench.submit(rows=1, correlation_id=id, flags=flags, **fields)
    bench.turn()
    return request


def recorder(bench):
    (one,) = bench.recorder
    return one


def causes(bench, event: str) -> list[str]:
    return [said.fields["cause"] for said in bench.said if isinstance(said, Say) and said.event == event]


def test_the_model_is_told_slots_and_places(serving):
    bench = serving()
    (key,) = bench.alive
    first = send(bench, 1, S)
    others = [send(bench, 2, S), send(bench, 1)]
    bench.answer(key)
    (batch,) = bench.batches(key)
    assert (sorted(one.id for one in batch.requests), batch.slots, batch.places) == (sorted(others), [0, 1], 2)
    bench.answer(key)
    send(bench, 2)
    (batch,) = bench.batches(key)
    assert (batch.slots, batch.places) == ([1], 2)
    bench.answer(key)
    assert bench.response(first).error is None
    assert recorder(bench).batches.keys() == {1, 2}


def test_what_was_not_started_is_refused_and_counted_nowhere(serving):
    bench = serving()
    assert bench.error(send(bench, 7)) == NOT_STARTED.format(7)
    assert bench.error(send(bench, "seven")) == NOT_STARTED.format("seven")
    assert bench.error(send(bench, 0, S)) == (
        "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    )
    assert len(causes(bench, "request refused")) == 3
    assert sum(recorder(bench).failures.values()) == 0
    bench.core.check()


def test_a_start_on_a_living_sequence_is_warned_of(serving):
    bench = serving()
    for flags in (S, S):
        send(bench, 7, flags)
        bench.answer(bench.only())
    (cause,) = causes(bench, "a sequence starts anew")
    assert cause.startswith("sequence 7 for model 'm' has a conflict.")


def test_an_end_frees_the_slot_for_the_oldest_that_waits(serving):
    bench = serving(size=1)
    key = bench.only()
    send(bench, 1, S)
    waiting = [send(bench, 2, S), send(bench, 3, S | E), send(bench, 2, E)]
    bench.answer(key)
    assert bench.batches(key) == [] and recorder(bench).pending == 3
    last = send(bench, 1, E)
    order = [bench.held(key)[0]]
    for _ in range(3):
        bench.answer(key)
        order.append(bench.held(key)[0])
    assert order == [last, waiting[0], waiting[2], waiting[1]]
    assert recorder(bench).pending == 0


@pytest.mark.parametrize("settings", [{}, {"rate_limits": ()}])
def test_one_that_is_idle_for_too_long_is_over(serving, settings):
    bench = serving({"direct": {}, "max_sequence_idle_microseconds": 500_000}, settings=settings)
    key = bench.only()
    send(bench, 7, S)
    bench.sleep(0.6)  # it is being executed
    assert bench.response(send(bench, 7)) is None
    bench.answer(key)
    bench.answer(key)
    bench.sleep(0.4)
    assert bench.response(send(bench, 7)) is None
    bench.answer(key)
    bench.sleep(0.6)
    assert bench.error(send(bench, 7)) == NOT_STARTED.format(7)


def test_a_request_waits_for_a_slot_no_longer_than_it_says(serving):
    bench = serving(size=1)
    send(bench, 1, S)
    waiting = [send(bench, 2, S), send(bench, 2, timeout_us=50_000)]
    bench.sleep(0.06)
    for request in waiting:
        assert bench.error(request) == "timeout of the corresponding sequence has been expired"
    assert recorder(bench).failures["REJECTED"] == 2
    assert bench.error(send(bench, 2)) == NOT_STARTED.format(2)


def test_a_cancelled_request_takes_those_of_its_sequence_with_it(serving):
    bench = serving()
    key = bench.only()
    executing = send(bench, 1, S)
    queued = [send(bench, 1), send(bench, 1)]
    bench.tell(ClientGone(queued[0]))
    assert [bench.error(one) for one in queued] == ["", ""]
    bench.answer(key)
    assert bench.response(executing).error is None
    assert bench.error(send(bench, 1)) == NOT_STARTED.format(1)
    assert recorder(bench).failures["CANCELED"] == 2 and recorder(bench).pending == 0


def test_a_death_ends_its_sequences_up_to_their_next_start(serving):
    bench = serving(instances=2, size=1)
    first, second = bench.alive
    inside = send(bench, 1, S)
    other = send(bench, 2, S)
    lost = send(bench, 1)
    again = [send(bench, 1, S), send(bench, 1, E)]
    bench.die(first, inside=bench.inside(first))
    assert bench.error(inside) == "Stub process 'm_0' is not healthy."
    assert bench.error(lost) == "Stub process 'm_0' is not healthy. Sequence 1 has ended with it."
    bench.answer(second)
    assert bench.response(other).error is None
    bench.bring_up() if len(bench.alive) == 1 else _restart(bench)
    new = next(key for key in bench.alive if key != second)
    assert bench.held(new) == [again[0]]
    bench.answer(new, 2)
    bench.answer(new)
    assert bench.response(again[1]).error is None


def _restart(bench) -> None:
    key = next(key for key in bench.alive if not bench.core._roster.serving(key)[1].ready_since)
    bench.hello(key)
    bench.loaded(key)


def test_a_call_to_the_sequence_that_makes_it_fails_instead_of_waiting_for_itself(serving):
    bench = serving(instances=2)
    first = next(iter(bench.alive))
    send(bench, 7, S)
    assert bench.held(first)
    tensor = TensorRef("X", "FP32", (1, 4), Handle("stub", 128, 16))
    request = Request(0, "m", -1, [tensor], correlation_id=7)
    bench.tell(StubSaid(first, Call(CALL, 1, request, bench.inside(first), True, False), ()))
    bench.turn()
    (answered,) = bench.sent(first, Answered)
    assert "would wait for itself" in answered.response.error[1]


def test_until_as_many_wait_in_slots_as_the_setting_says_none_leaves(serving):
    bench = serving(settings={"delay_scheduler": DelayScheduler(3)})
    key = bench.only()
    for id in (1, 2, 3):
        send(bench, id, S)
    assert bench.held(key) == [], "the third has no slot"
    send(bench, 2)
    assert len(bench.held(key)) == 2


def test_until_as_many_wait_for_a_slot_as_the_setting_says_none_leaves(serving):
    bench = serving(settings={"delay_scheduler": DelayScheduler(2, backlog=2)})
    key = bench.only()
    for id in (1, 2, 3):
        send(bench, id, S | E)
    assert bench.held(key) == []
    send(bench, 4, S | E)
    assert len(bench.held(key)) == 2
    bench.answer(key)
    assert len(bench.held(key)) == 2, "only the first batch is held back"


def test_a_backlog_alone_holds_nothing_back(serving):
    bench = serving(settings={"delay_scheduler": DelayScheduler(0, backlog=2)})
    send(bench, 1, S)
    assert len(bench.held(bench.only())) == 1


def test_all_instances_begin_at_once(serving):
    bench = serving(instances=2, size=1, settings={"delay_scheduler": DelayScheduler(3)})
    for id in (1, 2):
        send(bench, id, S)
    assert [bench.held(key) for key in bench.alive] == [[], []]
    send(bench, 1)
    assert [len(bench.held(key)) for key in bench.alive] == [1, 1]


def test_of_the_oldest_strategy_each_instance_waits_for_so_many_sequences_of_its_own(serving):
    oldest = {"max_candidate_sequences": 2}
    bench = serving({"oldest": oldest}, instances=2, settings={"delay_scheduler": DelayScheduler(2, backlog=9)})
    for id in (1, 2):
        send(bench, id, S)
    send(bench, 1)
    assert [bench.held(key) for key in bench.alive] == [[], []], "further requests of a sequence do not count"
    send(bench, 3, S)
    assert sorted(len(bench.held(key)) for key in bench.alive) == [0, 2]
    first = next(key for key in bench.alive if bench.held(key))
    bench.answer(first, count=2)
    send(bench, 4, S)
    assert all(bench.held(key) for key in bench.alive)


def test_an_answer_that_is_still_to_come_keeps_the_next_request_back(serving):
    bench = serving(decoupled=True)
    key = bench.only()
    first = send(bench, 1, S)
    send(bench, 1)
    bench.executed(key)
    assert bench.held(key) == []
    bench.results(key, responses=[Response(first, [], flag_only=True)])
    assert len(bench.held(key)) == 1


def test_responses_come_in_the_order_in_which_their_requests_left(serving):
    oldest = {"max_candidate_sequences": 4, "preserve_ordering": True}
    bench = serving({"oldest": oldest}, size=4, decoupled=True)
    key = bench.only()
    requests = [bench.submit(rows=1, correlation_id=id, flags=S) for id in (1, 2)]
    bench.turn()
    bench.executed(key)
    bench.results(key, responses=[Response(requests[1], [])])
    assert bench.response(requests[1]) is None
    bench.results(key, responses=[Response(requests[0], [])])
    assert [bench.response(one) is not None for one in requests] == [True, True]


def test_sequences_that_run_finish_on_the_version_that_was_replaced(serving):
    bench = serving(size=2)
    old = bench.only()
    send(bench, 1, S)
    bench.answer(old)
    message = ModelConfigMessage(name="m", backend="python", max_batch_size=2, sequence_batching={"direct": {}})
    message.instance_group.add(count=1, name="m")
    for io in (message.input.add(), message.output.add()):
        io.name, io.data_type, io.dims[:] = "X", 11, [4]
    bench.tell(LoadModels([VersionSource("m", 1, "/repo/m", from_message(message), fingerprint="b")]))
    bench.turn()
    (new,) = set(bench.alive) - {old}
    bench.hello(new)
    bench.loaded(new)
    bench.sleep(0.2)
    send(bench, 2, S)
    last = send(bench, 1)
    assert (bench.held(new), bench.held(old)) == ([last - 1], [last])
    bench.answer(old)
    bench.finish()
    assert old in bench.alive, "it waits for the end of the sequence"
    send(bench, 1, E)
    bench.answer(old)
    bench.finish()
    assert old not in bench.alive


# --- which make a batch -------------------------------------------------------------------------------------------

RULES = SequenceRules("m", False, 4, 4, 1, 0, 0.0, frozenset(), frozenset(), False, False, ("", ""))


def ready(*slots: int, since: int = 0, shapes: tuple[int, ...] = ()) -> dict[Sequence, int]:
    found = {}
    for position, slot in enumerate(slots):
        sequence = Sequence(slot)
        sequence.slot = Slot(None, slot)
        dims = shapes[position] if shapes else 1
        request = Request(slot, "m", 1, [TensorRef("X", "FP32", (1, dims), 0)])
        sequence.waiting.append(Pending(request, (), None, 1, since))
        found[sequence] = since
    return found


def chosen(choice: Choice) -> list[int]:
    return [sequence.id for sequence in choice.sequences]


def test_direct_waits_for_so_many_slots_or_so_long():
    rules = RULES._replace(delay_ns=10, utilization=0.75)
    assert choose(ready(0, 3), rules, 5) == Choice([], again_ns=10)
    assert chosen(choose(ready(3, 0), rules, 10)) == [0, 3]
    assert choose(ready(3, 0), rules, 10).places == 4
    assert chosen(choose(ready(0, 3, 1), rules, 5)) == [0, 1, 3]
    assert chosen(choose(ready(2), rules._replace(utilization=0.0), 5)) == [2]


def test_direct_leaves_out_other_shapes_but_not_their_places():
    choice = choose(ready(1, 2, 3, shapes=(7, 7, 8)), RULES._replace(stacked=frozenset("X")), 0)
    assert (chosen(choice), choice.places) == ([1, 2], 4)


def test_oldest_goes_by_the_rules_of_dynamic_batching():
    rules = RULES._replace(oldest=True, delay_ns=10, preferred=frozenset([2, 4]), slots=8)
    assert choose(ready(5), rules, 9) == Choice([], again_ns=10)
    assert chosen(choose(ready(5), rules, 10)) == [5]
    assert chosen(choose(ready(5, 1, 2), rules, 9)) == [5, 1]
    assert chosen(choose(ready(5, 1, 2), rules, 10)) == [5, 1, 2]
    assert chosen(choose(ready(5, 1, 2, 3, 4), rules, 9)) == [5, 1, 2, 3]
    stacked = rules._replace(stacked=frozenset("X"))
    assert chosen(choose(ready(5, 1, 2, shapes=(7, 8, 7)), stacked, 9)) == [5]
