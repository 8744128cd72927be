"""What becomes of an instance whose process dies, and of the requests that it held."""

from broker.events import ClientGone, Say, StopServing


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
        bench.tell(ClientGone(waiting))
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


def test_what_goes_back_stands_before_what_came_later(make_bench):
    bench = make_bench()
    bench.load(instances=2)
    bench.bring_up()
    one, two = bench.alive
    first, second, later = (bench.submit() for _ in range(3))
    bench.turn()
    bench.die(one)
    bench.answer(two)
    assert bench.response(second).error is None
    assert bench.held(two) == [first]
    bench.answer(two)
    assert bench.held(two) == [later]


def test_a_death_after_finish_is_no_fault(bench):
    bench.tell(StopServing())
    bench.turn()
    bench.finish()
    assert bench.alive == {}
    assert next(iter(bench.recorder)).restarts == 0
    assert not [said for said in bench.said if isinstance(said, Say) and said.level == "error"]


def test_a_death_is_told_with_its_cause(bench):
    bench.die(bench.only(), status=-11)
    (said,) = (said for said in bench.said if isinstance(said, Say) and said.level == "error")
    assert said.fields == {"model": "m", "version": 1, "instance": "m_0", "cause": "signal 11"}


def test_the_next_deadline_is_that_of_the_restart(bench):
    assert bench.core.next_deadline() is None
    for _ in range(2):
        bench.die(bench.only())
    assert bench.core.next_deadline() == bench.now + bench.settings.restart_delay_ns
    bench.sleep(0.5)
    assert bench.core.next_deadline() is None
    assert bench.only()
