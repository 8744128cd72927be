"""Requests for a model in the foreground: from a file, or made up from its configuration."""

from __future__ import annotations

import sys
from math import prod

import msgspec

from gateway.calls import InferCall, InputTensor
from gateway.http_infer import read_request
from protocol.datatypes import ITEMSIZE
from protocol.errors import InvalidArgument
from protocol.signature import Signature, TensorSpec
from tensorbus.tensors import read_npz


def read(path: str, signature: Signature) -> list[InferCall]:
    """JSON: KServe's request object, or a list of such. ``.npz``: one request, its arrays by the names of the inputs.

    Raises OSError and ServingError; the requests are not checked against the model's configuration yet.
    """
    if path.endswith(".npz"):
        return [InferCall(signature.model, signature.version, _arrays(path))]
    with open(path, "rb") as file:
        text = file.read().strip()
    return [_json(request, signature) for request in _requests(text, path)]


def zeros(signature: Signature) -> InferCall:
    """All inputs that must be there: zeros and empty strings, of the configured shape with 1 for what is variable."""
    inputs = [_zeros(spec, signature.max_batch_size > 0) for spec in signature.inputs if not spec.optional]
    return InferCall(signature.model, signature.version, inputs)


def _arrays(path: str) -> list[InputTensor]:
    try:
        return read_npz(path)
    except ValueError as error:
        raise InvalidArgument(f"{path}: {error}") from None


def _requests(text: bytes, path: str) -> list[bytes]:
    if not text.startswith(b"["):
        return [text]
    try:
        return [bytes(each) for each in msgspec.json.decode(text, type=list[msgspec.Raw])]
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"{path}: {error}") from None


def _json(text: bytes, signature: Signature) -> InferCall:
    call, header = read_request(memoryview(text), len(text), signature, sys.maxsize)
    if header.classes:
        raise InvalidArgument("classification is the server's: a model in the foreground gives its outputs as they are")
    return call


def _zeros(spec: TensorSpec, batching: bool) -> InputTensor:
    shape = [1] * batching + [max(dim, 1) for dim in spec.dims]
    itemsize = ITEMSIZE[spec.datatype]
    nbytes = prod(shape) * (4 if itemsize is None else itemsize)  # an empty string is a length of four bytes
    return InputTensor(spec.name, spec.datatype, shape, bytes(nbytes))
