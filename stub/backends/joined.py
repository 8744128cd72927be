"""Requests that run as one: tensors of several requests put together along the first dimension, and taken apart again.

Pure, and for arrays of any library whose arrays have ``shape`` and can be sliced.
"""

from __future__ import annotations

from typing import AbstractSet, Any, Callable, Dict, Iterator, List, NamedTuple, Sequence

Arrays = Dict[str, Any]


class Joined(NamedTuple):
    """``members`` are the positions of the requests, ``rows`` how many of each there are in ``inputs``."""

    members: List[int]
    rows: List[int]
    inputs: Arrays

    def split(self, name: str, array: Any) -> List[Any]:
        """Output ``name``: a view for each member. That of one request is its own; raises ValueError if rows lack."""
        if len(self.members) == 1:
            return [array]
        if not array.shape or array.shape[0] != sum(self.rows):
            text = "output '{}' has shape {} for a batch of {}"
            raise ValueError(text.format(name, list(array.shape), sum(self.rows)))
        parts, start = [], 0
        for rows in self.rows:
            parts.append(array[start : start + rows])
            start += rows
        return parts


def join(
    inputs: Sequence[Arrays],
    batching: bool,
    concatenate: Callable[[str, List[int], List[Any]], Any],
    ragged: AbstractSet[str] = frozenset(),
) -> Iterator[Joined]:
    """Requests with the same inputs, alike in all but the first dimension, become one; of a lone one nothing is copied.

    ``inputs`` are the arrays of each request; ``concatenate`` is given the name of one, and of the requests their
    positions and their arrays. The elements of those that are ``ragged`` follow each other, whatever their shape.
    """
    alike: Dict[Any, List[int]] = {}
    for position, arrays in enumerate(inputs):
        alike.setdefault(_form(arrays, ragged) if batching else position, []).append(position)
    for members in alike.values():
        rows = [_rows(inputs[member]) for member in members]
        flat = [_flat(inputs[member], ragged) for member in members]
        if len(members) == 1:
            yield Joined(members, rows, flat[0])
        else:
            joined = {name: concatenate(name, members, [arrays[name] for arrays in flat]) for name in flat[0]}
            yield Joined(members, rows, joined)


def _form(arrays: Arrays, ragged: AbstractSet[str]) -> Any:
    return tuple(
        (name, str(array.dtype), () if name in ragged else tuple(array.shape[1:]))
        for name, array in sorted(arrays.items())
    )


def _flat(arrays: Arrays, ragged: AbstractSet[str]) -> Arrays:
    return {name: array.reshape(-1) if name in ragged else array for name, array in arrays.items()}


def _rows(arrays: Arrays) -> int:
    return next((array.shape[0] for array in arrays.values() if len(array.shape)), 0)
