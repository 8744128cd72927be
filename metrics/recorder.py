"""The figures of each model version: plain ints that the broker increments and the exposition and statistics read.

On the hot path, hence no Prometheus objects, locks or labels here: one event loop writes, any thread may read. A
reader may see one request in one counter and not yet in the next; each single figure is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from metrics.broker_record import BrokerRecord
from metrics.cache_record import CacheRecord
from metrics.custom import CustomMetrics
from metrics.gateway_record import GatewayRecord
from metrics.pressure import Pressure
from metrics.stub_host_record import StubHostRecord

REJECTED, CANCELED, BACKEND, OTHER = "REJECTED", "CANCELED", "BACKEND", "OTHER"
FAILURE_REASONS = (BACKEND, CANCELED, OTHER, REJECTED)  # Triton's spelling; each is exposed from the start


class BatchRecord:
    """The executions of one batch size (statistics extension, ``batch_stats``)."""

    __slots__ = ("count", "infer_ns", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.count = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0


class ResponseRecord:
    """The responses that were the first, second ... of their requests (statistics extension, ``response_stats``)."""

    __slots__ = ("empty", "empty_ns", "fail", "fail_ns", "success", "success_ns")

    def __init__(self) -> None:
        self.success = 0
        self.success_ns = 0
        self.fail = 0
        self.fail_ns = 0
        self.empty = 0  # a final flag and no more
        self.empty_ns = 0


class ModelRecorder:
    """One loaded model version. Lives as long as its load: a reload starts at 0 with a new one.

    A request ends in exactly one of ``succeeded``, ``hit`` or ``failed``; one that validation or a full queue turned
    away ends in none. ``pending`` is up at ``queued`` and down at ``dequeued``, however the request leaves the queue.
    """

    __slots__ = (
        "batches",
        "cache_hit",
        "cache_hit_ns",
        "cache_miss",
        "cache_miss_ns",
        "cached",
        "closed",
        "compute_infer_ns",
        "compute_input_ns",
        "compute_output_ns",
        "execution_count",
        "fail_count",
        "fail_ns",
        "failures",
        "inference_count",
        "last_inference_ms",
        "load_duration_s",
        "model",
        "namespace",
        "pending",
        "pressure",
        "queue_ns",
        "responses",
        "restarts",
        "success",
        "success_ns",
        "tags",
        "version",
    )

    def __init__(self, model: str, version: int, tags: Mapping[str, str] | None = None, namespace: str = "") -> None:
        """``tags`` are the configuration's metric_tags; ``namespace`` is the repository, if models have one."""
        self.model = model
        self.namespace = namespace
        self.version = version
        self.tags = dict(tags or {})
        self.pending = 0
        self.pressure = Pressure()  # the server's, from the time it is exposed
        self.success = 0
        self.success_ns = 0
        self.queue_ns = 0
        self.compute_input_ns = 0
        self.compute_infer_ns = 0
        self.compute_output_ns = 0
        self.failures = dict.fromkeys(FAILURE_REASONS, 0)
        self.fail_count = 0
        self.fail_ns = 0
        self.inference_count = 0
        self.execution_count = 0
        self.last_inference_ms = 0
        self.batches: dict[int, BatchRecord] = {}
        self.cached = False  # its responses are
        self.cache_hit = 0
        self.cache_hit_ns = 0
        self.cache_miss = 0
        self.cache_miss_ns = 0
        self.closed: dict[str, int] = {}  # batches, by why; empty without dynamic batching
        self.responses: dict[int, ResponseRecord] = {}  # of a decoupled model, by their place in the request's
        self.load_duration_s: float | None = None  # set when the version is READY
        self.restarts = 0  # of its stub processes

    def queued(self) -> None:
        self.pending += 1
        self.pressure.queued += 1

    def dequeued(self, count: int = 1) -> None:
        self.pending -= count
        self.pressure.queued -= count

    def batch_closed(self, why: str) -> None:
        self.closed[why] += 1

    def executed(self, batch_size: int, input_ns: int, infer_ns: int, output_ns: int, count: int = 1) -> None:
        """Calls of the model, failed or not, and their times in all; ``batch_size`` sums over the requests of one call
        (1 each without batching)."""
        self.execution_count += count
        batch = self.batches.get(batch_size)
        if batch is None:
            batch = self.batches[batch_size] = BatchRecord()
        batch.count += count
        batch.input_ns += input_ns
        batch.infer_ns += infer_ns
        batch.output_ns += output_ns

    def succeeded(
        self,
        batch_size: int,
        total_ns: int,
        queue_ns: int,
        input_ns: int,
        infer_ns: int,
        output_ns: int,
        now_ms: int,
        count: int = 1,
    ) -> None:
        """Requests were answered; all but ``now_ms`` are sums over them. The compute times are those of their batches,
        charged to each in full; ``now_ms`` is the wall clock (since the epoch) at which the last was answered."""
        self.success += count
        self.inference_count += batch_size
        self.success_ns += total_ns
        self.queue_ns += queue_ns
        self.compute_input_ns += input_ns
        self.compute_infer_ns += infer_ns
        self.compute_output_ns += output_ns
        self.last_inference_ms = now_ms

    def hit(self, total_ns: int, queue_ns: int, lookup_ns: int) -> None:
        """A request was answered from the cache: a success, but no inference."""
        self.success += 1
        self.success_ns += total_ns
        self.queue_ns += queue_ns
        self.cache_hit += 1
        self.cache_hit_ns += lookup_ns

    def missed(self, cache_ns: int) -> None:
        """A request that was not in the cache has succeeded; ``cache_ns`` are for its look-up and what came of it."""
        self.cache_miss += 1
        self.cache_miss_ns += cache_ns
        self.success_ns += cache_ns

    def responded(self, index: int, nanoseconds: int, failed: bool, empty: bool) -> None:
        """A decoupled model has sent a response, so long after the one before (or since the request left for it)."""
        record = self.responses.get(index)
        if record is None:
            record = self.responses[index] = ResponseRecord()
        if failed:
            record.fail += 1
            record.fail_ns += nanoseconds
        elif empty:
            record.empty += 1
            record.empty_ns += nanoseconds
        else:
            record.success += 1
            record.success_ns += nanoseconds

    def failed(self, reason: str, total_ns: int) -> None:
        """A request ended with an error; ``reason`` is one of FAILURE_REASONS."""
        self.failures[reason] += 1
        self.fail_count += 1
        self.fail_ns += total_ns

    def check(self) -> None:
        """Raises AssertionError when the figures contradict each other."""
        assert self.pending >= 0, self.pending
        assert sum(self.failures.values()) == self.fail_count, self.failures
        assert sum(batch.count for batch in self.batches.values()) == self.execution_count
        assert self.inference_count >= self.success - self.cache_hit


