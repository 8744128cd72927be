"""The path of a request through the core, and what becomes of it when instances die."""

from __future__ import annotations

from broker.events import Cancelled, OutputsRead, StopServing, StubSaid
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


def test_requests_of_one_turn_leave_in_one_message_once_executions_are_known_to_be_short(bench):
    bench.submit()
    bench.turn()
    bench.answer(bench.only(), execute_ns=50_000)
    ids = [bench.submit() for _ in range(5)]
    bench.turn()
    (message,) = bench.inbox[bench.only()]
    assert [batch.requests[0].id for batch in message.batches] == ids


def test_a_slow_single_instance_holds_one_request_at_a_time(bench):
    first, second = bench.submit(), bench.submit()
    bench.turn()
    assert bench.held(bench.only()) == [first]
    bench.answer(bench.only(), execute_ns=5_000_000)
    assert bench.held(bench.only()) == [second]


def test_with_several_instances_each_holds_one_and_none_idles(make_bench):
    bench = make_bench()
    bench.load(instances=2)
    bench.bring_up()
    ids = [bench.submit() for _ in range(3)]
    bench.turn()
    one, two = bench.alive
    assert [bench.held(one), bench.held(two)] == [[ids[0]], [ids[1]]]
    bench.answer(two)
    assert bench.held(two) == [ids[2]]


def test_an_unknown_model_or_version_is_refused_with_tritons_text(bench):
    assert bench.error(bench.submit("nope")) == "Request for unknown model: 'nope' is not found"
    assert bench.error(bench.submit("m", 7)) == "Request for unknown model: 'm' version 7 is not found"


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
    bench.tell(Cancelled(waiting))
    bench.tell(Cancelled(running))  # too late: it runs to its end
    bench.answer(bench.only())
    assert bench.response(waiting).error == (int(ErrorKind.CANCELLED), "")
    assert bench.response(running).error is None
    assert bench.held(bench.only()) == []
    assert next(iter(bench.recorder)).failures["CANCELED"] == 1


def test_a_death_fails_only_the_request_inside_and_the_rest_is_served_by_the_successor(bench):
    bench.submit()
    bench.turn()
    bench.answer(bench.only())
    done_but_unsent, inside, behind = (bench.submit() for _ in range(3))
    bench.turn()
    key = bench.only()
    bench.die(key, inside=bench.inside(key, 1))
    assert bench.error(inside) == "Stub process 'm_0' is not healthy."
    assert bench.response(behind) is None
    bench.bring_up()
    while bench.held(bench.only()):
        bench.answer(bench.only())
    assert bench.response(done_but_unsent).error is None
    assert bench.response(behind).error is None
    assert next(iter(bench.recorder)).restarts == 1


def test_without_a_status_word_the_first_unanswered_request_fails(bench):
    request = bench.submit()
    bench.turn()
    bench.die(bench.only(), inside=None)
    assert bench.error(request) == "Stub process 'm_0' is not healthy."


def test_a_request_that_was_sent_back_once_fails_at_the_second_death(bench):
    request = bench.submit()
    bench.turn()
    bench.die(bench.only(), inside=0)
    bench.bring_up()
    assert bench.held(bench.only()) == [request]
    bench.die(bench.only(), inside=0)
    assert bench.error(request) == "Stub process 'm_0' is not healthy."


def test_the_model_is_not_ready_while_an_instance_is_dead(bench):
    registry = bench.core.registry
    assert registry.model_ready("m", -1) and registry.all_ready()
    bench.die(bench.only())
    assert not registry.model_ready("m", -1) and not registry.all_ready()
    assert [(version.name, instance.spec.name) for version, instance in registry.ailing()] == [("m", "m_0")]
    bench.bring_up()
    assert registry.model_ready("m", -1)
    assert not list(registry.ailing())


def test_restarts_back_off_and_requests_are_refused_meanwhile(bench):
    bench.die(bench.only())
    waiting = bench.submit()
    bench.turn()
    bench.die(bench.only())  # the successor died before it was ready
    assert bench.alive == {}
    assert bench.error(waiting) == "Stub process 'm_0' is not healthy."
    assert bench.error(bench.submit()) == "Stub process 'm_0' is not healthy."
    bench.sleep(0.4)
    assert bench.alive == {}
    bench.sleep(0.2)
    bench.bring_up()
    request = bench.submit()
    bench.turn()
    bench.answer(bench.only())
    assert bench.response(request).error is None


def test_requests_wait_for_a_restart_that_comes_soon_but_not_for_one_that_comes_late(bench):
    for delay in (0, 0.5, 1):
        bench.die(bench.only())
        waiting = bench.submit()
        bench.turn()
        bench.sleep(delay)
        assert bench.response(waiting) is None
        bench.tell(Cancelled(waiting))
        bench.bring_up()
    bench.die(bench.only())
    assert bench.error(bench.submit()) == "Stub process 'm_0' is not healthy."


def test_a_process_that_has_answered_is_replaced_at_once(bench):
    for _ in range(5):
        request = bench.submit()
        bench.turn()
        bench.answer(bench.only())
        assert bench.response(request).error is None
        bench.die(bench.only())
        bench.bring_up()
        assert bench.only()


def test_each_bad_request_of_many_fails_alone(bench):
    bench.submit()
    bench.turn()
    bench.answer(bench.only())
    bad, good = [], []
    for _ in range(3):
        bad.append(bench.submit())
        good.append(bench.submit())
    bench.turn()
    for request in bad:
        key = bench.only()
        while bench.held(key)[0] != request:
            bench.answer(key)
        bench.die(key, inside=bench.inside(key))
        assert bench.error(request) == "Stub process 'm_0' is not healthy."
        bench.bring_up()
    while bench.held(bench.only()):
        bench.answer(bench.only())
    assert [bench.response(request).error for request in good] == [None, None, None]


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


def test_a_passive_instance_is_never_given_work(make_bench):
    bench = make_bench()
    bench.load(instances=2, passive=True)
    bench.bring_up()
    bench.submit()
    bench.turn()
    assert [bench.held(key) for key in bench.alive] == [[], []]


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
