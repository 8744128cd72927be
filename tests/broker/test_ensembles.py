"""Requests to ensembles in the core: what their steps are given, what the client gets, when memory is given back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.events import Answer, AskedReady, ClientGone, LoadModels, OutputsRead, Send, StubSaid, Submitted, TellReady
from broker.model import VersionSource
from broker.model_config import ModelConfigMessage, from_message
from protocol.errors import ErrorKind
from protocol.messages import (
    CALL,
    RESULTS,
    Answered,
    Call,
    Cancel,
    Execute,
    Executed,
    Handle,
    Request,
    Response,
    Results,
    TensorPlace,
    TensorRef,
)
from tests.broker.model_sources import source

CHAIN = [("a", {"X": "X"}, {"X": "t"}), ("b", {"X": "t"}, {"X": "Y"})]
PLACE = Handle("a's", 64, 16)


@pytest.fixture
def bench(make_bench):
    """ "e" is "a", then "b"; their keys are known by their names."""
    return load(make_bench(), source("a"), source("b"), source("e", CHAIN, output="Y"))


def load(bench, *sources: VersionSource):
    bench.tell(LoadModels(list(sources)))
    bench.turn()
    bench.bring_up()
    for key, title in bench.alive.items():
        setattr(bench, title.split(":")[0], key)
    return bench


def output(place: TensorPlace = PLACE, **fields) -> list[TensorRef]:
    return [TensorRef("X", "FP32", (4,), place, **fields)]


def only_request(bench, key: str) -> Request:
    (request,) = [one for message in bench.sent(key, Execute) for batch in message.batches for one in batch.requests]
    return request


def answer(bench, key: str, outputs, **fields) -> None:
    batch = bench.take_batch(key)
    response = Response(batch.requests[0].id, outputs, **fields)
    bench.results(key, executed=[Executed(batch.id, 1, 20, 3, False, [response])])


def released(bench, key: str) -> list[int]:
    bench.sleep(0.2)
    return [lease for message in bench.sent(key, Execute) for lease in message.released]


def test_a_step_is_given_the_output_of_the_one_before_it_where_it_lies(bench):
    request = bench.submit("e")
    bench.turn()
    answer(bench, bench.a, output(), lease=5)
    given = only_request(bench, bench.b)
    assert (given.id < 0, given.model, given.version, given.outputs) == (True, "b", 1, ["X"])
    assert given.inputs == [TensorRef("X", "FP32", (4,), PLACE)]
    assert released(bench, bench.a) == []
    answer(bench, bench.b, output(Handle("b's", 0, 16)), lease=6)
    assert released(bench, bench.a) == [5]
    response = bench.response(request)
    assert response.outputs == [TensorRef("Y", "FP32", (4,), Handle("b's", 0, 16))]
    assert response.parameters == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    assert released(bench, bench.b) == []
    bench.tell(OutputsRead("ensembles", response.lease))
    assert released(bench, bench.b) == [6]


def test_steps_bear_what_the_client_said_of_its_request(bench):
    tensor = TensorRef("X", "FP32", (4,), Handle("g", 0, 16))
    asked = Request(1, "e", -1, [tensor], "mine", ["Y"], {"p": 1}, "seq", 3, 2, 1_000_000)
    bench.tell(Submitted(asked, (), bench.sinks.setdefault(1, _Sink()), bench.now))
    bench.turn()
    for key in (bench.a, bench.b):
        given = only_request(bench, key)
        assert given[4:] == ("mine", ["X"], {"p": 1}, "seq", 3, 2, 1_000_000)
        answer(bench, key, output())
    assert bench.response(1).parameters == {"sequence_id": "seq", "sequence_start": True, "sequence_end": True}


class _Sink:
    def __init__(self) -> None:
        self.responses: list[Response] = []

    def on_response(self, response, origin, frames) -> None:
        self.responses.append(response)


def test_a_model_may_give_what_follows_another_sequence(bench):
    bench.submit("e")
    bench.turn()
    answer(bench, bench.a, output(), parameters={"sequence_id": 9, "sequence_end": True, "other": 1})
    given = only_request(bench, bench.b)
    assert (given.correlation_id, given.flags, given.parameters) == (9, 2, {})


def test_the_first_error_of_a_step_ends_the_request_and_keeps_its_kind(bench):
    request = bench.submit("e")
    bench.turn()
    answer(bench, bench.a, [], error=(int(ErrorKind.NOT_FOUND), "no such thing"))
    assert bench.response(request).error == (ErrorKind.NOT_FOUND, "in ensemble 'e', no such thing")
    (e,) = [one for one in bench.recorder if one.model == "e"]
    assert (e.fail_count, e.failures["OTHER"], e.success) == (1, 1, 0)


def test_a_tensor_that_does_not_fit_the_next_model_is_an_error_that_names_it(bench):
    request = bench.submit("e")
    bench.turn()
    answer(bench, bench.a, [TensorRef("X", "FP32", (5,), PLACE)], lease=1)
    text = (
        "in ensemble 'e', [request id: client-1] unexpected shape for input 'X' for model 'b'. Expected [4], got [5]. "
    )
    assert bench.error(request) == text
    assert released(bench, bench.a) == [1]


def test_inputs_that_a_step_keeps_are_given_back_to_the_client_when_it_lets_go(bench):
    request = bench.submit("e")
    bench.turn()
    step = bench.held(bench.a)
    answer(bench, bench.a, output(), retained=True)
    answer(bench, bench.b, output())
    assert (bench.response(request).retained, bench.sinks[request].inputs_released) == (True, 0)
    bench.results(bench.a, released=step)
    assert bench.sinks[request].inputs_released == 1


def test_outputs_that_a_step_keeps_are_on_lease_though_the_client_has_its_answer(bench):
    bench.submit("e")
    bench.turn()
    answer(bench, bench.a, output(), lease=5)
    step = bench.held(bench.b)
    answer(bench, bench.b, output(), retained=True)
    assert released(bench, bench.a) == []
    bench.results(bench.b, released=step)
    assert released(bench, bench.a) == [5]


def test_tensors_in_frames_go_on_in_frames(bench):
    """Of stubs that do not share our memory, or when there is none left."""
    request = bench.submit("e")
    bench.turn()
    batch = bench.take_batch(bench.a)
    response = Response(batch.requests[0].id, output(place=1))
    executed = Executed(batch.id, 0, 0, 0, False, [response])
    frames = (b"other", b"0123456789abcdef")
    bench.tell(StubSaid(bench.a, Results(RESULTS, [executed], []), frames))
    (sent,) = [one for one in bench.core.dispatch(bench.now) if isinstance(one, Send)]
    (inside,) = sent.message.batches[0].requests
    assert (inside.inputs[0].place, list(sent.frames)) == (0, [b"0123456789abcdef"])
    executed = Executed(sent.message.batches[0].id, 0, 0, 0, False, [Response(inside.id, output(place=0))])
    said = StubSaid(bench.b, Results(RESULTS, [executed], []), (b"fedcba9876543210",))
    (answered,) = [one for one in bench.core.handle(said, bench.now) if isinstance(one, Answer)]
    assert (answered.response.outputs[0].place, list(answered.frames)) == (0, [b"fedcba9876543210"])
    assert answered.pending.request.id == request


def test_small_tensors_go_from_step_to_step_with_the_messages_and_keep_nothing(bench):
    tensor = TensorRef("X", "FP32", (4,), b"client's 16 byte")
    bench.tell(Submitted(Request(1, "e", -1, [tensor]), (), bench.sinks.setdefault(1, _Sink()), bench.now))
    bench.turn()
    for key, given, made in ((bench.a, tensor.place, b"0123456789abcdef"), (bench.b, b"0123456789abcdef", bytes(16))):
        assert [one.place for one in only_request(bench, key).inputs] == [given]
        answer(bench, key, output(made))
    response = bench.response(1)
    assert ([one.place for one in response.outputs], response.lease) == ([bytes(16)], 0)
    assert not bench.core.in_flight()


def test_the_elements_of_small_texts_are_looked_at_for_each_step(make_bench):
    """The same shape and length as before may be other elements; and what is taken once is not forgotten."""

    def of_text(one: VersionSource) -> VersionSource:
        message = ModelConfigMessage()
        message.CopyFrom(one.config.message)
        for tensor in (*message.input, *message.output):
            tensor.data_type, tensor.dims[:] = 13, [1]
        return replace(one, config=from_message(message))

    bench = load(make_bench(), *map(of_text, (source("a"), source("b"), source("e", CHAIN, output="Y"))))
    good, bad = b"\2\0\0\0xy", b"\3\0\0\0xy"
    for id, made in enumerate((good, bad, good), 1):
        asked = Request(id, "e", -1, [TensorRef("X", "BYTES", (1,), good)])
        bench.tell(Submitted(asked, (), bench.sinks.setdefault(id, _Sink()), bench.now))
        bench.turn()
        answer(bench, bench.a, [TensorRef("X", "BYTES", (1,), made)])
        if made == good:
            answer(bench, bench.b, [TensorRef("X", "BYTES", (1,), good)])
        error = bench.response(id).error
        assert (error is None) == (made == good), error


def test_a_batch_of_one_comes_and_goes_between_models_that_batch_and_models_that_do_not(make_bench):
    bench = load(make_bench(), source("a", max_batch_size=4), source("b"), source("e", CHAIN, output="Y"))
    request = bench.submit("e")
    bench.turn()
    assert only_request(bench, bench.a).inputs[0].shape == (1, 4)
    answer(bench, bench.a, [TensorRef("X", "FP32", (1, 4), PLACE)])
    assert only_request(bench, bench.b).inputs[0].shape == (4,)
    answer(bench, bench.b, output())
    assert bench.response(request).outputs[0].shape == (4,)


def test_cancelling_takes_a_step_from_the_queue_or_reaches_the_model_that_has_it(bench):
    bench.submit("a")
    first, second = bench.submit("e"), bench.submit("e")
    bench.turn()
    bench.tell(ClientGone(second))
    assert bench.response(second).error == (ErrorKind.CANCELLED, "")
    bench.answer(bench.a)
    (step,) = bench.held(bench.a)
    bench.tell(ClientGone(first))
    bench.turn()
    assert bench.sent(bench.a, Cancel)[0].requests == [step]
    answer(bench, bench.a, output(), lease=1)
    assert bench.response(first).error == (ErrorKind.CANCELLED, "")
    assert (bench.held(bench.b), released(bench, bench.a)) == ([], [1])


def test_a_stream_of_a_request_that_has_failed_is_cancelled(make_bench):
    bench = load(
        make_bench(),
        source("a", model_transaction_policy={"decoupled": True}),
        source("b"),
        source("e", CHAIN, output="Y"),
    )
    request = bench.submit("e")
    bench.turn()
    step = bench.held(bench.a)
    bench.results(bench.a, responses=[Response(step[0], output(), 1, final=False)])
    answer(bench, bench.b, [], error=(1, "bad"))
    assert bench.error(request) == "in ensemble 'e', bad"
    assert bench.sent(bench.a, Cancel)[0].requests == step
    bench.results(bench.a, responses=[Response(step[0], output(), 2, final=False)])
    bench.executed(bench.a, Response(step[0], []))
    assert released(bench, bench.a) == [1, 2]


def test_the_figures_of_an_ensemble_are_the_sums_over_its_steps(bench):
    request = bench.submit("e")
    bench.turn()
    answer(bench, bench.a, output())
    answer(bench, bench.b, output())
    assert bench.response(request).error is None
    (e,) = [one for one in bench.recorder if one.model == "e"]
    assert (e.success, e.inference_count, e.execution_count, e.pending) == (1, 1, 1, 0)
    assert (e.compute_input_ns, e.compute_infer_ns, e.compute_output_ns) == (2, 40, 6)
    assert [one.success for one in bench.recorder] == [1, 1, 1]


def test_a_model_that_leaves_waits_for_the_requests_that_are_still_to_come_to_it(bench):
    request = bench.submit("e")
    bench.turn()
    bench.core._serving.unload("b")
    bench.turn()
    assert [one.name for one in bench.core.registry.serving()] == ["a"]
    answer(bench, bench.a, output())
    answer(bench, bench.b, output())
    assert bench.response(request).error is None
    bench.finish()
    assert bench.core.registry.rows("b")[0].reason == "unloaded"


def test_an_ensemble_is_ready_while_all_its_models_are(bench):
    said: list[bool] = []
    (e,) = bench.core.registry.rows("e")
    bench.tell(AskedReady(e, said.append))
    bench.die(bench.b)
    bench.tell(AskedReady(e, said.append))
    assert [one.ready for one in bench.said if isinstance(one, TellReady)] == [True, False]


def test_a_call_of_an_ensemble_that_would_wait_for_its_caller_is_an_error(bench):
    bench.submit("b")
    bench.turn()
    bench.call(bench.b, "e")
    answer(bench, bench.a, output(), lease=1)
    (answered,) = bench.sent(bench.b, Answered)
    text = answered.response.error[1]
    assert text.startswith("in ensemble 'e', Model b - Error when running inference: the call would wait for itself")
    assert released(bench, bench.a) == [1]


def test_a_call_of_an_ensemble_is_answered_like_any_other(bench):
    bench.submit("b")
    bench.turn()
    bench.call(bench.b, "e", waits=False)
    answer(bench, bench.a, output())
    bench.answer(bench.b)
    answer(bench, bench.b, output(Handle("b's", 0, 16)), lease=3)
    (answered,) = bench.sent(bench.b, Answered)
    assert (answered.origin, answered.response.outputs[0].name) == ("ensembles", "Y")
    bench.results(bench.b, read=[("ensembles", answered.response.lease)])
    assert released(bench, bench.b) == [3]


def test_a_call_that_fails_makes_room_for_the_next_which_is_looked_at_in_the_same_turn(make_bench):
    """ "e" runs one step at a time, which calls of its own model never get to; "f" is "e"."""
    alone = source("e", [("a", {"X": "X"}, {"X": "Y"})], output="Y", ensemble_scheduling={"max_inflight_requests": 1})
    bench = load(make_bench(), source("a"), alone, source("f", [("e", {"X": "X"}, {"Y": "Y"})], output="Y"))
    bench.submit("a")
    bench.turn()
    batch = bench.inside(bench.a)
    tensor = TensorRef("X", "FP32", (4,), Handle("stub", 128, 16))
    for number, model in enumerate(("e", "f", "f"), 1):
        message = Call(CALL, number, Request(0, model, -1, [tensor]), batch, True, False)
        bench.tell(StubSaid(bench.a, message, ()))
    bench.turn()
    answers = bench.sent(bench.a, Answered)
    assert sorted(one.call for one in answers) == [1, 2, 3]
    assert all("would wait for itself" in one.response.error[1] for one in answers)
