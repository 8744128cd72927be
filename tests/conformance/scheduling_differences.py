"""Where our schedulers are meant to differ from those of Triton 2.51, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tests.conformance.author_differences import Difference
from tests.conformance.replay import Answer

COMPUTED = ("queue", "compute_input", "compute_infer", "compute_output")
COUNTED = ("success", "fail", *COMPUTED, "cache_hit", "cache_miss")
_RETURNED_ERROR = "a response with an error counts as a failure here, so that operators see it; Triton counts a success"


def statistics(model: str, inferences: int, batches: Mapping[int, int], **counts: int) -> Answer:
    """Of a model: ``batches`` are executions by batch size, ``counts`` those of its inference_stats."""
    batch_stats = [
        {"batch_size": size, **{what: {"count": count, "ns": 0} for what in COMPUTED[1:]}}
        for size, count in sorted(batches.items())
    ]
    figures = {
        "name": model,
        "version": "1",
        "last_inference": 1,
        "inference_count": inferences,
        "execution_count": sum(batches.values()),
        "inference_stats": {what: {"count": counts.get(what, 0), "ns": 0} for what in COUNTED},
        "response_stats": {},
        "batch_stats": batch_stats,
        "memory_usage": [],
    }
    return {"status": 200, "body": json.dumps({"model_stats": [figures]}, separators=(",", ":"))}


SCHEDULING = {
    "held: one fails, the others do not": Difference(
        _RETURNED_ERROR, ({}, statistics("failing", 5, {6: 1}, success=5, fail=1, **dict.fromkeys(COMPUTED, 5)))
    ),
}
