"""What a model says of itself to the metadata endpoints."""

from __future__ import annotations

from typing import NamedTuple

from protocol.signature import Signature, TensorSpec


class TensorMetadata(NamedTuple):
    """``shape`` has a leading -1 for a batching model."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelMetadata(NamedTuple):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


def model_metadata(signature: Signature, versions: list[int]) -> ModelMetadata:
    batching = signature.max_batch_size > 0
    return ModelMetadata(
        signature.model,
        [str(version) for version in versions],
        signature.platform,
        _described(signature.inputs, batching),
        _described(signature.outputs, batching),
    )


def _described(specs: tuple[TensorSpec, ...], batching: bool) -> list[TensorMetadata]:
    lead = (-1,) if batching else ()
    return [TensorMetadata(spec.name, spec.datatype, lead + spec.dims) for spec in specs]
