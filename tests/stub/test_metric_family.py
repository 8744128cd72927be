from __future__ import annotations

import gc
import os
import threading
from typing import Any, Callable, Iterator

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from _tensorbus_app.stub import calls, metric_family
from _tensorbus_app.stub.shared import messages

from broker.custom_metrics import MetricsOfModels
from metrics.custom import CustomMetrics
from metrics.exposition import render
from metrics.host import HostSample
from protocol.codec import decode_from_stub
from stub.codec import encode

Family = pb_utils.MetricFamily
COUNTER, GAUGE, HISTOGRAM = Family.COUNTER, Family.GAUGE, Family.HISTOGRAM
GONE = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class Instance:
    """As the roster knows it."""

    class spec:
        name = "probe_0_0"

    key = "i1"
    host = ""


class Roster:
    def serving(self, key: str) -> Any:
        return None, Instance


class Server:
    """What a stub asks is answered at once, by the broker's own part; messages are what they would be on the wire."""

    def __init__(self) -> None:
        self.exposed = CustomMetrics()
        self._broker = MetricsOfModels(self.exposed, Roster())  # type: ignore[arg-type]

    def ask(self, make: Callable[[int], Any]) -> Any:
        (action,) = self._broker.asked("i1", decode_from_stub(encode(make(1))), (), 0)
        return action.message

    def tell(self, message: Any) -> None:
        assert not self._broker.asked("i1", decode_from_stub(encode(message)), (), 0)

    def drop_metric(self, is_family: bool, number: int) -> None:
        families, metrics = ([number], []) if is_family else ([], [number])
        dropped = messages.DropMetrics(messages.DROP_METRICS, families, metrics)
        self._broker.dropped("i1", decode_from_stub(encode(dropped)), (), 0)

    def lines(self) -> list[str]:
        self.exposed.check()
        return render([], HostSample(), 0, self.exposed).splitlines()[6:]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    monkeypatch.setattr(calls._connection, "calls", server)
    monkeypatch.setattr(metric_family, "_instance", "probe_0_0")
    yield server
    gc.collect()


