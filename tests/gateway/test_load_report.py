"""The load that a generate endpoint reports, from the metrics of a model."""

from __future__ import annotations

import json

import pytest

from gateway.load_report import FAMILY, load_report
from metrics.custom import CustomMetrics


def cache(**blocks: float) -> CustomMetrics:
    metrics = CustomMetrics()
    metrics.new_family("stub", 1, FAMILY, "blocks", "gauge")
    for number, (kind, value) in enumerate(blocks.items(), 1):
        metrics.new_metric("stub", number, 1, {"kv_cache_block_type": kind, "model": "llm"}, None)
        metrics.update("stub", number, "set", value)
    return metrics


def test_as_text() -> None:
    report = load_report(cache(used=3, max=10, tokens_per=64), "text")
    assert report == "TEXT named_metrics.kv_cache_utilization=0.300000, named_metrics.max_token_capacity=640"


def test_as_json() -> None:
    kind, _, document = load_report(cache(used=3, max=12, tokens_per=64), "json").partition(" ")
    figures = {"kv_cache_utilization": 0.25, "max_token_capacity": 768}
    assert kind == "JSON" and json.loads(document) == {"named_metrics": figures}


def test_a_cache_without_blocks_is_empty() -> None:
    assert "kv_cache_utilization=0.000000" in load_report(cache(used=0, max=0, tokens_per=64), "text")


@pytest.mark.parametrize(
    ("metrics", "form"),
    [
        (cache(used=3, max=10, tokens_per=64), "xml"),
        (cache(used=3, max=10), "text"),
        (cache(used=3, max=float("inf"), tokens_per=64), "text"),
        (CustomMetrics(), "text"),
        (None, "json"),
    ],
)
def test_nothing_is_reported(metrics: CustomMetrics | None, form: str) -> None:
    assert load_report(metrics, form) == ""
