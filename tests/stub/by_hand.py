"""What a broker tells a stub, made by hand, and what is in the answers; for the ends of the bus that tests play."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from protocol.messages import Batch, Handle, Request, Response, TensorRef
from shm.store import Reader, Store

DTYPES = {"FP32": numpy.float32, "INT32": numpy.int32, "UINT8": numpy.uint8}
TENSORS = {
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
}


def load_args(directory: Path, config: dict[str, Any], model: str = "m", version: str = "1") -> dict[str, str]:
    """Load.args of the first instance; ``directory`` is the model's."""
    return {
        "model_config": json.dumps(config),
        "model_instance_kind": "CPU",
        "model_instance_name": f"{model}_0",
        "model_instance_device_id": "0",
        "model_repository": str(directory),
        "model_version": version,
        "model_name": model,
    }


def request(id: int, values: Sequence[float], store: Store | None) -> tuple[Request, list[bytes]]:
    """With an input IN of FP32 in ``store``; without one, in the frames that go with the request."""
    data = numpy.array(values, numpy.float32).tobytes()
    place: Handle | int = 0
    if store is not None:
        block = store.allocate(len(data))
        block.view[:] = data
        place = Handle(*block[:3])
    tensor = TensorRef("IN", "FP32", (len(values),), place)
    return Request(id, "m", 1, [tensor]), [data] if store is None else []


def batches(requests: Sequence[Request]) -> list[Batch]:
    """Each request as a batch of its own, which has the request's id."""
    return [Batch(request.id, [request]) for request in requests]


def values(response: Response, frames: Sequence[bytes], reader: Reader) -> list[Any]:
    """What is in its one output."""
    assert response.error is None, response.error
    (tensor,) = response.outputs
    place = tensor.place
    data = frames[place] if isinstance(place, int) else reader.view(*place)
    return numpy.frombuffer(data, DTYPES[tensor.datatype]).reshape(tensor.shape).tolist()
