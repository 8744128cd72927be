"""Writes model repositories to measure: each model a file of benchmarks/models with a generated config.pbtxt."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).with_name("models")

_SIGNATURES = {
    "add_sub": (("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"), 16),
    "identity": (("INPUT0",), ("OUTPUT0",), -1),
    "busy": (("INPUT0",), ("OUTPUT0",), 16),
    "chain": (("INPUT0",), ("OUTPUT0",), -1),
    "repeat": (("INPUT0",), ("OUTPUT0",), 1),
    "batched": (("INPUT0",), ("OUTPUT0",), 16),
}


class Model(NamedTuple):
    """A model of a repository: ``source`` is one of benchmarks/models, run by ``instances`` processes. One that has a
    largest batch size is batched dynamically."""

    name: str
    source: str
    instances: int = 1
    decoupled: bool = False
    max_batch_size: int = 0


def write(directory: Path, models: tuple[Model, ...]) -> Path:
    for model in models:
        version = directory / model.name / "1"
        version.mkdir(parents=True)
        shutil.copy(SOURCES / f"{model.source}.py", version / "model.py")
        (directory / model.name / "config.pbtxt").write_text(_config(model))
    return directory


def _config(model: Model) -> str:
    inputs, outputs, dim = _SIGNATURES[model.source]
    tensors = [("input", name) for name in inputs] + [("output", name) for name in outputs]
    lines = [f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [ {dim} ] }}' for kind, name in tensors]
    group = f"instance_group {{ kind: KIND_CPU count: {model.instances} }}"
    policy = f"model_transaction_policy {{ decoupled: {str(model.decoupled).lower()} }}"
    batching = [f"max_batch_size: {model.max_batch_size}", "dynamic_batching {}"] if model.max_batch_size else []
    return "\n".join(['backend: "python"', *batching, *lines, group, policy, ""])
