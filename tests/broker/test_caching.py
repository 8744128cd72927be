"""What is looked up, what is kept and what is forgotten, in the core."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.events import ClientGone, OutputsRead, Say, StopServing
from broker.model_config import from_message
from broker.statistics import statistics
from protocol.errors import ErrorKind
from protocol.messages import Answered, Executed, Finish, Handle, Response, TensorRef
from protocol.statistics import Duration
from tests.broker.caching_bench import CHAIN, CachingBench, source
from tests.broker.test_control import ControlBench


@pytest.fixture
def bench():
    bench = CachingBench()
    bench.serve(source("m"))
    return bench


def with_ensemble(cached: str = "e") -> CachingBench:
    """ "e" is "m", then "n"; ``cached`` are the names of those whose responses are."""
    bench = CachingBench()
    for name in "mn":
        bench.serve(source(name, cached=name in cached), model=name)
    asked = bench.ask_load("e")
    bench.found(source("e", CHAIN, cached="e" in cached))
    while bench.polls:
        bench.found(source(bench.polls[0].model, cached=bench.polls[0].model in cached))
    assert asked.error is None
    return bench


def test_the_second_of_two_like_requests_is_answered_from_the_cache(bench):
    first = bench.ask("a")
    bench.answered()
    second = bench.ask("a")
    assert bench.response(first).outputs[0].place == Handle("m's", 128, 16)
    hit = bench.response(second)
    assert (hit.outputs[0].place.segment, hit.outputs[0].shared, hit.lease) == ("cache", True, 1)
    assert bench.statistics() == (2, 1, 1, 1)
    bench.tell(OutputsRead("cache", hit.lease))


def test_statistics_say_what_was_computed_and_what_was_not(bench):
    bench.ask("a")
    bench.answered()
    bench.now += 10_000
    bench.ask("a")
    (version,) = bench.core.registry.select("m", 1)
    found = statistics(version)
    stats = found.inference_stats
    assert (found.inference_count, found.execution_count) == (1, 1)
    assert (stats.success.count, stats.queue.count) == (2, 2)
    assert stats.compute_input.count == stats.compute_infer.count == stats.compute_output.count == 1
    assert (stats.cache_hit, stats.cache_miss) == (Duration(1, 1_000), Duration(1, 3_000))


def test_another_request_or_another_choice_of_outputs_is_a_miss(bench):
    for content, outputs in (("a", []), ("b", []), ("a", ["X"])):
        bench.ask(content, outputs=outputs)
        if bench.holds():
            bench.answered()
    assert bench.statistics() == (3, 2, 1, 2)  # "X" is all that there is


def test_an_error_is_never_kept(bench):
    for _ in range(2):
        request = bench.ask("a")
        bench.answered(error=(int(ErrorKind.INTERNAL), "no"))
        assert bench.error(request) == "no"
    assert bench.statistics() == (0, 2, 0, 0)
    assert not bench.keeps


def test_requests_that_are_alike_at_the_same_time_are_all_executed_and_one_is_kept(bench):
    requests = [bench.ask("a", turn=False) for _ in range(3)]
    bench.settle()
    bench.turn()
    for _ in requests:
        bench.answered()
    assert all(bench.response(request).error is None for request in requests)
    assert bench.statistics() == (3, 3, 0, 1)
    assert bench.cache.record.entries == 1


def test_an_answer_waits_until_its_outputs_are_copied(bench):
    request = bench.ask("a")
    batch = bench.take_batch(bench.only())
    output = TensorRef("X", "FP32", (4,), Handle("m's", 128, 16))
    executed = Executed(batch.id, 1, 2, 3, False, [Response(request, [output], 5)])
    bench.results(bench.only(), executed=[executed])
    assert bench.response(request) is None
    assert bench.core.in_flight() == {"'m' (version 1)": 1}
    bench.tell(ClientGone(request))
    bench.keep()
    assert bench.response(request).lease == 5
    assert not bench.core.in_flight()


def test_what_cannot_be_copied_is_answered_all_the_same(bench):
    request = bench.ask("a", turn=False)
    bench.digest()
    bench.turn()
    key = bench.only()
    bench.answer(key)
    bench.keep(error="no shared memory")
    assert bench.response(request).error is None
    assert bench.cache.record.used == 0
    assert bench.said[-1] == Say(
        "error", "Failed to insert key into response cache", {"model": "m", "cause": "no shared memory"}
    )


def test_what_is_too_large_is_answered_and_counts_as_a_miss():
    bench = CachingBench(size=100)
    bench.serve(source("m"))
    for _ in range(2):
        request = bench.ask("a")
        bench.answered()
        assert bench.response(request).error is None
    assert bench.statistics() == (2, 2, 0, 2)
    said = [one for one in bench.said if isinstance(one, Say) and "insert" in one.event]
    assert "is greater than total cache size: 100" in said[0].fields["cause"]


def test_a_request_that_cannot_be_read_goes_to_its_model(bench):
    bench.ask("a", turn=False)
    bench.digest(readable=False)
    bench.turn()
    bench.answered()
    assert bench.statistics() == (1, 1, 0, 0)


def test_a_request_is_given_up_while_it_is_looked_up(bench):
    request = bench.ask("a", turn=False)
    bench.tell(ClientGone(request))
    assert bench.response(request).error[0] == ErrorKind.CANCELLED
    bench.digest()
    bench.turn()
    assert not bench.holds()


def test_a_full_queue_refuses_no_request_that_is_in_the_cache(bench):
    bench.ask("a")
    bench.answered()
    assert bench.cache.record.entries == 1
    bench.die(bench.only())  # nobody is there to execute anything
    assert bench.response(bench.ask("a")).error is None


def test_a_reload_forgets_what_the_load_before_it_has_answered(bench):
    bench.ask("a")
    bench.answered()
    late = bench.ask("b")
    old = bench.key_of("m")
    bench.serve(source("m", fingerprint="b"))
    assert bench.cache.record.entries == 0
    bench.answer(old)  # of the old load: answered, and not kept
    bench.settle()
    assert bench.response(late).error is None
    assert bench.cache.record.entries == 0
    bench.sleep(0.2)
    bench.finish()
    bench.ask("a")
    assert bench.holds() == 1


def test_an_unload_forgets_all_and_waits_for_no_reader(bench):
    bench.ask("a")
    bench.answered()
    hit = bench.response(bench.ask("a"))
    bench.unload("m")
    assert bench.cache.record.entries == 0
    assert bench.cache.record.used > 0
    bench.finish()
    assert not bench.alive
    bench.tell(OutputsRead("cache", hit.lease))
    assert bench.cache.record.used == 0


def test_a_call_of_a_model_is_looked_up_and_answered_on_lease(bench):
    bench.serve(source("n", cached=False), model="n")
    caller = bench.key_of("n")
    for number in (1, 2):
        bench.call(caller, "m", number)
        bench.settle()
        if bench.holds():
            bench.answered()
    first, second = (message for message in bench.sent(caller, Answered))
    assert (first.origin, second.origin) == (bench.key_of("m"), "cache")
    assert second.response.outputs[0].shared
    bench.results(caller, read=[("cache", second.response.lease)])
    assert bench.statistics() == (2, 1, 1, 1)
    bench.unload("m")
    assert bench.cache.record.used == 0


def test_a_call_is_not_taken_for_stuck_while_it_is_looked_up(bench):
    """A model that calls itself: from the cache it has its answer, else it would wait for itself."""
    bench.ask("other")
    key = bench.only()
    batch = bench.inside(key)
    bench.call(key, "m", 1, batch)
    assert not bench.sent(key, Answered)
    bench.settle()
    (answered,) = bench.sent(key, Answered)
    assert "would wait for itself" in answered.response.error[1]


def test_a_step_is_answered_from_the_cache_and_the_next_looks_at_it_there():
    bench = with_ensemble(cached="m")
    for number in range(2):
        request = bench.ask("a", model="e")
        if number == 0:
            bench.answered("m", 192)
        bench.answered("n", 256 + number)
    assert bench.response(request).outputs[0].place == Handle("n's", 257, 16)
    assert (bench.statistics("m"), bench.statistics("n")[:2]) == ((2, 1, 1, 1), (2, 2))
    bench.unload("m")
    assert bench.cache.record.used == 0  # the lease has ended with the step that read it


def test_an_ensemble_is_answered_from_the_cache_as_a_whole():
    bench = with_ensemble(cached="e")
    for number in range(2):
        request = bench.ask("a", model="e")
        if number == 0:
            bench.answered("m", 192)
            bench.answered("n", 256)
    hit = bench.response(request)
    assert hit.outputs[0].place.segment == "cache"
    assert hit.parameters == {}  # they speak of the first request's sequence
    assert bench.statistics("e") == (2, 1, 1, 1)
    assert bench.statistics("m")[:2] == (1, 1)


@pytest.mark.parametrize("name", ["m", "n"])
def test_a_reload_of_one_of_its_models_forgets_what_an_ensemble_has_answered(name):
    bench = with_ensemble(cached="e")
    bench.ask("a", model="e")
    bench.answered("m", 192)
    late = bench.ask("b", model="e")
    bench.answered("n", 256)
    assert bench.cache.record.entries == 1
    bench.serve(source(name, cached=False, fingerprint="b"), model=name)
    assert bench.cache.record.entries == 0
    for key in list(bench.alive):  # what was on its way ends, and is not kept
        while bench.held(key):
            bench.answer(key)
            bench.settle()
    for key in list(bench.alive):
        while bench.held(key):
            bench.answer(key)
            bench.settle()
    assert bench.response(late) is not None
    assert bench.cache.record.entries == 0


def test_an_ensemble_within_another_is_answered_once_its_own_answer_is_kept():
    bench = CachingBench()
    bench.serve(source("m", cached=False))
    ensembles = {"e": source("e", [("m", {"X": "X"}, {"X": "Y"})]), "f": source("f", [("e", {"X": "X"}, {"Y": "Y"})])}
    bench.ask_load("f")
    while bench.polls:
        model = bench.polls[0].model
        bench.found(ensembles.get(model) or source(model, cached=False))
    request = bench.ask("a", model="f")
    bench.answered("m", 192)  # lets the inputs go of "e", whose answer is being copied
    assert bench.response(request).error is None
    bench.core.check()


def of_sequences(name, **options):
    plain = source(name, cached=False, **options)
    plain.config.message.sequence_batching.SetInParent()
    return replace(plain, config=from_message(plain.config.message))


def test_an_ensemble_is_not_cached_any_more_once_one_of_its_models_has_sequences():
    bench = with_ensemble(cached="e")
    for looked_up in (1, 1):
        request = bench.ask("a", model="e")
        while bench.response(request) is None:
            for key in [key for key in bench.alive if bench.held(key)]:
                bench.answer(key)
            bench.settle()
        assert bench.cache.record.hits + bench.cache.record.misses == looked_up
        bench.serve(of_sequences("n", fingerprint="b"), model="n")


def test_an_ensemble_is_not_cached_if_one_of_its_models_has_sequences():
    bench = CachingBench()
    for part in (source("m", cached=False), of_sequences("n")):
        bench.serve(part, model=part.model)
    bench.ask_load("e")
    bench.found(source("e", CHAIN))
    while bench.polls:
        bench.found(source(bench.polls[0].model, cached=False))
    said = [one for one in bench.said if isinstance(one, Say) and one.level == "warning"]
    cause = "its model 'n' has sequence batching"
    assert said == [Say("warning", "responses are not cached", {"model": "e", "cause": cause})]


def test_without_a_cache_the_model_serves_and_the_log_says_once_why_it_is_slow():
    bench = ControlBench()
    bench.serve(source("m"))
    request = bench.submit("m")
    bench.turn()
    bench.answer(bench.only())
    assert bench.response(request).error is None
    said = [one for one in bench.said if isinstance(one, Say) and one.level == "warning"]
    cause = "the server has no response cache (--cache-config)"
    assert said == [Say("warning", "responses are not cached", {"model": "m", "cause": cause})]


def test_the_stop_waits_for_what_is_looked_up(bench):
    request = bench.ask("a", turn=False)
    bench.tell(StopServing())
    bench.turn()
    assert not bench.sent(bench.only(), Finish)
    bench.settle()
    bench.answered()
    bench.turn()
    assert bench.response(request).error is None
    assert bench.sent(bench.only(), Finish)


def test_what_a_replaced_load_has_in_flight_is_not_hidden_by_its_successor(bench):
    bench.ask("a")
    bench.serve(source("m", fingerprint="b"))
    bench.ask("b")
    assert bench.core.in_flight() == {"'m' (version 1)": 2}


@pytest.mark.parametrize("place", [Handle("m's", 128, -5), 3, -1])
def test_outputs_that_are_nowhere_are_not_kept(bench, place):
    request = bench.ask("a")
    batch = bench.take_batch(bench.only())
    response = Response(request, [TensorRef("X", "FP32", (4,), place)], 5)
    bench.results(bench.only(), executed=[Executed(batch.id, 1, 2, 3, False, [response])])
    assert bench.response(request) == response
    assert not bench.keeps


def test_outputs_that_come_with_the_message_are_kept(bench):
    request = bench.ask("a")
    batch = bench.take_batch(bench.only())
    response = Response(request, [TensorRef("X", "FP32", (4,), bytes(16))])
    bench.results(bench.only(), executed=[Executed(batch.id, 1, 2, 3, False, [response])])
    assert [keep.outputs for keep in bench.keeps] == [response.outputs]
    bench.settle()
    assert bench.response(request) == response
    (hit,) = bench.response(bench.ask("a")).outputs
    assert (hit.place.segment, hit.place.nbytes) == ("cache", 16)


def test_what_is_found_waits_for_those_before_it_where_the_order_matters():
    bench = CachingBench()
    bench.serve(source("m", ordered=True))
    bench.ask("a")
    bench.answered()
    slow, found, other = (bench.ask(content) for content in "bac")
    assert bench.response(found) is None
    bench.answered()
    assert bench.response(slow) is not None and bench.response(found) is not None
    assert bench.response(other) is None
    bench.answered()
    assert bench.response(other) is not None
