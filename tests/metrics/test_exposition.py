import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from metrics.broker_record import BrokerRecord
from metrics.cache_record import CacheRecord
from metrics.catalogue import CATALOGUE
from metrics.custom import CustomMetrics
from metrics.exposition import render
from metrics.gateway_record import GatewayRecord
from metrics.host import HostSample
from metrics.pressure import Pressure
from metrics.recorder import BACKEND, ModelRecorder, Recorder
from metrics.stub_host_record import StubHostRecord

HOST = HostSample(
    cpu_utilization=0.25, memory_total_bytes=2**34, memory_used_bytes=2**33, shm_total_bytes=2**30, shm_used_bytes=5
)
OF_OTHER_SERVICES = ("tensorbus_gateway_", "tensorbus_stub_host_", "tensorbus_broker_")
OF_A_SERVER = [family for family in CATALOGUE if not family.name.startswith(OF_OTHER_SERVICES)]
PER_MODEL = ("nv_inference_", "nv_model_", "tensorbus_")


def recorder_with_traffic(model: str = "m", tags: dict[str, str] | None = None) -> ModelRecorder:
    recorder = ModelRecorder(model, 1, tags)
    recorder.queued()
    recorder.executed(3, 1_000, 2_000, 3_000)
    recorder.succeeded(3, 9_999, 1_500, 1_000, 2_000, 3_000, now_ms=1)
    recorder.failed(BACKEND, 5_000)
    recorder.load_duration_s = 0.125
    recorder.closed = {"full": 0}
    recorder.batch_closed("full")
    return recorder


def test_every_figure_stands_under_its_name_with_integers_bare() -> None:
    lines = render([recorder_with_traffic()], HOST, 268435456).splitlines()

    assert [line for line in lines if not line.startswith("#")] == [
        'nv_inference_request_success{model="m",version="1"} 1',
        'nv_inference_request_failure{model="m",reason="BACKEND",version="1"} 1',
        'nv_inference_request_failure{model="m",reason="CANCELED",version="1"} 0',
        'nv_inference_request_failure{model="m",reason="OTHER",version="1"} 0',
        'nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 0',
        'nv_inference_count{model="m",version="1"} 3',
        'nv_inference_exec_count{model="m",version="1"} 1',
        'nv_inference_request_duration_us{model="m",version="1"} 9',
        'nv_inference_queue_duration_us{model="m",version="1"} 1',
        'nv_inference_compute_input_duration_us{model="m",version="1"} 1',
        'nv_inference_compute_infer_duration_us{model="m",version="1"} 2',
        'nv_inference_compute_output_duration_us{model="m",version="1"} 3',
        'nv_inference_pending_request_count{model="m",version="1"} 1',
        'nv_model_load_duration_secs{model="m",version="1"} 0.125',
        'tensorbus_stub_restarts_total{model="m",version="1"} 0',
        'tensorbus_batch_closed_total{model="m",reason="full",version="1"} 1',
        "nv_pinned_memory_pool_total_bytes 268435456",
        "nv_pinned_memory_pool_used_bytes 0",
        "nv_cpu_utilization 0.25",
        "nv_cpu_memory_total_bytes 17179869184",
        "nv_cpu_memory_used_bytes 8589934592",
        "tensorbus_shm_total_bytes 1073741824",
        "tensorbus_shm_used_bytes 5",
    ]


def test_each_family_has_one_help_and_one_type_before_its_children() -> None:
    models = [recorder_with_traffic("a"), recorder_with_traffic("b")]
    models[1].cached = True
    lines = render(models, HOST, 0, pressure=Pressure(), cache=CacheRecord(1)).splitlines()
    at = lines.index("# TYPE nv_inference_count counter")

    assert lines[at - 1] == "# HELP nv_inference_count " + (
        "Number of inferences performed (does not include cached requests)"
    )
    assert lines[at + 1 : at + 3] == [
        'nv_inference_count{model="a",version="1"} 3',
        'nv_inference_count{model="b",version="1"} 3',
    ]
    assert len([line for line in lines if line.startswith("# HELP")]) == len(OF_A_SERVER)


def test_what_the_whole_server_holds_is_the_sum_of_its_models() -> None:
    recorder = Recorder()
    early, late = ModelRecorder("a", 1), ModelRecorder("b", 1)
    early.queued()
    recorder.add(early)
    recorder.add(late)
    late.queued()
    late.queued()
    early.dequeued()
    recorder.pressure.nbytes, recorder.pressure.refused_for_bytes = 512, 3

    lines = render(recorder, HOST, 0, pressure=recorder.pressure).splitlines()

    assert [line for line in lines if line.startswith(("tensorbus_queued", "tensorbus_refused"))] == [
        "tensorbus_queued_requests 2",
        "tensorbus_queued_bytes 512",
        'tensorbus_refused_requests_total{reason="bytes"} 3',
        'tensorbus_refused_requests_total{reason="requests"} 0',
    ]


