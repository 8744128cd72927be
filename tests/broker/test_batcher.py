"""Which requests make one execution: sizes, shapes and waiting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.batcher import DELAY as DELAY_PASSED
from broker.batcher import FULL, NO_DELAY, PREFERRED, SHAPE, Batching, Cut, batching, cut
from broker.model_config import ModelConfigMessage, from_message
from broker.queue import Pending
from protocol.messages import Request, TensorRef

RULES = Batching(8, frozenset({8}), 0, frozenset(), False)
DELAY = 1000


def waiting(*requests, arrived_ns: int = 0) -> list[Pending]:
    """Each is a number of rows, or the shape of "X", or shapes by name."""
    pendings = []
    for id, one in enumerate(requests):
        shapes = one if isinstance(one, dict) else {"X": one if isinstance(one, tuple) else (one, 4)}
        inputs = [TensorRef(name, "FP32", shape, 0) for name, shape in shapes.items()]
        rows = next(iter(shapes.values()))[0]
        pendings.append(Pending(Request(id, "m", 1, inputs), (), None, rows, arrived_ns))
    return pendings


def test_without_a_delay_all_that_fits_leaves_at_once():
    assert cut(waiting(1, 2, 1), RULES, now=0) == Cut(3, why=NO_DELAY)
    assert cut([], RULES, now=0) == Cut(0)


def test_a_request_that_does_not_fit_waits_for_the_next_batch_and_is_not_overtaken():
    assert cut(waiting(3, 6, 1), RULES, now=0) == Cut(1, why=PREFERRED)
    assert cut(waiting(4, 4, 1), RULES, now=0) == Cut(2, why=FULL)


def test_with_a_delay_a_batch_waits_until_its_oldest_has_waited_for_so_long():
    rules = RULES._replace(delay_ns=DELAY)
    assert cut(waiting(1, 2, arrived_ns=5), rules, now=6) == Cut(0, 5 + DELAY)
    assert cut(waiting(1, 2, arrived_ns=5), rules, now=5 + DELAY) == Cut(2, why=DELAY_PASSED)


@pytest.mark.parametrize("delay_ns", [0, DELAY])
def test_the_largest_preferred_size_in_reach_leaves_at_once(delay_ns):
    rules = RULES._replace(delay_ns=delay_ns, preferred=frozenset({2, 4}))
    assert cut(waiting(1, 1), rules, now=0) == Cut(2, why=PREFERRED)
    assert cut(waiting(1, 1, 1), rules, now=0) == Cut(2, why=PREFERRED)
    assert cut(waiting(1, 1, 1, 1, 1), rules, now=0) == Cut(4, why=PREFERRED)


def test_once_the_delay_has_passed_all_leave_whatever_sizes_are_preferred():
    rules = RULES._replace(delay_ns=DELAY, preferred=frozenset({2, 4}))
    assert cut(waiting(1, 1, 1), rules, now=DELAY) == Cut(3, why=DELAY_PASSED)


@pytest.mark.parametrize("delay_ns", [0, DELAY])
def test_what_would_exceed_the_largest_preferred_size_waits_for_the_next_batch(delay_ns):
    rules = RULES._replace(delay_ns=delay_ns, preferred=frozenset({2, 6}))
    assert cut(waiting(3, 4), rules, now=0) == Cut(1, why=PREFERRED)
    assert cut(waiting(7, 1), rules, now=0) == Cut(1, why=PREFERRED)
    assert cut(waiting(7), rules, now=0) == Cut(1, why=FULL)


def test_a_batch_has_waited_as_long_as_its_oldest_request_which_need_not_be_the_first():
    """A request of better priority is the first, however late it has come."""
    rules = RULES._replace(delay_ns=DELAY)
    requests = [*waiting(1, arrived_ns=700), *waiting(1, arrived_ns=0)]
    assert cut(requests, rules, now=900) == Cut(0, DELAY)
    assert cut(requests, rules, now=DELAY) == Cut(2, why=DELAY_PASSED)


def test_inputs_of_other_shapes_close_the_batch_unless_they_are_ragged():
    rules = RULES._replace(stacked=frozenset({"X"}), delay_ns=DELAY)
    shapes = [(1, 3), (1, 3), (2, 3), (1, 5)]
    assert cut(waiting(*shapes), rules, now=0) == Cut(3, why=SHAPE)
    assert cut(waiting(*shapes), rules._replace(stacked=frozenset()), now=DELAY) == Cut(4, why=DELAY_PASSED)


def test_requests_with_other_inputs_are_not_batched_where_inputs_are_optional():
    both, one = {"X": (1, 3), "Y": (1, 3)}, {"X": (1, 3)}
    rules = RULES._replace(optional=True)
    assert cut(waiting(both, both, one), rules, now=0) == Cut(2, why=SHAPE)


def test_a_client_s_empty_batch_counts_as_one():
    assert cut(waiting(*[0] * 10), RULES, now=0) == Cut(8, why=FULL)


def test_what_the_configuration_says():
    message = ModelConfigMessage(name="m", max_batch_size=8)
    message.dynamic_batching.preferred_batch_size[:] = [4, 2]
    message.dynamic_batching.max_queue_delay_microseconds = 50
    for name, dims, fields in (
        ("FIXED", [4], {}),
        ("RAGGED", [-1], {"allow_ragged_batch": True}),
        ("X", [-1, 2], {"optional": True}),
    ):
        message.input.add(name=name, data_type="TYPE_FP32", dims=dims, **fields)
    assert batching(from_message(message)) == Batching(8, frozenset({2, 4}), 50_000, frozenset({"X"}), True)


REQUESTS = st.lists(st.tuples(st.integers(0, 8), st.sampled_from([3, 5])), min_size=1, max_size=20)
RULES_OF_ALL_KINDS = st.builds(
    Batching,
    st.just(8),
    st.frozensets(st.integers(1, 8), min_size=1, max_size=3),
    st.sampled_from([0, DELAY]),
    st.sampled_from([frozenset(), frozenset({"X"})]),
    st.booleans(),
)


@given(REQUESTS, RULES_OF_ALL_KINDS, st.integers(0, 2 * DELAY))
def test_a_batch_is_never_too_large_never_mixed_and_never_waits_for_longer_than_the_delay(shapes, rules, now):
    requests = waiting(*shapes)
    count, again_ns, why = cut(requests, rules, now)
    batch = requests[:count]
    assert sum(max(1, one.batch_size) for one in batch) <= rules.max_size
    if rules.stacked:
        assert len({one.request.inputs[0].shape[1:] for one in batch}) <= 1
    if not count:
        assert now < again_ns == rules.delay_ns
        assert not why
    else:
        assert again_ns == 0
        assert why


@given(REQUESTS, RULES_OF_ALL_KINDS, st.integers(0, 2 * DELAY))
def test_a_batch_is_closed_when_it_has_a_preferred_size_or_cannot_have_one(shapes, rules, now):
    requests = waiting(*shapes)
    count = cut(requests, rules, now).requests
    fits = [n for n in range(1, len(requests) + 1) if is_batch(requests[:n], rules)]
    preferred = [n for n in fits if total(requests[:n]) in rules.preferred]
    largest = max(rules.preferred)
    late = rules.delay_ns and now >= rules.delay_ns
    below = [n for n in fits if total(requests[:n]) <= largest]
    if late:
        assert count == fits[-1]
    elif preferred:
        assert count == preferred[-1]
    elif total(requests[: fits[-1]]) > largest or (fits[-1] < len(requests) and below == fits):
        exceeded = total(requests[: below[-1] + 1]) > largest if below and below[-1] < len(requests) else False
        assert count == (below[-1] if below and (exceeded or below == fits) else 1)
    elif rules.delay_ns and total(requests) < largest:
        assert count == 0
    else:
        assert count == len(requests)


def is_batch(requests: list[Pending], rules: Batching) -> bool:
    widths = {one.request.inputs[0].shape[1:] for one in requests}
    return (len(requests) == 1 or total(requests) <= rules.max_size) and (not rules.stacked or len(widths) == 1)


def total(requests: list[Pending]) -> int:
    return sum(max(1, one.batch_size) for one in requests)
