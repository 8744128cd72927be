"""The statistics extension's figures (KServe v2 / Triton), as the broker answers and the fronts print them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List


@dataclass(frozen=True)
class Duration:
    count: int
    ns: int


@dataclass(frozen=True)
class InferStatistics:
    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


@dataclass(frozen=True)
class BatchStatistics:
    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


@dataclass(frozen=True)
class ResponseStatistics:
    """Of the responses at one place (first, second ...) among those to a request."""

    index: int
    compute_infer: Duration
    compute_output: Duration
    success: Duration
    fail: Duration
    empty_response: Duration
    cancel: Duration


@dataclass(frozen=True)
class ModelStatistics:
    name: str
    version: int
    last_inference_ms: int  # since the epoch; 0 = none
    inference_count: int
    execution_count: int
    inference_stats: InferStatistics
    batch_stats: List[BatchStatistics]
    response_stats: List[ResponseStatistics]  # of a decoupled model
