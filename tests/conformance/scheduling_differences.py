"""Where our schedulers are meant to differ from those of Triton 2.51, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
        "last_inference": min(inferences, 1),
        "inference_count": inferences,
        "execution_count": sum(batches.values()),
        "inference_stats": {what: {"count": counts.get(what, 0), "ns": 0} for what in COUNTED},
        "response_stats": {},
        "batch_stats": batch_stats,
        "memory_usage": [],
    }
    return {"status": 200, "body": json.dumps({"model_stats": [figures]}, separators=(",", ":"))}


def seen(model: str, execution: int, x: list[list[int]], **controls: list[list[Any]]) -> Answer:
    """The answer of a model that executed this request alone."""
    told = {"execution": execution, "group": model, "together": [x], "place": 0, "inputs": {**controls, "X": x}}
    data = [json.dumps(told, separators=(",", ":"))] * len(x)
    output = {"name": "SEEN", "datatype": "BYTES", "shape": [len(x), 1], "data": data}
    document = {"model_name": model, "model_version": "1", "outputs": [output]}
    return {"status": 200, "body": json.dumps(document, separators=(",", ":"))}


def together(model: str, execution: int, rows: list[int], place: int) -> Answer:
    """The answer of a model that executed requests of these rows, to the one at ``place``."""
    batch = [[[row]] for row in rows]
    told = {"execution": execution, "group": model, "together": batch, "place": place, "inputs": {"X": batch[place]}}
    output = {"name": "SEEN", "datatype": "BYTES", "shape": [1, 1], "data": [json.dumps(told, separators=(",", ":"))]}
    document = {"model_name": model, "model_version": "1", "outputs": [output]}
    return {"status": 200, "type": "application/json", "body": json.dumps(document, separators=(",", ":"))}


def _refused(text: str, status: int = 400) -> Answer:
    return {"status": status, "body": json.dumps({"error": text}, separators=(",", ":"))}


_FAILED = _refused("no", 500)
_NAMES = "HEAD refuses names that are paths, and none at all, before it looks for them"
_PATH = "invalid model name '{}', model name must not contain path traversal characters"
_EMPTY = "Model name cannot be empty. Please enter a valid name to deploy."


def _invalid(text: str) -> Answer:
    return {"code": "INVALID_ARGUMENT", "message": text}


SCHEDULING = {
    "managed: names": Difference(
        _NAMES,
        (
            _invalid(_EMPTY),
            _invalid(_PATH.format("..")),
            _invalid(_PATH.format("a/b")),
            _refused(_PATH.format("..")),
        ),
    ),
    "scheduling: preferred sizes, while the instance is busy": Difference(
        "which requests make a batch is decided when an instance is free, so that the largest size counts that was "
        "reached; Triton fills the next batches while it is busy, and closes each at the first",
        (
            {
                "answers": [
                    together("preferred", 1, [0], 0),
                    *(together("preferred", 2, [1, 2, 3, 4], n) for n in range(4)),
                ]
            },
            statistics("preferred", 5, {1: 1, 4: 1}, success=5, **dict.fromkeys(COMPUTED, 5)),
        ),
    ),
    "scheduling: ids that are texts": Difference(
        "2.51's Python backend cannot read an id that is a text",
        tuple(seen("text_ids", n + 1, [[n]], CORRID=[["one"]]) for n in range(3)),
    ),
    "scheduling: an id of the wrong kind": Difference(
        "HEAD refuses ids that the model's control input cannot hold; 2.51 gives it a number made of the text",
        tuple(
            _refused(
                f"[request id: <id_unknown>] sequence batching control 'CORRID' data-type is '{given}', but model "
                f"'{model}' expects '{wanted}'"
            )
            for model, given, wanted in (("direct_refused", "BYTES", "UINT64"), ("text_ids", "UINT64", "BYTES"))
        ),
    ),
    "scheduling: the cache: other parameters": Difference(
        "a model may look at parameters", ({}, seen("cached", 4, [[3]]))
    ),
    "scheduling: the cache: another shape": Difference(
        "what has other shapes is another request; Triton answers it with the response to one of the same bytes",
        ({}, seen("cached_alone", 4, [[5, 6]])),
    ),
    "scheduling: the cache: an error": Difference(
        "2.51 keeps a response with an error, and answers the next request with a success without outputs",
        (_FAILED, _FAILED),
    ),
    "scheduling: warm-up is not counted": Difference(
        "figures tell of clients' requests; Triton counts those of warm-up as well",
        (
            statistics("warm", 0, {}),
            seen("warm", 4, [[0]]),
            statistics("warm", 1, {1: 1}, success=1, **dict.fromkeys(COMPUTED, 1)),
        ),
    ),
    "held: one fails, the others do not": Difference(
        _RETURNED_ERROR, ({}, statistics("failing", 5, {6: 1}, success=5, fail=1, **dict.fromkeys(COMPUTED, 5)))
    ),
}
