"""Writes model repositories to measure: each model a file of benchmarks/models with a generated config.pbtxt."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).with_name("models")

KINDS = ("input", "output")
_SIGNATURES = {
    "add_sub": (("INPUT0", "INPUT1"), ("OUTPUT0", "OUTPUT1"), 16),
    "identity": (("INPUT0",), ("OUTPUT0",), -1),
    "busy": (("INPUT0",), ("OUTPUT0",), 16),
    "sleep": (("INPUT0",), ("OUTPUT0",), 16),
    "chain": (("INPUT0",), ("OUTPUT0",), -1),
    "repeat": (("INPUT0",), ("OUTPUT0",), 1),
    "batched": (("INPUT0",), ("OUTPUT0",), 16),
    "accumulate": (("INPUT0",), ("OUTPUT0",), 16),
    "increment": (("INPUT0",), ("OUTPUT0",), 16),
}
CONTROLS = """
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START bool_false_true: [ false, true ] } }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END bool_false_true: [ false, true ] } }
  control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
  control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""


class Model(NamedTuple):
    """A model of a repository: ``source`` is one of benchmarks/models, run by ``instances`` processes. One that has a
    largest batch size is batched dynamically, unless ``scheduling`` says otherwise."""

    name: str
    source: str
    instances: int = 1
    decoupled: bool = False
    max_batch_size: int = 0
    scheduling: str = "dynamic_batching {}"


class Ensemble(NamedTuple):
    """A model of ``steps``, each of one input and one output, which it runs in turn."""

    name: str
    steps: tuple[str, ...]
    dim: int = 16


def write(directory: Path, models: tuple[Model | Ensemble, ...]) -> Path:
    for model in models:
        version = directory / model.name / "1"
        version.mkdir(parents=True)
        if isinstance(model, Model):
            shutil.copy(SOURCES / f"{model.source}.py", version / "model.py")
        config = _config(model) if isinstance(model, Model) else _ensemble_config(model)
        (directory / model.name / "config.pbtxt").write_text(config)
    return directory


def _ensemble_config(model: Ensemble) -> str:
    tensors = ["INPUT0", *(f"between_{number}" for number in range(1, len(model.steps))), "OUTPUT0"]
    steps = [
        f'step {{ model_name: "{step}" model_version: -1 input_map {{ key: "INPUT0" value: "{tensors[number]}" }} '
        f'output_map {{ key: "OUTPUT0" value: "{tensors[number + 1]}" }} }}'
        for number, step in enumerate(model.steps)
    ]
    lines = [f'{kind} {{ name: "{kind.upper()}0" data_type: TYPE_FP32 dims: [ {model.dim} ] }}' for kind in KINDS]
    return "\n".join(['platform: "ensemble"', *lines, "ensemble_scheduling {", *steps, "}", ""])


def _config(model: Model) -> str:
    inputs, outputs, dim = _SIGNATURES[model.source]
    tensors = [("input", name) for name in inputs] + [("output", name) for name in outputs]
    lines = [f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [ {dim} ] }}' for kind, name in tensors]
    group = f"instance_group {{ kind: KIND_CPU count: {model.instances} }}"
    policy = f"model_transaction_policy {{ decoupled: {str(model.decoupled).lower()} }}"
    batching = [f"max_batch_size: {model.max_batch_size}", model.scheduling] if model.max_batch_size else []
    return "\n".join(['backend: "python"', *batching, *lines, group, policy, ""])
