"""Requests that run as one: tensors of several requests put together along the first dimension, and taken apart again.

Pure, and for arrays of any library whose arrays have ``shape`` and can be sliced.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence

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


def join(inputs: Sequence[Arrays], batching: bool, concatenate: Callable[[List[Any]], Any]) -> Iterator[Joined]:
    """Requests with the same inputs, alike in all but the first dimension, become one; of a lone one nothing is copied.

    ``inputs`` are the arrays of each request.
    """
    alike: Dict[Any, List[int]] = {}
    for position, arrays in enumerate(inputs):
        alike.setdefault(_form(arrays) if batching else position, []).append(position)
    for members in alike.values():
        first = inputs[members[0]]
        rows = [_rows(inputs[member]) for member in members]
        if len(members) == 1:
            yield Joined(members, rows, first)
        else:
            whole = {name: concatenate([inputs[member][name] for member in members]) for name in first}
            yield Joined(members, rows, whole)


def _form(arrays: Arrays) -> Any:
    return tuple((name, str(array.dtype), tuple(array.shape[1:])) for name, array in sorted(arrays.items()))


def _rows(arrays: Arrays) -> int:
    return next((array.shape[0] for array in arrays.values() if len(array.shape)), 0)