class Recorder:
    """The recorders of all loaded model versions, in order of model and version; and the metrics that models make."""

    def __init__(self, custom: bool = True) -> None:
        """``custom``: whether models may have metrics of their own."""
        self._models: dict[tuple[str, str, int], ModelRecorder] = {}
        self.custom = CustomMetrics() if custom else None
        self.cache: CacheRecord | None = None  # if the server has a response cache
        self.pressure = Pressure()
        self.broker: BrokerRecord | None = None  # of a broker that gateways join
        self.gateway: GatewayRecord | None = None  # of a gateway whose broker is another process
        self.stub_host: StubHostRecord | None = None

    def add(self, recorder: ModelRecorder) -> None:
        """Expose a version's figures, in place of those of an earlier load of the same version."""
        self._models[recorder.namespace, recorder.model, recorder.version] = recorder
        self.pressure.queued += recorder.pending
        recorder.pressure = self.pressure

    def remove(self, model: str, version: int, namespace: str = "") -> None:
        """The version is unloaded: its figures vanish. Unknown ones are fine (a load that failed)."""
        self._models.pop((namespace, model, version), None)

    def __iter__(self) -> Iterator[ModelRecorder]:
        # sorted() takes a snapshot of the items in one step, so the endpoint's thread never sees a dict change size.
        return iter([recorder for _, recorder in sorted(self._models.items())])
