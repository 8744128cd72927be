"""Models that call each other at random, each waiting for its call: everything comes to an end all the same."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.messages import Answered

MODELS = {"a": 1, "b": 2, "c": 1, "d": 3}


def waiting(bench, key: str, made: dict[str, set[int]]) -> bool:
    """Whether the model in that stub waits for a call."""
    finals = {message.call for message in bench.sent(key, Answered) if message.response.final}
    return bool(made.get(key, set()) - finals)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(st.sampled_from(sorted(MODELS)), min_size=1, max_size=8),
    steps=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([None, *MODELS])), max_size=60),
)
def test_whatever_waits_for_whom_every_request_is_answered(make_bench, requests, steps):
    bench = make_bench()
    for name, instances in MODELS.items():
        bench.load(name, instances)
    bench.bring_up()
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