@pytest.fixture(params=["a server", "none"])
def anywhere(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("server") if request.param == "a server" else None


def raised(make: Callable[[], Any], kind: type = pb_utils.TritonModelException) -> str:
    with pytest.raises(kind) as caught:
        make()
    return str(caught.value)


# --- with and without a server ----------------------------------------------------------------------------------


def test_a_counter_counts(anywhere: Any) -> None:
    family = Family(name="hits", description="", kind=COUNTER)
    metric = family.Metric(labels={"a": "1"})
    assert metric.value() == 0.0
    for value in (3.5, 1, True, np.float32(0.5), 0):
        assert metric.increment(value) is None
    assert metric.value() == 6.0
    assert family.Metric({"a": "1"}).value() == 6.0
    assert family.Metric().value() == 0.0


def test_a_gauge_can_be_set(anywhere: Any) -> None:
    family = Family("level", "", GAUGE)
    metric = family.Metric()
    metric.set(7)
    metric.increment(-9.5)
    assert metric.value() == -2.5


def test_only_what_its_kind_supports_can_be_done_to_a_metric(anywhere: Any) -> None:
    start = "Failed to process the request for model 'probe_0_0', message: " if anywhere else ""
    counter, gauge, histogram = Family("c", "", COUNTER), Family("g", "", GAUGE), Family("h", "", HISTOGRAM)
    ours = "TRITONSERVER_METRIC_KIND_"
    metric = counter.Metric()
    assert raised(lambda: metric.set(1)) == f"Failed to set metric value: {start}{ours}COUNTER does not support Set"
    assert raised(lambda: metric.observe(1)).endswith("COUNTER does not support Observe")
    assert raised(lambda: metric.increment(-1)) == (
        f"Failed to increment metric value: {start}{ours}COUNTER can only be incremented monotonically by non-negative "
        "values."
    )
    gauge_metric = gauge.Metric()
    assert raised(lambda: gauge_metric.observe(1)) == (
        f"Failed to observe metric value: {start}{ours}GAUGE does not support Observe"
    )
    observed = histogram.Metric(buckets=[1.0])
    observed.observe(2)
    assert raised(observed.value) == f"Failed to get metric value: {start}{ours}HISTOGRAM does not support Value"
    assert raised(lambda: observed.increment(1)).endswith("HISTOGRAM does not support Increment")
    assert raised(lambda: observed.set(1)).endswith("HISTOGRAM does not support Set")


def test_a_metric_outlives_its_family_and_cannot_be_used_any_more(anywhere: Any) -> None:
    family = Family("hits", "", COUNTER)
    metric = family.Metric()
    del family
    gc.collect()
    assert raised(lambda: metric.increment(1)) == "Failed to increment metric value: " + GONE
    assert raised(lambda: metric.set(1)) == "Failed to set metric value: " + GONE
    assert raised(lambda: metric.observe(1)) == "Failed to observe metric value: " + GONE
    assert raised(metric.value) == "Failed to get metric value: " + GONE


def test_threads_lose_no_increment(anywhere: Any) -> None:
    family = Family("hits", "", COUNTER)
    metric = family.Metric()
    threads = [threading.Thread(target=lambda: [metric.increment(1) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metric.value() == 800


@pytest.mark.parametrize("kind", [0, None, "COUNTER"])
def test_a_kind_is_no_number(anywhere: Any, kind: Any) -> None:
    assert "incompatible constructor arguments" in raised(lambda: Family("a", "d", kind), TypeError)


@pytest.mark.parametrize("name, description", [(3, "d"), ("a", None), (None, "d")])
def test_names_and_descriptions_are_text(anywhere: Any, name: Any, description: Any) -> None:
    assert "incompatible constructor arguments" in raised(lambda: Family(name, description, COUNTER), TypeError)


@pytest.mark.parametrize("labels", [["a"], "a", 3])
def test_labels_are_a_dictionary(anywhere: Any, labels: Any) -> None:
    family = Family("a", "", COUNTER)
    assert raised(lambda: family.Metric(labels)) == "Failed to create metric. Labels must be a dictionary."


def test_label_values_are_text(server: Server) -> None:
    family = Family("a", "", COUNTER)
    for value in (1, None, ["x"]):
        assert raised(lambda value=value: family.Metric({"a": value})) == (
            "Error when creating Metric: Failed to process the request for model 'probe_0_0', message: "
            "attempt to access JSON non-string as string"
        )
    assert "not JSON serializable" in raised(lambda: family.Metric({"a": b"x"}), TypeError)


def test_buckets_are_a_list_of_numbers_and_for_histograms(anywhere: Any) -> None:
    counter, histogram = Family("c", "", COUNTER), Family("h", "", HISTOGRAM)
    assert raised(lambda: histogram.Metric(buckets=(1.0,))) == "Failed to create metric. Buckets must be a list."
    assert raised(lambda: counter.Metric(buckets=[])) == "Failed to create metric. Unexpected buckets found."
    assert raised(histogram.Metric) == "Failed to create metric. Missing required buckets."
    for bound in ("1.5", None):
        text = raised(lambda bound=bound: histogram.Metric(buckets=[bound]), RuntimeError)
        assert text.startswith("Unable to cast Python instance to C++ type")
    histogram.Metric(buckets=[])
    histogram.Metric(labels={}, buckets=[1, np.float32(2.5)])


@pytest.mark.parametrize("value", [None, "1", [1]])
def test_values_are_numbers(anywhere: Any, value: Any) -> None:
    family = Family("g", "", GAUGE)
    metric = family.Metric()
    for operation in (metric.increment, metric.set, metric.observe):
        assert "incompatible function arguments" in raised(lambda op=operation: op(value), TypeError)


def test_a_metric_is_made_by_its_family_alone() -> None:
    family = Family("g", "", GAUGE)
    kind = type(family.Metric())
    assert raised(kind, TypeError) == "c_python_backend_utils.Metric: No constructor defined!"


# --- with one ---------------------------------------------------------------------------------------------------


def test_what_is_made_is_exposed(server: Server) -> None:
    family = Family("hh", "sizes", HISTOGRAM)
    metric = family.Metric(labels={"z": "1"}, buckets=[0.1, 1])
    metric.observe(0.5)
    metric.observe(20)
    assert server.lines() == [
        "# HELP hh sizes",
        "# TYPE hh histogram",
        'hh_count{z="1"} 2',
        'hh_sum{z="1"} 20.5',
        'hh_bucket{z="1",le="0.1"} 0',
        'hh_bucket{z="1",le="1"} 1',
        'hh_bucket{z="1",le="+Inf"} 2',
    ]


def test_it_is_exposed_while_the_family_object_lives(server: Server) -> None:
    family = Family("hits", "", COUNTER)
    family.Metric().increment(4)
    assert server.lines()[-1] == "hits 4"
    assert family.Metric().value() == 4
    del family
    gc.collect()
    assert server.lines() == []


def test_families_of_one_name_share_and_the_last_one_keeps(server: Server) -> None:
    first, second = Family("hits", "first", COUNTER), Family("hits", "second", COUNTER)
    metric, same = first.Metric({"a": "1", "b": "2"}), second.Metric({"b": "2", "a": "1"})
    metric.increment(2)
    assert same.value() == 2
    del first
    gc.collect()
    same.increment(1)
    assert server.lines() == ["# HELP hits first", "# TYPE hits counter", 'hits{a="1",b="2"} 3']


def test_what_the_server_refuses_is_told(server: Server) -> None:
    start = "Failed to process the request for model 'probe_0_0', message: "
    family, histogram = Family("hits", "", COUNTER), Family("hh", "", HISTOGRAM)
    made = "Error when creating MetricFamily: " + start
    assert raised(lambda: Family("a b", "", COUNTER)) == made + "Invalid metric name"
    assert raised(lambda: Family("hits", "", GAUGE)) == made + "Family name already exists with different type"
    of_it = "Error when creating Metric: " + start
    assert raised(lambda: family.Metric({"a b": "x"})) == of_it + "Invalid label name"
    assert raised(lambda: family.Metric({1: "x"})) == of_it + "Invalid label name"
    assert raised(lambda: histogram.Metric(buckets=[2, 1])) == of_it + "Bucket Boundaries must be strictly sorted"
    assert server.lines() == []


def test_a_family_that_was_refused_is_dropped_without_a_word(server: Server) -> None:
    raised(lambda: Family("a b", "", COUNTER))
    raised(lambda: Family(3, "", COUNTER), TypeError)
    gc.collect()


def test_once_the_server_has_done_with_the_instance_a_metric_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Family("hits", "", COUNTER)
    metric = family.Metric()
    monkeypatch.setattr(calls._connection, "calls", None)
    assert raised(metric.value) == "Failed to get metric value: no server is listening"
    assert raised(family.Metric) == "Error when creating Metric: no server is listening"


def test_a_process_that_the_model_forked_drops_nothing_of_its_parent_s(server: Server) -> None:
    family = Family("hits", "", COUNTER)
    metric = family.Metric()
    family._family.object.pid = metric._object.pid = os.getpid() + 1
    del metric, family
    gc.collect()
    assert server.lines()[-1] == "hits 0"
