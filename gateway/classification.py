"""The classification extension: an output's largest elements in place of the output, with their labels (KServe v2)."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest

from gateway.tensors import numbers, prefixed
from protocol.errors import InvalidArgument

_MAX_WIDTH = 1_000_000  # elements of a row, as in the original
_MAX_ELEMENTS = 1 << 22  # of an output; to look through more would hold up the event loop for a second


def top_classes(
    datatype: str, data: bytes | memoryview, rows: int, classes: int, labels: Sequence[str]
) -> tuple[int, bytes]:
    """How many elements of each row are left (``classes``, or all there are), and these as a BYTES tensor of
    ``<value>:<index>[:<label>]``, the largest first. Raises InvalidArgument."""
    values = None if datatype == "BOOL" else numbers(datatype, data)
    if values is None:
        raise InvalidArgument(f"class result not available for output due to unsupported type '{datatype}'")
    width = len(values) // rows if rows else 0
    if width > _MAX_WIDTH or len(values) > _MAX_ELEMENTS:
        raise InvalidArgument("classification output tensor too large")
    top = min(classes, width)
    texts: list[bytes] = []
    for start in range(0, rows * width, width or 1):
        row = values[start : start + width]
        texts += (_text(row[index], index, labels) for index in nlargest(top, range(width), key=row.__getitem__))
    return top, prefixed(texts)


def _text(value: int | float, index: int, labels: Sequence[str]) -> bytes:
    text = (b"%f:%d" if isinstance(value, float) else b"%d:%d") % (value, index)  # as C++'s std::to_string
    label = labels[index] if index < len(labels) else ""
    return b"%b:%b" % (text, label.encode()) if label else text
