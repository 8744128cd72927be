from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.custom import COUNTER, GAUGE, HISTOGRAM, CustomMetrics, MetricRefused


@pytest.fixture
def metrics() -> CustomMetrics:
    return CustomMetrics()


def shown(metrics: CustomMetrics) -> dict[str, dict[str, float]]:
    """Value by labels by family."""
    return {
        family.name: {",".join(map("=".join, one.labels)): one.value for one in family}
        for family in metrics
        if list(family)
    }


def refused(text: str):
    return pytest.raises(MetricRefused, match=f"^{re.escape(text)}$")


# --- sharing ----------------------------------------------------------------------------------------------------


def test_families_of_one_name_and_kind_are_one_and_the_first_description_wins(metrics):
    metrics.new_family("a", 1, "hits", "first", COUNTER)
    metrics.new_family("b", 1, "hits", "second", COUNTER)
    metrics.new_metric("a", 1, 1, {"x": "1", "y": "2"}, None)
    metrics.new_metric("b", 1, 1, {"y": "2", "x": "1"}, None)
    metrics.update("a", 1, "increment", 2)
    metrics.update("b", 1, "increment", 0.5)
    assert metrics.update("a", 1, "value", 0) == 2.5
    assert shown(metrics) == {"hits": {"x=1,y=2": 2.5}}
    assert [family.help for family in metrics] == ["first"]


def test_a_name_has_one_kind_at_a_time(metrics):
    metrics.new_family("a", 1, "hits", "", COUNTER)
    with refused("Family name already exists with different type"):
        metrics.new_family("b", 1, "hits", "", GAUGE)
    metrics.drop("a", [1], [])
    metrics.new_family("b", 1, "hits", "", GAUGE)


@pytest.mark.parametrize("kind", [COUNTER, GAUGE])
def test_the_server_s_own_names_are_taken(metrics, kind):
    with refused("Family name already exists"):
        metrics.new_family("a", 1, "nv_inference_count", "", kind)
    metrics.new_family("a", 1, "nv_mine", "", kind)


def test_a_histogram_of_equal_labels_keeps_its_buckets(metrics):
    metrics.new_family("a", 1, "sizes", "", HISTOGRAM)
    metrics.new_metric("a", 1, 1, {}, [1, 2])
    metrics.new_metric("a", 2, 1, {}, [5])
    metrics.update("a", 2, "observe", 1.5)
    [[metric]] = metrics
    assert (metric.bounds, metric.counts, metric.sum) == ((1, 2), [0, 1, 0], 1.5)


# --- lifetimes --------------------------------------------------------------------------------------------------


def test_a_family_object_keeps_its_metrics(metrics):
    metrics.new_family("a", 1, "hits", "", COUNTER)
    metrics.new_metric("a", 1, 1, {}, None)
    metrics.update("a", 1, "increment", 4)
    metrics.drop("a", [], [1])
    assert shown(metrics) == {"hits": {"": 4}}
    metrics.new_metric("a", 2, 1, {}, None)
    assert metrics.update("a", 2, "value", 0) == 4
    metrics.drop("a", [1], [])
    assert shown(metrics) == {}


def test_a_shared_metric_lives_until_the_last_family_object_has_gone(metrics):
    for owner in "ab":
        metrics.new_family(owner, 1, "hits", "", GAUGE)
        metrics.new_metric(owner, 1, 1, {}, None)
    metrics.update("a", 1, "set", 3)
    metrics.drop("a", [1], [])
    assert metrics.update("b", 1, "value", 0) == 3
    metrics.drop_owner("b")
    assert list(metrics) == []


def test_a_family_without_metrics_is_held_and_not_shown(metrics):
    metrics.new_family("a", 1, "hits", "", COUNTER)
    assert (len(list(metrics)), shown(metrics)) == (1, {})


def test_a_metric_whose_family_has_gone_cannot_be_used(metrics):
    metrics.new_family("a", 1, "hits", "", COUNTER)
    metrics.new_metric("a", 1, 1, {}, None)
    metrics.drop("a", [1], [])
    with refused("There is no such metric"):
        metrics.update("a", 1, "increment", 1)
    with refused("There is no such metric family"):
        metrics.new_metric("a", 2, 1, {}, None)


def test_what_is_not_known_can_be_dropped(metrics):
    metrics.drop("nobody", [1], [2])
    metrics.drop_owner("nobody")
    metrics.new_family("a", 1, "hits", "", COUNTER)
    metrics.drop("a", [7], [8])
    assert len(list(metrics)) == 1


