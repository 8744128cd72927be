"""What a ModelInferRequest says of one tensor, beside its name, type and shape (KServe v2 with Triton's additions)."""

from __future__ import annotations

from typing import Any

import numpy

from gateway.grpc_wire import Pieces
from gateway.tensors import prefixed
from protocol.datatypes import ITEMSIZE
from protocol.errors import InvalidArgument, NotFound


def data_beside_raw(tensor: Any, model: str, raw: Pieces) -> bytes | None:
    """An input's bytes if they are not among the raw contents."""
    typed = tensor.HasField("contents")
    if len(tensor.parameters):
        region = _region(tensor)
        if region is not None and typed:
            raise InvalidArgument(
                f"unexpected 'content' provided when using shared memory for input tensor '{tensor.name}' "
                f"for model '{model}'"
            )
        if region is not None:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
    if not typed:
        return None
    if raw:
        raise InvalidArgument(
            f"contents field must not be specified when using raw_input_contents for '{tensor.name}' "
            f"for model '{model}'"
        )
    return _typed_data(tensor, model)


# Field of InferTensorContents, the datatype it carries, its numpy type, and narrower datatypes cut from its elements.
_CONTENTS: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("bool_contents", "BOOL", "?", {}),
    ("int_contents", "INT32", "<i4", {"INT8": "i1", "INT16": "<i2"}),
    ("int64_contents", "INT64", "<i8", {}),
    ("uint_contents", "UINT32", "<u4", {"UINT8": "u1", "UINT16": "<u2"}),
    ("uint64_contents", "UINT64", "<u8", {}),
    ("fp32_contents", "FP32", "<f4", {}),
    ("fp64_contents", "FP64", "<f8", {}),
    ("bytes_contents", "BYTES", "", {}),
)


def _typed_data(tensor: Any, model: str) -> bytes:
    """Typed contents in binary form; integers wrap when cut to a narrower datatype, as in C++."""
    data = b""
    contents = tensor.contents
    datatype = tensor.datatype
    for field, carried, number, narrower in _CONTENTS:
        elements = getattr(contents, field)
        count = len(elements)
        if not count:
            continue
        refusal = f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model}'"
        if data:
            raise InvalidArgument(f"{refusal}, binary data was already supplied.")
        if datatype != carried and datatype not in narrower:
            expected = datatype if datatype in ITEMSIZE else "<invalid>"
            raise InvalidArgument(f"{refusal} of type '{carried}', expected datatype '{expected}'")
        if carried == "BYTES":
            data = prefixed(elements)
        else:
            array = numpy.fromiter(elements, number, count)
            data = array.astype(narrower.get(datatype, number), copy=False).tobytes()
    return data


def requested_output(output: Any, classes: dict[str, int]) -> str:
    """The name; if it is to be classified, it is put in ``classes`` too. Client shared memory is not served."""
    name: str = output.name
    if len(output.parameters):
        region = _region(output)
        classification = output.parameters.get("classification")
        if classification is not None:
            if classification.WhichOneof("parameter_choice") != "int64_param":
                raise InvalidArgument("invalid value type for 'classification' parameter, expected int64_param")
            if classification.int64_param <= 0:
                raise InvalidArgument("invalid value for 'classification' parameter, expected >= 0")
            if region is not None:
                raise InvalidArgument("output can't set both 'shared_memory_region' and 'classification'")
            classes[name] = classification.int64_param
        if region is not None:
            raise NotFound(f"Unable to find shared memory region: '{region}'")
    return name


def _region(tensor: Any) -> str | None:
    """The client's shared memory region that a tensor names, with the types of its parameters checked."""
    parameters = tensor.parameters
    region: str | None = None
    if "shared_memory_region" in parameters:
        region = _region_parameter(tensor, "shared_memory_region", "string_param")
    for name in ("shared_memory_offset", "shared_memory_byte_size"):
        if name in parameters:
            if region is None:
                raise InvalidArgument(
                    f"'{name}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor.name}'"
                )
            _region_parameter(tensor, name, "int64_param")
    if region is not None and "shared_memory_byte_size" not in parameters:
        raise InvalidArgument(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor.name}'"
        )
    return region


def _region_parameter(tensor: Any, name: str, kind: str) -> Any:
    parameter = tensor.parameters[name]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidArgument(f"invalid value type for '{name}' parameter for tensor '{tensor.name}', expected {kind}.")
    return getattr(parameter, kind)
