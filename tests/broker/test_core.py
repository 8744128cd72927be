"""The path of a request through the core, and the messages of stubs that keep to the protocol or do not."""

from __future__ import annotations

from broker.events import ClientGone, OutputsRead, StopServing, StubSaid
from protocol.errors import ErrorKind
from protocol.messages import RESULTS, Execute, Executed, Response, Results


def test_a_request_goes_to_the_idle_instance_and_its_answer_back(bench):
    request = bench.submit()
    bench.turn()
    assert bench.held(bench.only()) == [request]
    bench.answer(bench.only())
    assert bench.response(request).error is None
    recorder = next(iter(bench.recorder))
    assert (recorder.success, recorder.inference_count, recorder.execution_count, recorder.pending) == (1, 1, 1, 0)


def test_the_batch_size_of_a_batching_model_counts_as_inferences(make_bench):
    bench = make_bench()
    bench.load(max_batch_size=8)
    bench.bring_up()
    bench.submit(rows=3)
    bench.turn()
    bench.answer(bench.only())
    recorder = next(iter(bench.recorder))
    assert recorder.inference_count == 3
    assert list(recorder.batches) == [3]


def test_an_error_response_counts_as_a_failure_of_the_backend(bench):
    request = bench.submit()
    bench.turn()
    bench.answer(bench.only(), error=(int(ErrorKind.INVALID_ARG), "bad"))
    recorder = next(iter(bench.recorder))
    assert bench.error(request) == "bad"
    assert (recorder.success, recorder.failures["BACKEND"]) == (0, 1)
    assert any(action.event == "request failed" for action in bench.said if hasattr(action, "event"))


def test_a_cancelled_request_that_waits_never_reaches_the_model(bench):
    running, waiting = bench.submit(), bench.submit()
    bench.turn()
    bench.tell(ClientGone(waiting))
    bench.tell(ClientGone(running))  # too late: it runs to its end
    bench.answer(bench.only())
    assert bench.response(waiting).error == (int(ErrorKind.CANCELLED), "")
    assert bench.response(running).error is None
    assert bench.held(bench.only()) == []
    assert next(iter(bench.recorder)).failures["CANCELED"] == 1


def test_a_late_message_of_a_dead_process_is_not_taken_for_its_successors(bench):
    request = bench.submit()
    bench.turn()
    key = bench.only()
    batch = bench.inside(key)
    bench.die(key, inside=batch)
    executed = Executed(batch, 0, 0, 0, False, [Response(request, [])])
    bench.tell(StubSaid(key, Results(RESULTS, [executed], []), ()))
    assert bench.error(request) == "Stub process 'm_0' is not healthy."


def test_a_stub_that_answers_what_it_was_not_asked_is_killed(bench):
    bench.tell(StubSaid(bench.only(), Results(RESULTS, [Executed(99, 0, 0, 0, False, [])], []), ()))
    assert bench.killed == [bench.only()]


def test_what_a_stub_answered_before_it_broke_the_protocol_is_answered(bench):
    request = bench.submit()
    bench.turn()
    bench.answer(bench.only(), lie=True)
    assert bench.response(request).error is None
    assert bench.killed == [bench.only()]


def test_retained_inputs_are_released_when_the_stub_says_so_or_dies(bench):
    first = bench.submit()
    bench.turn()
    bench.answer(bench.only(), retained=True)
    second = bench.submit()
    bench.turn()
    bench.answer(bench.only(), retained=True)
    bench.tell(StubSaid(bench.only(), Results(RESULTS, [], [first]), ()))
    assert [bench.sinks[first].inputs_released, bench.sinks[second].inputs_released] == [1, 0]
    bench.die(bench.only())
    assert bench.sinks[second].inputs_released == 1


def test_read_outputs_are_released_with_the_next_message_or_after_a_while(bench):
    key = bench.only()
    bench.tell(OutputsRead(key, 5))
    bench.submit()
    bench.turn()
    assert bench.inbox[key][0].released == [5]
    bench.tell(OutputsRead(key, 6))
    assert bench.core.next_deadline() == bench.now + bench.settings.release_delay_ns
    bench.sleep(0.2)
    assert bench.inbox[key][1] == Execute("E", [], [6])
    assert bench.core.next_deadline() is None


def test_stopping_answers_what_is_in_flight_refuses_the_new_and_finishes_the_instances(bench):
    running, waiting = bench.submit(), bench.submit()
    bench.turn()
    bench.tell(StopServing())
    refused = bench.submit()
    assert bench.response(refused).error == (
        int(ErrorKind.UNAVAILABLE),
        "Server is stopping, scheduler for model has stopped accepting new inference requests",
    )
    bench.answer(bench.only())
    bench.answer(bench.only())
    assert bench.response(running).error is None and bench.response(waiting).error is None
    bench.finish()
    assert bench.core.processes == 0
    assert next(iter(bench.recorder)).restarts == 0


def test_a_request_that_is_cancelled_while_stopping_keeps_nobody_waiting(bench):
    bench.die(bench.only())
    waiting = bench.submit()
    bench.tell(StopServing())
    bench.turn()
    bench.tell(ClientGone(waiting))
    bench.turn()
    bench.finish()
    assert bench.core.processes == 0