class Held:
    """What the owners should hold, told the same."""

    def __init__(self) -> None:
        self.families: dict[tuple[str, int], str] = {}
        self.labels: dict[tuple[str, int], set[str]] = {}
        self.metrics: dict[tuple[str, int], tuple[tuple[str, int], str]] = {}
        self.values: dict[tuple[str, str], float] = {}

    def shown(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for held, name in self.families.items():
            for label in self.labels[held]:
                found.setdefault(name, {})[label] = self.values[name, label]
        return found

    def forget(self, held: tuple[str, int]) -> None:
        if held in self.families:
            del self.families[held], self.labels[held]
            left = self.shown()
            self.values = {key: value for key, value in self.values.items() if key[1] in left.get(key[0], {})}


NUMBER = st.integers(0, 3)
STEP = st.one_of(
    st.tuples(st.just("family"), st.sampled_from("ab"), st.sampled_from(["f", "g"])),
    st.tuples(st.just("metric"), st.sampled_from("ab"), NUMBER, st.sampled_from(["", "l=1", "l=2"])),
    st.tuples(st.just("increment"), st.sampled_from("ab"), NUMBER),
    st.tuples(st.just("drop"), st.sampled_from("ab"), NUMBER),
    st.tuples(st.just("die"), st.sampled_from("ab")),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_what_is_exposed_is_what_somebody_holds(steps):
    metrics, expected = CustomMetrics(), Held()
    last = dict.fromkeys("ab", 0)
    for what, owner, *more in steps:
        number = last[owner] + 1 if what in ("family", "metric") else 0
        last[owner] = max(number, last[owner])
        if what == "family":
            metrics.new_family(owner, number, more[0], "", GAUGE)
            expected.families[owner, number], expected.labels[owner, number] = more[0], set()
        elif what == "metric":
            own = [held for held in expected.families if held[0] == owner]
            if own:
                held = own[more[0] % len(own)]
                labels = dict([more[1].split("=")]) if more[1] else {}
                metrics.new_metric(owner, number, held[1], labels, None)
                expected.labels[held].add(more[1])
                expected.metrics[owner, number] = held, more[1]
                expected.values.setdefault((expected.families[held], more[1]), 0.0)
        elif what == "increment":
            usable = [
                key for key, (held, _) in expected.metrics.items() if key[0] == owner and held in expected.families
            ]
            if usable:
                key = usable[more[0] % len(usable)]
                held, label = expected.metrics[key]
                metrics.update(owner, key[1], "increment", 1)
                expected.values[expected.families[held], label] += 1
        elif what == "drop":
            own = [held for held in expected.families if held[0] == owner]
            if own:
                held = own[more[0] % len(own)]
                metrics.drop(owner, [held[1]], [])
                expected.forget(held)
        else:
            metrics.drop_owner(owner)
            for held in [held for held in expected.families if held[0] == owner]:
                expected.forget(held)
            expected.metrics = {key: value for key, value in expected.metrics.items() if key[0] != owner}
        metrics.check()
        assert shown(metrics) == expected.shown()


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a b", "1a", "a-b", "ä", "__a", "a\n"])
def test_malformed_names_are_refused(metrics, name):
    with refused("Invalid metric name"):
        metrics.new_family("a", 1, name, "", COUNTER)
    metrics.new_family("a", 1, "a:b_1", "", COUNTER)
    with refused("Invalid label name"):
        metrics.new_metric("a", 1, 1, {name: "x"}, None)
    with refused("Invalid label name"):
        metrics.new_metric("a", 1, 1, {"a:b": "x"}, None)


def test_a_histogram_s_bounds_are_not_a_label_of_the_model(metrics):
    metrics.new_family("a", 1, "sizes", "", HISTOGRAM)
    with refused("Invalid label name"):
        metrics.new_metric("a", 1, 1, {"le": "x"}, [1])


@pytest.mark.parametrize("buckets", [[2, 1], [1, 1], [math.nan], [1, math.nan], [math.inf, math.inf]])
def test_bounds_must_rise(metrics, buckets):
    metrics.new_family("a", 1, "sizes", "", HISTOGRAM)
    with refused("Bucket Boundaries must be strictly sorted"):
        metrics.new_metric("a", 1, 1, {}, buckets)


@pytest.mark.parametrize("kind, buckets", [(COUNTER, []), (GAUGE, [1.0])])
def test_only_a_histogram_has_buckets(metrics, kind, buckets):
    metrics.new_family("a", 1, "hits", "", kind)
    with refused("Unexpected buckets found."):
        metrics.new_metric("a", 1, 1, {}, buckets)
    metrics.new_family("a", 2, "sizes", "", HISTOGRAM)
    with refused("Missing required buckets."):
        metrics.new_metric("a", 1, 2, {}, None)


@pytest.mark.parametrize(
    "kind, operation",
    [
        (COUNTER, "set"),
        (COUNTER, "observe"),
        (GAUGE, "observe"),
        (HISTOGRAM, "increment"),
        (HISTOGRAM, "set"),
        (HISTOGRAM, "value"),
        (GAUGE, "divide"),
    ],
)
def test_each_kind_has_its_operations(metrics, kind, operation):
    metrics.new_family("a", 1, "hits", "", kind)
    metrics.new_metric("a", 1, 1, {}, [] if kind == HISTOGRAM else None)
    with refused(f"TRITONSERVER_METRIC_KIND_{kind.upper()} does not support {operation.capitalize()}"):
        metrics.update("a", 1, operation, 1)


@pytest.mark.parametrize("value", [-1, -0.001, math.nan, -math.inf])
def test_a_counter_never_falls(metrics, value):
    metrics.new_family("a", 1, "hits", "", COUNTER)
    metrics.new_metric("a", 1, 1, {}, None)
    metrics.update("a", 1, "increment", 0)
    with refused("TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."):
        metrics.update("a", 1, "increment", value)
    assert metrics.update("a", 1, "value", 0) == 0


def test_a_gauge_goes_both_ways(metrics):
    metrics.new_family("a", 1, "level", "", GAUGE)
    metrics.new_metric("a", 1, 1, {}, None)
    for operation, value in (("set", 7.25), ("increment", -10), ("increment", 0.5)):
        metrics.update("a", 1, operation, value)
    assert metrics.update("a", 1, "value", 0) == -2.25


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), unique=True, max_size=6).map(sorted),
    st.lists(st.floats(allow_nan=False)),
)
def test_an_observation_is_in_the_first_bucket_that_holds_it(bounds, observations):
    metrics = CustomMetrics()
    metrics.new_family("a", 1, "sizes", "", HISTOGRAM)
    metrics.new_metric("a", 1, 1, {}, bounds)
    for value in observations:
        metrics.update("a", 1, "observe", value)
    [[metric]] = metrics
    for index, bound in enumerate(bounds):
        assert sum(metric.counts[: index + 1]) == sum(value <= bound for value in observations)
    assert sum(metric.counts) == len(observations)
