"""Ensembles for system tests: their configurations, of steps that read and write tensors by name."""

from __future__ import annotations

from pathlib import Path

from tests.system.conftest import Repository

Maps = dict[str, str]


def tensors(kind: str, *names: str, dims: str = "-1", datatype: str = "FP32") -> str:
    """``kind`` is "input" or "output"; a name that ends in "?" is optional."""
    rows = []
    for name in names:
        optional = "optional: true" if name.endswith("?") else ""
        rows.append(f'{{ name: "{name.rstrip("?")}" data_type: TYPE_{datatype} dims: [ {dims} ] {optional} }}')
    return f"{kind} [{', '.join(rows)}]\n"


def step(model: str, inputs: Maps, outputs: Maps) -> str:
    maps = [
        f'{kind} {{ key: "{key}" value: "{value}" }}'
        for kind, one in (("input_map", inputs), ("output_map", outputs))
        for key, value in one.items()
    ]
    return f'{{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'


def add_ensemble(
    repository: Repository, name: str, *steps: str, io: str = "", max_batch_size: int = 0, settings: str = ""
) -> Path:
    """From IN to OUT, FP32 [-1], unless ``io`` says otherwise; its directory."""
    directory = repository.path / name
    (directory / "1").mkdir(parents=True)
    io = io or tensors("input", "IN") + tensors("output", "OUT")
    text = f'platform: "ensemble"\nmax_batch_size: {max_batch_size}\n{io}'
    text += f"ensemble_scheduling {{ step [ {', '.join(steps)} ] {settings} }}\n"
    (directory / "config.pbtxt").write_text(text)
    return directory


def add_chain(repository: Repository, name: str, *models: str) -> Path:
    """Of models from IN to OUT."""
    names = ["IN", *(f"t{index}" for index in range(1, len(models))), "OUT"]
    steps = [step(model, {"IN": names[i]}, {"OUT": names[i + 1]}) for i, model in enumerate(models)]
    return add_ensemble(repository, name, *steps)
