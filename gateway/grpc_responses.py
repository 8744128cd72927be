"""A Reply to the bytes of a ModelInferResponse (KServe v2 with Triton's additions); grpc_wire.py tells how they lie."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gateway.calls import OutputTensor
from gateway.grpc_wire import Pieces, varint
from gateway.proto import service_pb2
from protocol.errors import InvalidArgument
from protocol.messages import Parameters

MAX_MESSAGE_NBYTES = 2**31 - 1
RAW_OUTPUT_TAG = b"\x32"  # field 6, length-delimited

_ModelInferResponse = service_pb2.ModelInferResponse


def encode_response(
    model: str, version: str, request_id: str, parameters: Parameters, outputs: list[OutputTensor]
) -> Pieces:
    """A ModelInferResponse in pieces (tensor data by reference), for one join. Raises InvalidArgument if too large."""
    head = _opening(model, version)
    if request_id or parameters:
        message = _ModelInferResponse(id=request_id)
        for name, value in parameters.items():
            set_parameter(message.parameters[name], value)
        head += message.SerializeToString()
    data: Pieces = []
    nbytes = 0
    for name, datatype, shape, raw in outputs:
        head += _described(name, datatype, shape)
        opening = _raw_opening(len(raw))
        data += (opening, raw)
        nbytes += len(opening) + len(raw)
    nbytes += len(head)
    if nbytes > MAX_MESSAGE_NBYTES:
        raise InvalidArgument(
            f"Response has byte size {nbytes} which exceeds gRPC's byte size limit {MAX_MESSAGE_NBYTES}."
        )
    return [head, *data]


# Names, types, shapes and sizes recur from response to response.
@lru_cache(maxsize=1024)
def _opening(model: str, version: str) -> bytes:
    opening: bytes = _ModelInferResponse(model_name=model, model_version=version).SerializeToString()
    return opening


@lru_cache(maxsize=4096)
def _described(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    message = _ModelInferResponse()
    message.outputs.add(name=name, datatype=datatype, shape=shape)
    described: bytes = message.SerializeToString()
    return described


@lru_cache(maxsize=1024)
def _raw_opening(nbytes: int) -> bytes:
    return RAW_OUTPUT_TAG + varint(nbytes)


def set_parameter(target: Any, value: bool | int | float | str) -> None:
    """An InferParameter of the value's type (bool before int: it is one in Python)."""
    if isinstance(value, bool):
        target.bool_param = value
    elif isinstance(value, int):
        target.int64_param = value
    elif isinstance(value, float):
        target.double_param = value
    else:
        target.string_param = value
