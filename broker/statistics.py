"""The statistics extension's figures of a model version, out of its recorder (counted as KServe v2 and Triton do)."""

from __future__ import annotations

from broker.model import ModelVersion
from metrics.recorder import BatchRecord, ResponseRecord
from protocol.statistics import BatchStatistics, Duration, InferStatistics, ModelStatistics, ResponseStatistics


def statistics(version: ModelVersion) -> ModelStatistics:
    """Every duration of a successful request counts once for it; its compute times are its batch's, in full. Of what
    came from the cache nothing was computed."""
    one = version.recorder
    computed = one.success - one.cache_hit
    return ModelStatistics(
        name=version.config.name,
        version=version.version,
        last_inference_ms=one.last_inference_ms,
        inference_count=one.inference_count,
        execution_count=one.execution_count,
        inference_stats=InferStatistics(
            success=Duration(one.success, one.success_ns),
            fail=Duration(one.fail_count, one.fail_ns),
            queue=Duration(one.success, one.queue_ns),
            compute_input=Duration(computed, one.compute_input_ns),
            compute_infer=Duration(computed, one.compute_infer_ns),
            compute_output=Duration(computed, one.compute_output_ns),
            cache_hit=Duration(one.cache_hit, one.cache_hit_ns),
            cache_miss=Duration(one.cache_miss, one.cache_miss_ns),
        ),
        batch_stats=[_batch(size, record) for size, record in sorted(one.batches.items())],
        response_stats=[_response(index, record) for index, record in sorted(one.responses.items())],
    )


def _batch(size: int, record: BatchRecord) -> BatchStatistics:
    return BatchStatistics(
        size,
        Duration(record.count, record.input_ns),
        Duration(record.count, record.infer_ns),
        Duration(record.count, record.output_ns),
    )


def _response(index: int, record: ResponseRecord) -> ResponseStatistics:
    """Placing outputs is part of what the stub does between two responses: it is not told apart."""
    nothing = Duration(0, 0)
    computed = Duration(record.success + record.fail, record.success_ns + record.fail_ns)
    return ResponseStatistics(
        index,
        compute_infer=computed,
        compute_output=Duration(computed.count, 0),
        success=Duration(record.success, record.success_ns),
        fail=Duration(record.fail, record.fail_ns),
        empty_response=Duration(record.empty, record.empty_ns),
        cancel=nothing,
    )