def test_the_cache_has_figures_of_its_own_and_of_each_model_that_uses_it() -> None:
    cached, other = ModelRecorder("a", 1), recorder_with_traffic("b")
    cached.cached = True
    cached.hit(9_000, 2_000, 3_000)
    cached.hit(9_000, 2_000, 3_000)
    cached.missed(5_000)
    cache = CacheRecord(400)
    cache.used, cache.entries, cache.hits, cache.misses, cache.evictions = 100, 1, 2, 3, 4
    cache.lookup_ns, cache.insertion_ns = 7_900, 8_000
    text = render([cached, other], HOST, 0, cache=cache)
    assert [line for line in text.splitlines() if line.startswith("nv_cache_")] == [
        'nv_cache_num_hits_per_model{model="a",version="1"} 2',
        'nv_cache_num_misses_per_model{model="a",version="1"} 1',
        'nv_cache_hit_duration_per_model{model="a",version="1"} 6',
        'nv_cache_miss_duration_per_model{model="a",version="1"} 5',
        "nv_cache_util 0.25",
        "nv_cache_num_entries 1",
        "nv_cache_num_hits 2",
        "nv_cache_num_misses 3",
        "nv_cache_num_lookups 5",
        "nv_cache_num_evictions 4",
        "nv_cache_lookup_duration 7",
        "nv_cache_insertion_duration 8",
    ]
    assert 'nv_inference_count{model="a",version="1"} 0' in text.splitlines()
    assert 'nv_inference_request_success{model="a",version="1"} 2' in text.splitlines()


def test_a_family_without_children_is_absent() -> None:
    text = render([], HostSample(), 0)
    assert not any(name in text for name in (*PER_MODEL, "nv_cpu_"))

    loading = ModelRecorder("m", 1)  # has no load duration yet
    assert "nv_model_load_duration_secs" not in render([loading], HostSample(), 0)


def test_metric_tags_are_labels_with_an_underscore_in_front_and_any_text_as_value() -> None:
    recorder = recorder_with_traffic(tags={"team": 'a"b\\c\nd', "cost-centre": "7"})
    text = render([recorder], HOST, 0)
    assert 'nv_inference_count{_cost_centre="7",_team="a\\"b\\\\c\\nd",model="m",version="1"} 3' in text.splitlines()


def test_a_prometheus_parser_reads_back_what_was_recorded() -> None:
    tagged = recorder_with_traffic(tags={"team": 'a"b\\c\nd'})
    tagged.cached = True
    text = render([tagged], HOST, 268435456, pressure=Pressure(), cache=CacheRecord(1))
    families = list(text_string_to_metric_families(text))

    # The parser takes a counter's "_total" for a suffix of its own.
    assert [(f.name, f.type, f.documentation) for f in families] == [
        (row.name.removesuffix("_total") if row.kind == "counter" else row.name, row.kind, row.help)
        for row in OF_A_SERVER
    ]
    samples = {family.name: family.samples for family in families}
    failures = {sample.labels["reason"]: sample.value for sample in samples["nv_inference_request_failure"]}
    assert failures == {"BACKEND": 1, "CANCELED": 0, "OTHER": 0, "REJECTED": 0}
    (count,) = samples["nv_inference_count"]
    assert count.labels == {"model": "m", "version": "1", "_team": 'a"b\\c\nd'}


def test_a_gateway_without_a_broker_of_its_own_shows_its_half_and_the_way_to_the_other() -> None:
    pressure, gateway = Pressure(), GatewayRecord()
    pressure.nbytes, pressure.refused_for_bytes = 7, 2
    gateway.requests_by_shm, gateway.bytes_by_frames, gateway.broker_up, gateway.pending = 3, 4096, True, 1
    lines = render([], HostSample(), 0, pressure=pressure, gateway=gateway).splitlines()
    assert [line for line in lines if line.startswith("tensorbus_")] == [
        "tensorbus_queued_bytes 7",
        'tensorbus_refused_requests_total{reason="bytes"} 2',
        'tensorbus_gateway_requests_total{path="frames"} 0',
        'tensorbus_gateway_requests_total{path="shm"} 3',
        'tensorbus_gateway_tensor_bytes_total{path="frames"} 4096',
        'tensorbus_gateway_tensor_bytes_total{path="shm"} 0',
        "tensorbus_gateway_broker_up 1",
        "tensorbus_gateway_pending_requests 1",
        "tensorbus_gateway_rejoins_total 0",
    ]


