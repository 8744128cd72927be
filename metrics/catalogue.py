"""Every family of the metrics endpoint: name, type, help text and unit, in the order of the exposition.

Names and help texts are Triton's, since dashboards and alerts are written against them; what Triton does not have is
prefixed ``tensorbus_``.
"""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    name: str
    kind: str  # "counter" or "gauge"
    help: str
    unit: str


# One child per model version, labels model, version and metric_tags; made at load with 0, gone at unload.
REQUEST_SUCCESS = Family(
    "nv_inference_request_success",
    "counter",
    "Number of successful inference requests, all batch sizes",
    "requests",
)
REQUEST_FAILURE = Family(  # one child more per reason: label reason
    "nv_inference_request_failure",
    "counter",
    "Number of failed inference requests, all batch sizes",
    "requests",
)
INFERENCE_COUNT = Family(
    "nv_inference_count",
    "counter",
    "Number of inferences performed (does not include cached requests)",
    "inferences",
)
EXEC_COUNT = Family(
    "nv_inference_exec_count",
    "counter",
    "Number of model executions performed (does not include cached requests)",
    "executions",
)
REQUEST_DURATION = Family(
    "nv_inference_request_duration_us",
    "counter",
    "Cumulative inference request duration in microseconds (includes cached requests)",
    "us",
)
QUEUE_DURATION = Family(
    "nv_inference_queue_duration_us",
    "counter",
    "Cumulative inference queuing duration in microseconds (includes cached requests)",
    "us",
)
COMPUTE_INPUT_DURATION = Family(
    "nv_inference_compute_input_duration_us",
    "counter",
    "Cumulative compute input duration in microseconds (does not include cached requests)",
    "us",
)
COMPUTE_INFER_DURATION = Family(
    "nv_inference_compute_infer_duration_us",
    "counter",
    "Cumulative compute inference duration in microseconds (does not include cached requests)",
    "us",
)
COMPUTE_OUTPUT_DURATION = Family(
    "nv_inference_compute_output_duration_us",
    "counter",
    "Cumulative inference compute output duration in microseconds (does not include cached requests)",
    "us",
)
PENDING_REQUESTS = Family(
    "nv_inference_pending_request_count",
    "gauge",
    "Instantaneous number of pending requests awaiting execution per-model.",
    "requests",
)
LOAD_DURATION = Family("nv_model_load_duration_secs", "gauge", "Model load time in seconds", "s")
STUB_RESTARTS = Family(
    "tensorbus_stub_restarts_total",
    "counter",
    "Number of stub processes started in place of one that died",
    "processes",
)
BATCH_CLOSED = Family(  # of models with dynamic batching, one child per reason: label reason
    "tensorbus_batch_closed_total",
    "counter",
    "Number of batches that dynamic batching has closed, by why they were closed then",
    "batches",
)

# Of models whose responses are cached.
CACHE_HITS_OF_MODEL = Family("nv_cache_num_hits_per_model", "counter", "Number of cache hits per model", "requests")
CACHE_MISSES_OF_MODEL = Family(
    "nv_cache_num_misses_per_model", "counter", "Number of cache misses per model", "requests"
)
CACHE_HIT_DURATION = Family(
    "nv_cache_hit_duration_per_model", "counter", "Total cache hit duration per model, in microseconds", "us"
)
CACHE_MISS_DURATION = Family(
    "nv_cache_miss_duration_per_model",
    "counter",
    "Total cache miss (insert+lookup) duration per model, in microseconds",
    "us",
)

# One child each, without labels; the first ones of a server that has a response cache.
CACHE_UTILIZATION = Family("nv_cache_util", "gauge", "Cache utilization [0.0 - 1.0]", "ratio")
CACHE_ENTRIES = Family("nv_cache_num_entries", "gauge", "Number of responses stored in response cache", "responses")
CACHE_HITS = Family("nv_cache_num_hits", "gauge", "Number of cache hits in response cache", "requests")
CACHE_MISSES = Family("nv_cache_num_misses", "gauge", "Number of cache misses in response cache", "requests")
CACHE_LOOKUPS = Family("nv_cache_num_lookups", "gauge", "Number of cache lookups in response cache", "requests")
CACHE_EVICTIONS = Family("nv_cache_num_evictions", "gauge", "Number of cache evictions in response cache", "responses")
CACHE_LOOKUP_DURATION = Family(
    "nv_cache_lookup_duration", "gauge", "Total cache lookup duration (hit and miss), in microseconds", "us"
)
CACHE_INSERTION_DURATION = Family(
    "nv_cache_insertion_duration", "gauge", "Total cache insertion duration, in microseconds", "us"
)
QUEUED_REQUESTS = Family(
    "tensorbus_queued_requests",
    "gauge",
    "Number of requests of all models that wait for an instance",
    "requests",
)
QUEUED_BYTES = Family(
    "tensorbus_queued_bytes",
    "gauge",
    "Request tensors that the server holds for clients, waiting or in execution, in bytes",
    "bytes",
)
REFUSED_REQUESTS = Family(  # one child per reason: label reason
    "tensorbus_refused_requests_total",
    "counter",
    "Number of requests refused because the server held too many requests, or bytes, of all models",
    "requests",
)

