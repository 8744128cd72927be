"""Ragged batches: requests of any shape run as one, their elements in a row, with tensors that tell where each begins.

    request 0   [[1, 2, 3]]   |
    request 1   [[4]]         |  input [1, 2, 3, 4, 5, 6], BATCH_ACCUMULATED_ELEMENT_COUNT [3, 4, 6]
    request 2   [[5, 6]]      |

Pure; what a configuration calls batch_input and batch_output.
"""

from __future__ import annotations

import math
from typing import Any, Dict, FrozenSet, List, Sequence, Tuple

import numpy as np

Shape = Tuple[int, ...]
_DTYPES = {"TYPE_INT32": np.int32, "TYPE_FP32": np.float32}


def ragged_inputs(config: Dict[str, Any]) -> FrozenSet[str]:
    return frozenset(entry["name"] for entry in config["input"] if entry.get("allow_ragged_batch"))


def batch_inputs(config: Dict[str, Any], requests: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
    """The further inputs of a run. ``requests`` are the arrays of each, with their batch dimension."""
    found: Dict[str, Any] = {}
    for entry in config.get("batch_input", []):
        shapes = [tuple(arrays[entry["source_input"][0]].shape) for arrays in requests]
        values = _values(entry["kind"], shapes).astype(_DTYPES[entry["data_type"]])
        found.update(dict.fromkeys(entry["target_name"], values))
    return found


def _values(kind: str, shapes: List[Shape]) -> Any:
    counts = np.array([math.prod(shape) for shape in shapes])
    if kind == "BATCH_ELEMENT_COUNT":
        return counts
    if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT":
        return counts.cumsum()
    if kind == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
        return np.array([0, *counts.cumsum()])
    if kind == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
        return np.zeros(counts.max())
    items = np.array([shape[1:] for shape in shapes for _ in range(shape[0])])
    return items if kind == "BATCH_ITEM_SHAPE" else items.reshape(-1)


def scattered_outputs(config: Dict[str, Any]) -> Dict[str, str]:
    """By name, the input whose shapes tell how the elements of that output belong to requests."""
    return {name: entry["source_input"][0] for entry in config.get("batch_output", []) for name in entry["target_name"]}


def scatter(name: str, array: Any, dims: Sequence[int], shapes: Sequence[Shape]) -> List[Any]:
    """A view for each request. Variable dims of the output are those of the input, of ``shapes``. Raises ValueError."""
    wanted = [(shape[0], *(given if dim == -1 else dim for dim, given in zip(dims, shape[1:]))) for shape in shapes]
    counts = [math.prod(shape) for shape in wanted]
    if array.size != sum(counts):
        text = "output '{}' has {} elements for requests that need {}"
        raise ValueError(text.format(name, array.size, sum(counts)))
    parts = np.split(array.reshape(-1), np.cumsum(counts)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, wanted)]
