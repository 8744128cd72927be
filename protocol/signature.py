"""What a gateway must know of a model version to check and answer requests; made by the broker from its config."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Tuple

ENSEMBLE_PLATFORM = "ensemble"


class TensorSpec(NamedTuple):
    """An input or output as configured. ``dims`` has no batch dimension; -1 is variable."""

    name: str
    datatype: str  # wire name, e.g. "FP32"
    dims: Tuple[int, ...]
    optional: bool = False
    ragged: bool = False
    reshape: Optional[Tuple[int, ...]] = None  # what the model sees instead of dims


class Signature(NamedTuple):
    """One loaded model version."""

    model: str
    version: int
    platform: str  # config platform, else the backend
    max_batch_size: int
    decoupled: bool
    inputs: Tuple[TensorSpec, ...]
    outputs: Tuple[TensorSpec, ...]
    config_json: str  # the config endpoint's body
    config_proto: bytes  # serialized inference.ModelConfig
    labels: Mapping[str, Tuple[str, ...]] = {}  # of an output's elements, by its name; "" is none
    batching: bool = False  # requests of several clients may make one batch


class IndexEntry(NamedTuple):
    """One row of the repository index; version -1: none was ever loaded, and ``state`` is "" unless it cannot be."""

    name: str
    version: int
    state: str  # UNKNOWN, READY, UNAVAILABLE, LOADING, UNLOADING
    reason: str = ""