# Of a gateway whose broker is another process; those by path have one child each: label path, "shm" or "frames".
GATEWAY_REQUESTS = Family(
    "tensorbus_gateway_requests_total",
    "counter",
    "Number of requests sent to the broker, by how all but small tensors went: in shared memory or in the message",
    "requests",
)
GATEWAY_TENSOR_BYTES = Family(
    "tensorbus_gateway_tensor_bytes_total",
    "counter",
    "Tensors of requests and responses, in bytes, by how they went: in shared memory or in the message",
    "bytes",
)
GATEWAY_BROKER_UP = Family(
    "tensorbus_gateway_broker_up", "gauge", "Whether the gateway has joined a broker and hears from it", "bool"
)
GATEWAY_PENDING_REQUESTS = Family(
    "tensorbus_gateway_pending_requests", "gauge", "Number of inference requests that are not answered yet", "requests"
)
GATEWAY_REJOINS = Family(
    "tensorbus_gateway_rejoins_total", "counter", "Number of times that the gateway has joined a broker again", "times"
)

# Of a stub host.
STUB_HOST_INSTANCES = Family(
    "tensorbus_stub_host_instances", "gauge", "Number of stub processes that run on this host", "processes"
)
STUB_HOST_STARTS = Family(
    "tensorbus_stub_host_starts_total", "counter", "Number of stub processes that were started", "processes"
)
STUB_HOST_DEATHS = Family(
    "tensorbus_stub_host_deaths_total", "counter", "Number of stub processes that have ended, however", "processes"
)
STUB_HOST_BROKER_UP = Family(
    "tensorbus_stub_host_broker_up", "gauge", "Whether the stub host has joined a broker and hears from it", "bool"
)
STUB_HOST_MESSAGES = Family(  # one child per direction: label direction, "from_stubs" or "to_stubs"
    "tensorbus_stub_host_messages_total", "counter", "Number of messages of stubs and to stubs", "messages"
)
STUB_HOST_FETCHED_BYTES = Family(
    "tensorbus_stub_host_fetched_bytes_total",
    "counter",
    "Tensors sent to readers that do not share memory with this host, in bytes",
    "bytes",
)

# Of a broker that gateways and stub hosts join.
BROKER_GATEWAYS = Family("tensorbus_broker_gateways", "gauge", "Number of gateways that have joined", "gateways")
BROKER_STUB_HOSTS = Family("tensorbus_broker_stub_hosts", "gauge", "Number of stub hosts that have joined", "hosts")
BROKER_INSTANCES = Family("tensorbus_broker_instances", "gauge", "Number of stub processes on all hosts", "processes")
BROKER_WAITING_REQUESTS = Family(
    "tensorbus_broker_waiting_requests", "gauge", "Number of requests of gateways that are not answered yet", "requests"
)
BROKER_FETCHES = Family(
    "tensorbus_broker_fetches_total",
    "counter",
    "Number of tensors fetched from their owner for a reader that does not share its memory",
    "tensors",
)
BROKER_IGNORED_READS = Family(
    "tensorbus_broker_ignored_reads_total",
    "counter",
    "Number of outputs that a gateway says to have read and has not got, or has read before",
    "outputs",
)

PINNED_TOTAL = Family(
    "nv_pinned_memory_pool_total_bytes", "gauge", "Pinned memory pool total memory size, in bytes", "bytes"
)
PINNED_USED = Family(
    "nv_pinned_memory_pool_used_bytes", "gauge", "Pinned memory pool used memory size, in bytes", "bytes"
)
CPU_UTILIZATION = Family("nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]", "ratio")
CPU_MEMORY_TOTAL = Family("nv_cpu_memory_total_bytes", "gauge", "CPU total memory (RAM), in bytes", "bytes")
CPU_MEMORY_USED = Family("nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes", "bytes")
SHM_TOTAL = Family("tensorbus_shm_total_bytes", "gauge", "Size of /dev/shm, in bytes", "bytes")
SHM_USED = Family("tensorbus_shm_used_bytes", "gauge", "Bytes in use in /dev/shm, by whomever", "bytes")

CATALOGUE = (
    REQUEST_SUCCESS,
    REQUEST_FAILURE,
    INFERENCE_COUNT,
    EXEC_COUNT,
    REQUEST_DURATION,
    QUEUE_DURATION,
    COMPUTE_INPUT_DURATION,
    COMPUTE_INFER_DURATION,
    COMPUTE_OUTPUT_DURATION,
    PENDING_REQUESTS,
    LOAD_DURATION,
    STUB_RESTARTS,
    CACHE_HITS_OF_MODEL,
    CACHE_MISSES_OF_MODEL,
    CACHE_HIT_DURATION,
    CACHE_MISS_DURATION,
    BATCH_CLOSED,
    CACHE_UTILIZATION,
    CACHE_ENTRIES,
    CACHE_HITS,
    CACHE_MISSES,
    CACHE_LOOKUPS,
    CACHE_EVICTIONS,
    CACHE_LOOKUP_DURATION,
    CACHE_INSERTION_DURATION,
    QUEUED_REQUESTS,
    QUEUED_BYTES,
    REFUSED_REQUESTS,
    GATEWAY_REQUESTS,
    GATEWAY_TENSOR_BYTES,
    GATEWAY_BROKER_UP,
    GATEWAY_PENDING_REQUESTS,
    GATEWAY_REJOINS,
    STUB_HOST_INSTANCES,
    STUB_HOST_STARTS,
    STUB_HOST_DEATHS,
    STUB_HOST_BROKER_UP,
    STUB_HOST_MESSAGES,
    STUB_HOST_FETCHED_BYTES,
    BROKER_GATEWAYS,
    BROKER_STUB_HOSTS,
    BROKER_INSTANCES,
    BROKER_WAITING_REQUESTS,
    BROKER_FETCHES,
    PINNED_TOTAL,
    PINNED_USED,
    CPU_UTILIZATION,
    CPU_MEMORY_TOTAL,
    CPU_MEMORY_USED,
    SHM_TOTAL,
    SHM_USED,
)
