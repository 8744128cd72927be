"""A model's response as KServe's JSON, for people: any datatype, and long data shortened."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from itertools import islice
from math import prod
from typing import Any

from gateway.tensors import elements, numbers
from protocol.datatypes import ITEMSIZE
from protocol.messages import Handle, Response, TensorRef
from protocol.signature import Signature

MOST = 16  # elements of a tensor


def response_text(
    signature: Signature, request_id: str, response: Response, frames: Sequence[bytes], shorten: bool
) -> str:
    """One line. ``frames`` hold the outputs."""
    answer: dict[str, Any] = {"id": request_id} if request_id else {}
    if response.error is not None:
        return _text(answer | {"error": response.error[1]})
    answer |= {"model_name": signature.model, "model_version": str(signature.version)}
    if response.parameters:
        answer["parameters"] = response.parameters
    answer["outputs"] = [_output(output, frames, shorten) for output in response.outputs]
    return _text(answer)


def _text(answer: dict[str, Any]) -> str:
    return json.dumps(answer, ensure_ascii=False)


def _output(output: TensorRef, frames: Sequence[bytes], shorten: bool) -> dict[str, Any]:
    place = output.place
    assert not isinstance(place, Handle)
    count = prod(output.shape)
    shown = min(count, MOST) if shorten else count
    data = _values(output.datatype, place if isinstance(place, bytes) else frames[place], shown)
    if shown < count:
        data.append(f"... {count - shown} more")
    return {"name": output.name, "datatype": output.datatype, "shape": list(output.shape), "data": data}


def _values(datatype: str, data: bytes, count: int) -> list[Any]:
    itemsize = ITEMSIZE[datatype]
    if itemsize is None:
        return [bytes(element).decode(errors="backslashreplace") for element in islice(elements(data), count)]
    data = data[: count * itemsize]
    values = numbers(datatype, data)
    if values is not None:
        return values
    if datatype == "FP16":
        return list(struct.unpack(f"<{count}e", data))
    # BF16 is the upper half of FP32.
    return [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
