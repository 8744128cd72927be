"""The rate limiter, through the core: who executes next, and which models cannot be loaded."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis.stateful import rule

from broker.events import ClientGone, LoadModel, LoadModels, Poll, Polled, Say, StartServing, UnloadModel
from broker.model import VersionSource
from broker.model_config import ModelConfigMessage, from_message
from broker.settings import ResourceLimit
from protocol.messages import SEQUENCE_START, Answered
from tests.broker.test_core_random import CoreMachine
from tests.random_events import run_random_events


def source(
    name: str,
    resources: dict[str, int] | None = None,
    priority: int = 0,
    instances: int = 1,
    shared: tuple[str, ...] = (),
    passive: bool = False,
    decoupled: bool = False,
    fingerprint: str = "",
) -> VersionSource:
    """``resources`` of every instance; those in ``shared`` are global."""
    message = ModelConfigMessage(name=name, backend="python")
    message.model_transaction_policy.decoupled = decoupled
    group = message.instance_group.add(name=name, count=instances, passive=passive)
    group.rate_limiter.priority = priority
    for resource, count in (resources or {}).items():
        group.rate_limiter.resources.add(name=resource, count=count, **{"global": resource in shared})
    for io in (message.input.add(), message.output.add()):
        io.name, io.data_type, io.dims[:] = "X", 11, [4]
    return VersionSource(name, 1, f"/repo/{name}", from_message(message), fingerprint=fingerprint)


def serve(make_bench, *sources: VersionSource, limits: tuple[ResourceLimit, ...] = (), **more: object):
    bench = make_bench(rate_limits=limits, **more)
    bench.tell(LoadModels(list(sources)))
    bench.turn()
    bench.bring_up()
    return bench


def key(bench, model: str) -> str:
    return next(key for key, title in bench.alive.items() if title.startswith(f"{model}:"))


def executing(bench) -> list[str]:
    """The models of the stubs that hold something."""
    return sorted(title.split(":")[0] for key, title in bench.alive.items() if bench.held(key))


def saturate(bench, *models: str, executions: int) -> Counter[str]:
    """How often each has executed when there was always work for all of them."""
    counts: Counter[str] = Counter()
    for _ in range(executions):
        for model in models:
            bench.submit(model)
    bench.turn()
    while sum(counts.values()) < executions:
        for stub in [stub for stub in bench.alive if bench.held(stub)]:
            counts[bench.alive[stub].split(":")[0]] += 1
            bench.answer(stub)
    return counts


def test_without_it_resources_mean_nothing(make_bench) -> None:
    bench = make_bench()
    bench.tell(LoadModels([source("a", {"r": 1}), source("b", {"r": 1})]))
    bench.turn()
    bench.bring_up()
    bench.submit("a")
    bench.submit("b")
    bench.turn()
    assert executing(bench) == ["a", "b"]


def test_what_exceeds_a_resource_waits_for_it(make_bench) -> None:
    bench = serve(make_bench, source("a", {"r": 4}), source("b", {"r": 2}))
    for model in "ab":
        bench.submit(model)
    bench.turn()
    assert executing(bench) == ["a"]
    bench.answer(key(bench, "a"))
    assert executing(bench) == ["b"]


def test_the_only_instance_of_a_model_holds_one_execution_at_a_time(make_bench) -> None:
    bench = serve(make_bench, source("a"))
    for _ in range(5):
        bench.submit("a")
    bench.turn()
    for _ in range(4):
        assert len(bench.held(key(bench, "a"))) == 1
        bench.answer(key(bench, "a"), execute_ns=1)


def test_enough_of_a_resource_lets_both_execute(make_bench) -> None:
    limits = (ResourceLimit("r", 6),)
    bench = serve(make_bench, source("a", {"R": 4}), source("b", {"R": 2}), limits=limits)
    for model in "ab":
        bench.submit(model)
    bench.turn()
    assert executing(bench) == ["a", "b"]


@pytest.mark.parametrize(("priorities", "expected"), [((1, 2), (200, 100)), ((0, 1), (150, 150)), ((3, 1), (75, 225))])
def test_executions_are_in_inverse_ratio_to_the_priorities(make_bench, priorities, expected) -> None:
    bench = serve(make_bench, source("a", {"r": 1}, priorities[0]), source("b", {"r": 1}, priorities[1]))
    counts = saturate(bench, "a", "b", executions=300)
    assert abs(counts["a"] - expected[0]) <= 1 and abs(counts["b"] - expected[1]) <= 1


def test_of_two_that_are_due_the_one_of_the_better_priority_comes_first(make_bench) -> None:
    bench = serve(make_bench, source("a", {"r": 1}, 2), source("b", {"r": 1}, 1))
    order = []
    for _ in range(6):
        bench.submit("a")
        bench.submit("b")
    bench.turn()
    for _ in range(6):
        order += executing(bench)
        bench.answer(key(bench, order[-1]))
    assert order == ["b", "a", "b", "b", "a", "b"]


def test_two_instances_of_one_model_share_by_priority_too(make_bench) -> None:
    message = source("m", {"r": 1}).config.message
    second = message.instance_group.add()
    second.CopyFrom(message.instance_group[0])
    message.instance_group[0].name, second.name, second.rate_limiter.priority = "first", "second", 2
    bench = serve(make_bench, VersionSource("m", 1, "/m", from_message(message)))
    for _ in range(300):
        bench.submit("m")
    bench.turn()
    counts: Counter[str] = Counter()
    for _ in range(150):
        (stub,) = [one for one in bench.alive if bench.held(one)]
        counts[bench.alive[stub]] += 1
        bench.answer(stub)
    assert sorted(counts.values()) == [50, 100]


def test_a_needy_instance_is_not_overtaken_for_ever(make_bench) -> None:
    """Two small ones would always leave too little for it."""
    bench = serve(make_bench, source("small", {"r": 2}, instances=2), source("large", {"r": 4}))
    for _ in range(6):
        bench.submit("small")
    bench.turn()
    bench.submit("large")
    bench.turn()
    first, second = [one for one, title in bench.alive.items() if title.startswith("small")]
    bench.answer(first)
    assert executing(bench) == ["small"], "what is free now is kept"
    bench.answer(second)
    assert executing(bench) == ["large"]


def test_one_that_waits_keeps_nobody_from_what_it_does_not_need(make_bench) -> None:
    bench = serve(make_bench, source("a", {"r": 1}), source("b", {"r": 1}), source("c", {"s": 1}), source("d"))
    for model in "abcd":
        bench.submit(model)
    bench.turn()
    assert executing(bench) == ["a", "c", "d"]


@pytest.mark.parametrize("inside", [0, None])
def test_the_resources_of_a_dead_process_are_free(make_bench, inside) -> None:
    bench = serve(make_bench, source("a", {"r": 1}), source("b", {"r": 1}))
    for model in "ab":
        bench.submit(model)
    bench.turn()
    bench.die(key(bench, "a"), inside=inside)
    assert executing(bench) == ["b"]
    bench.answer(key(bench, "b"))
    bench.hello(key(bench, "a"))
    bench.loaded(key(bench, "a"))
    assert executing(bench) == (["a"] if inside == 0 else [])


def test_the_resources_of_a_cancelled_model_are_its_own_until_it_ends(make_bench) -> None:
    bench = serve(make_bench, source("a", {"r": 1}), source("b", {"r": 1}))
    running = bench.submit("a")
    bench.turn()
    bench.submit("b")
    bench.tell(ClientGone(running))
    bench.turn()
    assert executing(bench) == ["a"]
    bench.answer(key(bench, "a"))
    assert executing(bench) == ["b"]


def test_a_passive_instance_needs_nothing(make_bench) -> None:
    bench = serve(
        make_bench, source("a", {"r": 9}, passive=True), source("b", {"r": 1}), limits=(ResourceLimit("r", 1),)
    )
    bench.submit("b")
    bench.turn()
    assert executing(bench) == ["b"]


def test_sequences_execute_only_while_their_instance_has_its_resources(make_bench) -> None:
    message = source("s", {"r": 1}).config.message
    message.max_batch_size = 4
    message.sequence_batching.oldest.max_candidate_sequences = 4
    bench = serve(make_bench, VersionSource("s", 1, "/s", from_message(message)), source("b", {"r": 1}))
    bench.submit("b")
    bench.turn()
    starts = [bench.submit("s", rows=1, correlation_id=id, flags=SEQUENCE_START) for id in (1, 2)]
    bench.turn()
    assert executing(bench) == ["b"]
    bench.answer(key(bench, "b"))
    assert sorted(bench.held(key(bench, "s"))) == starts
    bench.submit("b")
    bench.turn()
    bench.answer(key(bench, "s"))
    assert executing(bench) == ["b"]


def test_a_sequence_that_waits_for_too_long_is_told_though_no_instance_may_execute(make_bench) -> None:
    message = source("s", {"r": 1}).config.message
    message.max_batch_size = 1
    message.sequence_batching.oldest.max_candidate_sequences = 1
    message.sequence_batching.max_sequence_idle_microseconds = 10**6
    bench = serve(make_bench, VersionSource("s", 1, "/s", from_message(message)), source("b", {"r": 1}))
    bench.submit("b")
    bench.turn()
    first, second = (
        bench.submit("s", rows=1, correlation_id=id, flags=SEQUENCE_START, timeout_us=500_000) for id in (1, 2)
    )
    bench.turn()
    bench.sleep(0.6)
    assert bench.response(first) is None and "timeout" in bench.error(second)


# --- what the log says --------------------------------------------------------------------------------------------


def told_of_resources(bench) -> list[tuple[str, str, int]]:
    said = [one.fields for one in bench.said if isinstance(one, Say) and one.event == "resource"]
    return [(fields["device"], fields["resource"], fields["count"]) for fields in said]


def test_the_log_tells_how_much_there_is_of_each_resource_whenever_that_changes(make_bench) -> None:
    models = source("a", {"R1": 3, "G": 2}, shared=("G",)), source("b", {"R1": 5, "G": 2}, 1, 2, ("G",))
    bench = serve(make_bench, models[0], explicit_control=True)
    bench.tell(StartServing())
    assert told_of_resources(bench) == [("GLOBAL", "G", 2), ("0", "R1", 3)]
    bench.said.clear()
    bench.submit("a")
    bench.turn()
    assert told_of_resources(bench) == []
    bench.tell(LoadModels([models[1]]))
    bench.turn()
    assert told_of_resources(bench) == [("GLOBAL", "G", 2), ("0", "R1", 5)]


def test_of_a_resource_that_a_flag_gives_the_log_tells_what_it_gives(make_bench) -> None:
    bench = serve(make_bench, source("a", {"r": 3}), limits=(ResourceLimit("r", 4),))
    assert told_of_resources(bench) == [("0", "r", 4)]


# --- models that call each other ----------------------------------------------------------------------------------


def call(bench, caller: str, callee: str, number: int = 1) -> None:
    stub = key(bench, caller)
    bench.call(stub, callee, number, bench.inside(stub))


def told(bench, caller: str, number: int = 1) -> str:
    """The error that a call was answered with."""
    (message,) = [one for one in bench.sent(key(bench, caller), Answered) if one.call == number]
    return message.response.error[1] if message.response.error is not None else ""


def test_a_call_to_a_model_that_needs_what_the_caller_holds_is_told_so(make_bench) -> None:
    bench = serve(make_bench, source("a", {"r": 3}), source("b", {"r": 2}), limits=(ResourceLimit("r", 4),))
    bench.submit("a")
    bench.turn()
    call(bench, "a", "b")
    assert told(bench, "a") == (
        "Model b - Error when running inference: the call would wait for itself, since model 'b' needs resource 'r', "
        "which 'a' holds while it waits; give them different resources, or more with --rate-limit-resource"
    )
    bench.answer(key(bench, "a"))
    bench.submit("b")
    bench.turn()
    assert executing(bench) == ["b"]


def test_a_call_waits_for_a_resource_that_others_will_give_back(make_bench) -> None:
    models = source("a", {"r": 1}), source("b", {"r": 2}), source("c", {"r": 2})
    bench = serve(make_bench, *models, limits=(ResourceLimit("r", 3),))
    for model in "ac":
        bench.submit(model)
    bench.turn()
    call(bench, "a", "b")
    assert executing(bench) == ["a", "c"] and not bench.sent(key(bench, "a"), Answered)
    bench.answer(key(bench, "c"))
    assert executing(bench) == ["a", "b"]
    bench.answer(key(bench, "b"))
    assert told(bench, "a") == ""


def test_a_circle_over_two_callers_is_found_with_the_call_that_closes_it(make_bench) -> None:
    models = source("a", {"r": 1}), source("c", {"r": 1}), source("b", {"r": 1})
    bench = serve(make_bench, *models, limits=(ResourceLimit("r", 2),))
    for model in "ac":
        bench.submit(model)
    bench.turn()
    call(bench, "a", "b")
    assert not bench.sent(key(bench, "a"), Answered), "'c' may end"
    call(bench, "c", "b")
    assert "which 'a' and 'c' hold while they wait" in told(bench, "c")
    bench.answer(key(bench, "c"))
    bench.answer(key(bench, "b"))
    assert told(bench, "a") == ""


def test_a_call_passes_whoever_waits_for_what_its_caller_holds(make_bench) -> None:
    models = source("a", {"r": 1}), source("b", {"r": 1}), source("large", {"r": 2})
    bench = serve(make_bench, *models, limits=(ResourceLimit("r", 2),))
    bench.submit("a")
    bench.turn()
    bench.submit("large")
    bench.turn()
    call(bench, "a", "b")
    assert executing(bench) == ["a", "b"]


# --- what cannot be loaded ----------------------------------------------------------------------------------------


def failure(bench, model: str) -> str:
    (entry,) = [one for one in bench.core.registry.index(False) if one.name == model]
    return entry.reason


@pytest.mark.parametrize(
    ("limits", "count", "needed"),
    [((ResourceLimit("r", 1),), 1, 4), ((ResourceLimit("r", 9, device=10),), 0, 4), ((ResourceLimit("s", 1),), 0, 4)],
)
def test_a_model_that_could_never_execute_is_not_loaded(make_bench, limits, count: int, needed: int) -> None:
    bench = serve(make_bench, source("a", {"r": needed}), source("b"), limits=limits)
    assert failure(bench, "a") == (
        f'Invalid argument: Resource count for "r" is limited to {count} which will prevent scheduling of one or more '
        f"model instances, the minimum required count is {needed}"
    )
    assert failure(bench, "b") == ""
    assert not [title for title in bench.alive.values() if title.startswith("a")]


def test_a_resource_is_global_or_of_a_device(make_bench) -> None:
    bench = serve(make_bench, source("a", {"r": 1}), source("b", {"r": 1}, shared=("r",)))
    assert failure(bench, "b") == (
        'Invalid argument: Resource "r" is present as both global and device-specific resource in the model '
        "configuration."
    )
    bench.submit("a")
    bench.turn()
    assert executing(bench) == ["a"]


def test_a_global_resource_is_limited_whatever_the_device_of_the_limit(make_bench) -> None:
    bench = serve(make_bench, source("a", {"r": 1}, shared=("r",)), limits=(ResourceLimit("r", 1, device=7),))
    assert failure(bench, "a") == ""


def test_what_is_unloaded_needs_nothing_any_more(make_bench) -> None:
    bench = serve(
        make_bench, source("a", {"r": 4}), source("b", {"r": 2}), source("c", {"r": 2}), explicit_control=True
    )
    bench.tell(StartServing())
    for model in "bc":
        bench.submit(model)
    bench.turn()
    assert executing(bench) == ["b", "c"], "of 4"
    for model in "bc":
        bench.answer(key(bench, model))
    bench.tell(UnloadModel("a", False, lambda error: None))
    bench.turn()
    bench.finish()
    bench.sleep(2)
    for model in "bc":
        bench.submit(model)
    bench.turn()
    assert executing(bench) == ["b"], "of 2"


# --- at random ----------------------------------------------------------------------------------------------------


class LimitedMachine(CoreMachine):
    """Of "r" there are 3, which "m" needs all of, "n" 2 and "d" 1; "d" needs the one global "s", too. "m" is loaded
    again while it serves, or unloaded and loaded."""

    def load_models(self) -> None:
        self.loads = 0
        sources = [self.m(), source("n", {"r": 2}, 2, 3), source("d", {"r": 1, "s": 1}, 3, 2, ("s",), decoupled=True)]
        self.bench.tell(LoadModels(sources))
        self.bench.tell(StartServing())
        self.bench.turn()

    def m(self) -> VersionSource:
        self.loads += 1
        return source("m", {"r": 3}, fingerprint=str(self.loads))

    @rule()
    def load(self) -> None:
        self.bench.tell(LoadModel("m", None, lambda error: None))
        for poll in [one for one in self.bench.said if isinstance(one, Poll)]:
            self.bench.said.remove(poll)
            self.bench.tell(Polled(poll.number, "m", [self.m()]))
        self.bench.turn()

    @rule()
    def unload(self) -> None:
        self.bench.tell(UnloadModel("m", False, lambda error: None))
        self.bench.turn()
        self.bench.finish()

    def teardown(self) -> None:
        super().teardown()
        self.bench.finish()


@pytest.mark.timeout(300)
def test_resources_are_kept_and_nobody_starves(make_bench) -> None:
    LimitedMachine.make_bench = staticmethod(lambda: make_bench(rate_limits=(), explicit_control=True))
    run_random_events(LimitedMachine, usual=60)
