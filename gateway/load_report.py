"""What a generate endpoint says of the server's load, for balancers that ask (ORCA): how full a model's KV cache is.

The figures come from a family of metrics that TensorRT-LLM's models make, and any other may: the blocks of the cache by
type, "used", "max" and "tokens_per".
"""

from __future__ import annotations

from math import inf

from metrics.custom import CustomMetrics

FAMILY = "nv_trt_llm_kv_cache_block_metrics"
_TYPE = "kv_cache_block_type"


def load_report(metrics: CustomMetrics | None, form: str) -> str:
    """A header's value in the form "text" or "json"; "" for any other, and where no model tells these figures."""
    blocks = _blocks(metrics)
    if not {"used", "max", "tokens_per"} <= blocks.keys():
        return ""
    utilization = blocks["used"] / blocks["max"] if blocks["max"] > 0 else 0.0
    capacity = int(blocks["max"] * blocks["tokens_per"])
    if form == "text":
        return f"TEXT named_metrics.kv_cache_utilization={utilization:f}, named_metrics.max_token_capacity={capacity}"
    if form == "json":
        figures = f'{{"kv_cache_utilization":{utilization!r},"max_token_capacity":{capacity}}}'
        return f'JSON {{"named_metrics":{figures}}}'
    return ""


def _blocks(metrics: CustomMetrics | None) -> dict[str, float]:
    """By type; of several models that tell, the last one's."""
    families = [family for family in metrics or () if family.name == FAMILY]
    labelled = [(dict(metric.labels).get(_TYPE, ""), metric.value) for family in families for metric in family]
    return {kind: value for kind, value in labelled if 0 <= value < inf}