def test_a_broker_shows_who_has_joined_and_what_it_still_owes() -> None:
    broker = BrokerRecord()
    broker.gateways, broker.stub_hosts, broker.instances, broker.waiting, broker.fetches = 1, 2, 3, 4, 5
    broker.ignored_reads = 6
    lines = render([], HostSample(), 0, broker=broker).splitlines()
    assert [line for line in lines if line.startswith("tensorbus_broker_")] == [
        "tensorbus_broker_gateways 1",
        "tensorbus_broker_stub_hosts 2",
        "tensorbus_broker_instances 3",
        "tensorbus_broker_waiting_requests 4",
        "tensorbus_broker_fetches_total 5",
        "tensorbus_broker_ignored_reads_total 6",
    ]


# --- metrics of models ------------------------------------------------------------------------------------------


def custom_lines(customs: CustomMetrics) -> list[str]:
    return render([], HostSample(), 0, customs).splitlines()[6:]


def test_metrics_of_models_come_last_with_sorted_labels_and_bare_integers() -> None:
    customs = CustomMetrics()
    customs.new_family("a", 1, "cc", "desc", "counter")
    customs.new_metric("a", 1, 1, {"b": "1", "a": "2"}, None)
    customs.new_metric("a", 2, 1, {}, None)
    customs.update("a", 1, "increment", 3.5)
    customs.update("a", 2, "increment", 2)
    customs.new_family("a", 2, "without_metrics", "desc", "gauge")
    assert custom_lines(customs) == ["# HELP cc desc", "# TYPE cc counter", 'cc{a="2",b="1"} 3.5', "cc 2"]


def test_a_histogram_s_buckets_add_up() -> None:
    customs = CustomMetrics()
    customs.new_family("a", 1, "hh", "desc", "histogram")
    for number, labels in enumerate(({"z": "1"}, {})):
        customs.new_metric("a", number, 1, labels, [0.1, 1.0, math.inf])
        for value in (0.5, 20):
            customs.update("a", number, "observe", value)
    assert custom_lines(customs) == [
        "# HELP hh desc",
        "# TYPE hh histogram",
        'hh_count{z="1"} 2',
        'hh_sum{z="1"} 20.5',
        'hh_bucket{z="1",le="0.1"} 0',
        'hh_bucket{z="1",le="1"} 1',
        'hh_bucket{z="1",le="+Inf"} 2',
        "hh_count 2",
        "hh_sum 20.5",
        'hh_bucket{le="0.1"} 0',
        'hh_bucket{le="1"} 1',
        'hh_bucket{le="+Inf"} 2',
    ]


@pytest.mark.parametrize(
    "value, text",
    [
        (1e15, "1000000000000000"),
        (1e16, "1e+16"),
        (9007199254740994.0, "9007199254740994"),
        (0.1 + 0.2, "0.3"),
        (1 / 3, "0.3333333333333333"),
        (1.5e-7, "1.5e-07"),
        (-0.0, "-0"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "Nan"),
    ],
)
def test_numbers_are_spelled_as_triton_spells_them(value: float, text: str) -> None:
    customs = CustomMetrics()
    customs.new_family("a", 1, "g", "", "gauge")
    customs.new_metric("a", 1, 1, {}, None)
    customs.update("a", 1, "set", value)
    assert custom_lines(customs)[-1] == f"g {text}"


def test_texts_of_models_are_escaped() -> None:
    customs = CustomMetrics()
    customs.new_family("a", 1, "g", 'one\\two\n"three"', "gauge")
    customs.new_metric("a", 1, 1, {"l": 'a"b\\c\nd'}, None)
    assert custom_lines(customs) == [
        '# HELP g one\\\\two\\n"three"',
        "# TYPE g gauge",
        'g{l="a\\"b\\\\c\\nd"} 0',
    ]
    [*_, family] = text_string_to_metric_families("\n".join(custom_lines(customs)) + "\n")
    assert family.samples[0].labels == {"l": 'a"b\\c\nd'}


def test_a_stub_host_shows_its_processes_and_what_passes_through_it() -> None:
    host = StubHostRecord()
    host.instances, host.starts, host.deaths, host.broker_up = 2, 5, 3, True
    host.from_stubs, host.to_stubs, host.fetched_bytes = 7, 8, 4096
    lines = render([], HostSample(), 0, stub_host=host).splitlines()
    assert [line for line in lines if line.startswith("tensorbus_stub_host_")] == [
        "tensorbus_stub_host_instances 2",
        "tensorbus_stub_host_starts_total 5",
        "tensorbus_stub_host_deaths_total 3",
        "tensorbus_stub_host_broker_up 1",
        "tensorbus_stub_host_fetched_bytes_total 4096",
        'tensorbus_stub_host_messages_total{direction="from_stubs"} 7',
        'tensorbus_stub_host_messages_total{direction="to_stubs"} 8',
    ]
