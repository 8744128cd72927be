"""The recorders' figures and, after them, models' own, in the Prometheus text format 0.0.4, as Triton spells it.

Labels stand in alphabetical order and integers have no decimals (dashboards and tests grep whole lines); a family
without a child is left out. prometheus_client's own renderer prints ``1.0`` and empty families.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from metrics import catalogue, custom
from metrics.broker_record import BrokerRecord
from metrics.cache_record import CacheRecord
from metrics.catalogue import Family
from metrics.gateway_record import GatewayRecord
from metrics.host import HostSample
from metrics.pressure import Pressure
from metrics.recorder import FAILURE_REASONS, ModelRecorder
from metrics.stub_host_record import StubHostRecord

CONTENT_TYPE = "text/plain; charset=utf-8"

_Children = Iterable[tuple[str, float | str]]  # labels between the braces, value

_BY_MODEL: tuple[tuple[Family, Callable[[ModelRecorder], float | None]], ...] = (
    (catalogue.INFERENCE_COUNT, lambda m: m.inference_count),
    (catalogue.EXEC_COUNT, lambda m: m.execution_count),
    (catalogue.REQUEST_DURATION, lambda m: m.success_ns // 1000),
    (catalogue.QUEUE_DURATION, lambda m: m.queue_ns // 1000),
    (catalogue.COMPUTE_INPUT_DURATION, lambda m: m.compute_input_ns // 1000),
    (catalogue.COMPUTE_INFER_DURATION, lambda m: m.compute_infer_ns // 1000),
    (catalogue.COMPUTE_OUTPUT_DURATION, lambda m: m.compute_output_ns // 1000),
    (catalogue.PENDING_REQUESTS, lambda m: m.pending),
    (catalogue.LOAD_DURATION, lambda m: m.load_duration_s),
    (catalogue.STUB_RESTARTS, lambda m: m.restarts),
    (catalogue.CACHE_HITS_OF_MODEL, lambda m: m.cache_hit if m.cached else None),
    (catalogue.CACHE_MISSES_OF_MODEL, lambda m: m.cache_miss if m.cached else None),
    (catalogue.CACHE_HIT_DURATION, lambda m: m.cache_hit_ns // 1000 if m.cached else None),
    (catalogue.CACHE_MISS_DURATION, lambda m: m.cache_miss_ns // 1000 if m.cached else None),
)


def render(
    models: Iterable[ModelRecorder],
    host: HostSample,
    pinned_pool_bytes: int,
    customs: Iterable[custom.CustomFamily] = (),
    pressure: Pressure | None = None,
    cache: CacheRecord | None = None,
    gateway: GatewayRecord | None = None,
    stub_host: StubHostRecord | None = None,
    broker: BrokerRecord | None = None,
) -> str:
    """The whole exposition; ``pinned_pool_bytes`` is the option's value, of which nothing is ever used. With
    ``gateway``, ``pressure`` is a gateway's: requests wait elsewhere."""
    cached = () if cache is None else _cache_families(cache)
    own = (
        *_model_families(list(models)),
        *cached,
        *_server_families(pressure, gateway),
        *_stub_host_families(stub_host),
        *(() if broker is None else _broker_families(broker)),
        *_host_families(host, pinned_pool_bytes),
    )
    families: list[tuple[Family | custom.CustomFamily, list[str]]] = [
        *((family, [_line(family.name, *child) for child in children]) for family, children in own),
        *((family, list(_custom_lines(family))) for family in customs),
    ]
    return "".join(
        f"# HELP {family.name} {_escape_help(family.help)}\n# TYPE {family.name} {family.kind}\n" + "".join(lines)
        for family, lines in families
        if lines
    )


def _custom_lines(family: custom.CustomFamily) -> Iterator[str]:
    for metric in family:
        labels = ",".join(f'{name}="{_escape(text)}"' for name, text in metric.labels)
        if family.kind != custom.HISTOGRAM:
            yield _line(family.name, labels, _number(metric.value))
            continue
        *counts, total = accumulate(metric.counts[:])  # one copy, so that the lines agree with each other
        yield _line(f"{family.name}_count", labels, total)
        yield _line(f"{family.name}_sum", labels, _number(metric.sum))
        for bound, count in zip((*map(_number, metric.bounds), "+Inf"), (*counts, total), strict=True):
            yield _line(f"{family.name}_bucket", f'{labels}{"," if labels else ""}le="{bound}"', count)


