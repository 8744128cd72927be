"""Versions of models and ensembles for the core. Tensors are FP32 of four elements, and named "X" unless told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.model import VersionSource
from broker.model_config import ModelConfig, ModelConfigMessage, from_message

Names = Mapping[str, str]  # of tensors, the model's to the ensemble's
Steps = Sequence[tuple[str, Names, Names]]  # a model, its inputs and outputs


def config(
    name: str,
    steps: Steps = (),
    inputs: Sequence[str] = ("X",),
    output: str = "X",
    instances: int = 1,
    **fields: object,
) -> ModelConfig:
    """Of an ensemble if there are ``steps``; ``fields`` are further ones of the message."""
    message = ModelConfigMessage(name=name, **fields)
    for io, io_name in (*((message.input.add(), one) for one in inputs), (message.output.add(), output)):
        io.name, io.data_type, io.dims[:] = io_name, 11, [4]
    for model, input_map, output_map in steps:
        message.ensemble_scheduling.step.add(
            model_name=model, model_version=-1, input_map=input_map, output_map=output_map
        )
    if steps:
        message.platform = "ensemble"
    else:
        message.backend = "python"
        message.instance_group.add(count=instances, name=name)
    return from_message(message)


def source(name: str, steps: Steps = (), fingerprint: str = "", **fields: object) -> VersionSource:
    """Version 1; the rest is for ``config``."""
    return VersionSource(name, 1, f"/repo/{name}", config(name, steps, **fields), fingerprint=fingerprint)
