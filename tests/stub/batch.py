"""Received tensors that lie in one piece, as those of requests that came one after the other may."""

from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
from _tensorbus_app.stub.numpy_types import DTYPE
from _tensorbus_app.stub.shared import messages
from _tensorbus_app.stub.tensor import receive


def side_by_side(
    name: str, count: int, rows: int = 1, datatype: str = "FP32", length: int = 8192
) -> Tuple[Any, List[Any]]:
    """The memory as one array, each row of ``length`` elements, and so many tensors of some rows."""
    memory = (np.arange(count * rows * length) % 50000).astype(DTYPE[datatype]).reshape(-1, length)
    nbytes = memory.nbytes // count
    view = memory.data.cast("B")
    tensors = [
        receive(
            name,
            datatype,
            (rows, length),
            view[start : start + nbytes],
            messages.Handle("{}".format(id(memory)), start + 64, nbytes),
        )[0]
        for start in range(0, memory.nbytes, nbytes)
    ]
    return memory, tensors