def _number(value: float) -> str:
    """As Triton's exporter spells it: sixteen digits at most, no decimals if there are none."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "Nan" if math.isnan(value) else format(value, ".16g")


def _model_families(models: list[ModelRecorder]) -> Iterator[tuple[Family, _Children]]:
    labelled = [(_labels(model), model) for model in models]
    yield catalogue.REQUEST_SUCCESS, [(labels, model.success) for labels, model in labelled]
    yield (
        catalogue.REQUEST_FAILURE,
        [(_labels(model, reason=reason), model.failures[reason]) for model in models for reason in FAILURE_REASONS],
    )
    for family, value_of in _BY_MODEL:
        yield family, [(labels, value) for labels, model in labelled if (value := value_of(model)) is not None]
    yield (
        catalogue.BATCH_CLOSED,
        [(_labels(model, reason=why), count) for model in models for why, count in model.closed.items()],
    )


def _cache_families(cache: CacheRecord) -> Iterator[tuple[Family, _Children]]:
    for family, value in (
        (catalogue.CACHE_UTILIZATION, _number(cache.used / cache.size)),
        (catalogue.CACHE_ENTRIES, cache.entries),
        (catalogue.CACHE_HITS, cache.hits),
        (catalogue.CACHE_MISSES, cache.misses),
        (catalogue.CACHE_LOOKUPS, cache.hits + cache.misses),
        (catalogue.CACHE_EVICTIONS, cache.evictions),
        (catalogue.CACHE_LOOKUP_DURATION, cache.lookup_ns // 1000),
        (catalogue.CACHE_INSERTION_DURATION, cache.insertion_ns // 1000),
    ):
        yield family, [("", value)]


def _server_families(pressure: Pressure | None, gateway: GatewayRecord | None) -> Iterator[tuple[Family, _Children]]:
    """Of a whole server, or of its half that gateways have; the broker has the queues."""
    if pressure is None:
        return
    refused = [("bytes", pressure.refused_for_bytes)]
    if gateway is None:
        refused.append(("requests", pressure.refused_for_requests))
        yield catalogue.QUEUED_REQUESTS, [("", pressure.queued)]
    yield catalogue.QUEUED_BYTES, [("", pressure.nbytes)]
    yield catalogue.REFUSED_REQUESTS, [(f'reason="{reason}"', count) for reason, count in refused]
    if gateway is not None:
        yield from _gateway_families(gateway)


def _gateway_families(gateway: GatewayRecord) -> Iterator[tuple[Family, _Children]]:
    for family, by_shm, by_frames in (
        (catalogue.GATEWAY_REQUESTS, gateway.requests_by_shm, gateway.requests_by_frames),
        (catalogue.GATEWAY_TENSOR_BYTES, gateway.bytes_by_shm, gateway.bytes_by_frames),
    ):
        yield family, [('path="frames"', by_frames), ('path="shm"', by_shm)]
    yield catalogue.GATEWAY_BROKER_UP, [("", int(gateway.broker_up))]
    yield catalogue.GATEWAY_PENDING_REQUESTS, [("", gateway.pending)]
    yield catalogue.GATEWAY_REJOINS, [("", gateway.rejoins)]


def _stub_host_families(record: StubHostRecord | None) -> Iterator[tuple[Family, _Children]]:
    if record is None:
        return
    for family, value in (
        (catalogue.STUB_HOST_INSTANCES, record.instances),
        (catalogue.STUB_HOST_STARTS, record.starts),
        (catalogue.STUB_HOST_DEATHS, record.deaths),
        (catalogue.STUB_HOST_BROKER_UP, int(record.broker_up)),
        (catalogue.STUB_HOST_FETCHED_BYTES, record.fetched_bytes),
    ):
        yield family, [("", value)]
    by_direction = (("from_stubs", record.from_stubs), ("to_stubs", record.to_stubs))
    yield catalogue.STUB_HOST_MESSAGES, [(f'direction="{direction}"', count) for direction, count in by_direction]


def _broker_families(broker: BrokerRecord) -> Iterator[tuple[Family, _Children]]:
    for family, value in (
        (catalogue.BROKER_GATEWAYS, broker.gateways),
        (catalogue.BROKER_STUB_HOSTS, broker.stub_hosts),
        (catalogue.BROKER_INSTANCES, broker.instances),
        (catalogue.BROKER_WAITING_REQUESTS, broker.waiting),
        (catalogue.BROKER_FETCHES, broker.fetches),
        (catalogue.BROKER_IGNORED_READS, broker.ignored_reads),
    ):
        yield family, [("", value)]


def _host_families(host: HostSample, pinned_pool_bytes: int) -> Iterator[tuple[Family, _Children]]:
    for family, value in (
        (catalogue.PINNED_TOTAL, pinned_pool_bytes),
        (catalogue.PINNED_USED, 0),
        (catalogue.CPU_UTILIZATION, host.cpu_utilization),
        (catalogue.CPU_MEMORY_TOTAL, host.memory_total_bytes),
        (catalogue.CPU_MEMORY_USED, host.memory_used_bytes),
        (catalogue.SHM_TOTAL, host.shm_total_bytes),
        (catalogue.SHM_USED, host.shm_used_bytes),
    ):
        yield family, [] if value is None else [("", value)]


def _labels(model: ModelRecorder, **more: str) -> str:
    # A tag's name is free text in the configuration; a label's is not.
    tags = {"_" + re.sub(r"[^a-zA-Z0-9_]", "_", tag): text for tag, text in model.tags.items()}
    named = {"namespace": model.namespace} if model.namespace else {}
    labels = {**tags, **named, "model": model.model, "version": str(model.version), **more}
    return ",".join(f'{name}="{_escape(labels[name])}"' for name in sorted(labels))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _line(name: str, labels: str, value: float | str) -> str:
    return f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"
