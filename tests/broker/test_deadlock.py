"""Models that call each other at random, each waiting for its call: everything comes to an end all the same."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.settings import ResourceLimit
from protocol.messages import Answered
from tests.broker.test_rate_limiter import serve, source
from tests.random_events import examples

MODELS = {"a": 1, "b": 2, "c": 1, "d": 3}


def waiting(bench, key: str, made: dict[str, set[int]]) -> bool:
    """Whether the model in that stub waits for a call."""
    finals = {message.call for message in bench.sent(key, Answered) if message.response.final}
    return bool(made.get(key, set()) - finals)


REQUESTS = st.lists(st.sampled_from(sorted(MODELS)), min_size=1, max_size=8)
STEPS = st.lists(st.tuples(st.integers(0, 6), st.sampled_from([None, *MODELS])), max_size=60)
often = settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@often
@given(requests=REQUESTS, steps=STEPS)
def test_whatever_waits_for_whom_every_request_is_answered(make_bench, requests, steps):
    bench = make_bench()
    for name, instances in MODELS.items():
        bench.load(name, instances)
    bench.bring_up()
    answers_all(bench, requests, steps)


@often
@given(
    needs=st.lists(st.dictionaries(st.sampled_from("rs"), st.integers(1, 3)), min_size=4, max_size=4),
    requests=REQUESTS,
    steps=STEPS,
)
def test_whatever_waits_for_which_resource_every_request_is_answered(make_bench, needs, requests, steps):
    sources = [source(name, need, instances=MODELS[name]) for name, need in zip(MODELS, needs, strict=True)]
    bench = serve(make_bench, *sources, limits=(ResourceLimit("r", 3), ResourceLimit("s", 4)))
    answers_all(bench, requests, steps)


def answers_all(bench, requests: list[str], steps: list[tuple[int, str | None]]) -> None:
    """Each step lets one of the models that run end, or call another; then all that can end does."""
    submitted = [bench.submit(model) for model in requests]
    bench.turn()
    made: dict[str, set[int]] = {}
    number = 0

    def free() -> list[str]:
        return [key for key in sorted(bench.alive) if bench.held(key) and not waiting(bench, key, made)]

    for which, model in steps:
        running = free()
        if not running:
            break
        key = running[which % len(running)]
        if model is None:
            bench.answer(key)
        else:
            number += 1
            made.setdefault(key, set()).add(number)
            bench.call(key, model, number, bench.inside(key))
    while running := free():
        bench.answer(running[0])
    assert all(bench.response(one) is not None for one in submitted)
    assert bench.core.in_flight() == {}
