"""The JSON header of an infer request: bytes to InferHeader.

``decode`` first has msgspec read it by type. Whatever that does not take, or is not plainly right (NaN, a wrong type,
a syntax error, duplicate members, a missing field), is read again with care, which ends in the same InferHeader or in
the error text that Triton's clients know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from gateway import http_json, http_tensors
from gateway.http_json import MISSING, JsonError, Members
from protocol.datatypes import ITEMSIZE
from protocol.errors import InvalidArgument, NotFound
from protocol.messages import SEQUENCE_END, SEQUENCE_START, Parameters
from protocol.validation import byte_size, element_count

T = TypeVar("T")


class HeaderInput(NamedTuple):
    """``nbytes`` of binary data behind the header, or ``data`` that stood in it, in binary form (``nbytes`` -1)."""

    name: str
    datatype: str
    shape: list[int]
    nbytes: int
    data: bytes


@dataclass(slots=True)
class InferHeader:
    """Shared between requests with the same header: never changed once decoded."""

    inputs: list[HeaderInput]
    request_id: str = ""
    outputs: list[str] = field(default_factory=list)
    binary: dict[str, bool] = field(default_factory=dict)  # of the listed outputs: behind the JSON, not in it
    default_binary: bool = False
    classes: dict[str, int] = field(default_factory=dict)  # of the listed outputs that are to be classified
    parameters: Parameters = field(default_factory=dict)
    correlation_id: int | str = 0
    flags: int = 0
    priority: int = 0
    timeout_us: int = 0


def decode(text: bytes | memoryview, max_input_size: int, recurring: bool) -> InferHeader:
    """``recurring``: worth remembering, because the tensors' data is not in it. Raises ServingError."""
    if len(text) > max_input_size:
        raise InvalidArgument(
            f"request JSON size of {len(text)} bytes exceeds the maximum allowed input size of {max_input_size} "
            "bytes. Use --http-max-input-size to increase the limit."
        )
    if recurring and len(text) <= _REMEMBERED_NBYTES:
        return _remembered(bytes(text), max_input_size)
    return _decode(bytes(text), max_input_size)


_REMEMBERED_NBYTES = 1024  # clients that send tensors in binary repeat the same small header


@lru_cache(maxsize=1024)
def _remembered(text: bytes, max_input_size: int) -> InferHeader:
    return _decode(text, max_input_size)


def _decode(text: bytes, max_input_size: int) -> InferHeader:
    try:
        return _read_typed(text, max_input_size)
    except http_tensors.ODD:
        return _read_carefully(text, max_input_size)


# --- by type ----------------------------------------------------------------------------------------------------

_Size = Annotated[int, msgspec.Meta(ge=0, le=http_json.INT64_MAX)]


class _InputParameters(msgspec.Struct, frozen=True, gc=False):
    binary_data_size: _Size | msgspec.UnsetType = msgspec.UNSET
    shared_memory_region: msgspec.Raw = msgspec.Raw()


class _Input(msgspec.Struct, gc=False):
    name: str
    datatype: str
    shape: list[_Size]
    data: msgspec.Raw = msgspec.Raw()
    parameters: _InputParameters = _InputParameters()


class _OutputParameters(msgspec.Struct, frozen=True, gc=False):
    binary_data: bool = False
    classification: _Size = 0
    shared_memory_region: msgspec.Raw = msgspec.Raw()


class _Output(msgspec.Struct, gc=False):
    name: str
    parameters: _OutputParameters = _OutputParameters()


class _Request(msgspec.Struct, gc=False):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, bool | int | float | str] = {}
    outputs: list[_Output] = []


_DECODER = msgspec.json.Decoder(_Request)


def _read_typed(text: bytes, max_input_size: int) -> InferHeader:
    """Raises one of http_tensors.ODD for anything unusual, right or wrong."""
    request = _DECODER.decode(text)
    count = text.count
    inputs = len(request.inputs)
    if (
        count(b'"name"') != inputs + len(request.outputs)
        or not count(b'"shape"') == count(b'"datatype"') == inputs >= count(b'"data"')
        or count(b'"inputs"') != 1
        or count(b'"id"') > 1
        or count(b'"outputs"') > 1
        or count(b'"parameters"') > 1 + inputs + len(request.outputs)
    ):
        raise ValueError("possibly a duplicate member")
    header = InferHeader([_typed_input(item, max_input_size) for item in request.inputs], request.id)
    for output in request.outputs:
        wanted = output.parameters
        if wanted.shared_memory_region or output.name in header.binary:
            raise ValueError("an unusual output")
        header.outputs.append(output.name)
        header.binary[output.name] = wanted.binary_data
        if wanted.classification:
            header.classes[output.name] = wanted.classification
    if request.parameters:
        _take_parameters(header, request.parameters.items())
    return header


def _typed_input(item: _Input, max_input_size: int) -> HeaderInput:
    nbytes = item.parameters.binary_data_size
    itemsize = ITEMSIZE.get(item.datatype, 0)
    if item.parameters.shared_memory_region or itemsize == 0:
        raise ValueError("an unusual input")
    count = 1
    for dim in item.shape:
        count *= dim
        if count > http_json.INT64_MAX:  # not to multiply ten thousands of such
            raise ValueError("a huge input")
    if count * (itemsize or 1) > max_input_size and (count * 8 > http_json.INT64_MAX or nbytes is msgspec.UNSET):
        raise ValueError("a huge input")
    if nbytes is not msgspec.UNSET:
        if item.data:
            raise ValueError("two sources of data")
        return HeaderInput(item.name, item.datatype, item.shape, nbytes, b"")
    data = http_tensors.from_json(item.datatype, count, item.data)
    if len(data) > max_input_size:
        raise ValueError("a huge input")
    return HeaderInput(item.name, item.datatype, item.shape, -1, data)


# --- with care --------------------------------------------------------------------------------------------------


def _parsed(name: str, read: Callable[[Any], T], value: Any) -> T:
    try:
        return read(value)
    except JsonError as error:
        raise JsonError(f"Unable to parse '{name}': {error}") from None


def _member(name: str, read: Callable[[Any], T], owner: Any) -> T:
    return _parsed(name, lambda value: read(http_json.member(value, name)), owner)


def _read_carefully(text: bytes, max_input_size: int) -> InferHeader:
    document = http_json.parse(text)
    header = InferHeader([])
    found = http_json.find(document, "id")
    if found is not MISSING:
        header.request_id = _parsed("id", http_json.as_string, found)
    found = http_json.find(document, "parameters")
    if found is not MISSING:
        if not isinstance(found, Members):
            raise JsonError("failed to get request params.: attempt to get members for non-object")
        _take_parameters(header, found)
    for item in _member("inputs", http_json.as_array, document):
        header.inputs.append(_careful_input(item, max_input_size))
    found = http_json.find(document, "outputs")
    if found is not MISSING:
        for item in _parsed("outputs", http_json.as_array, found):
            _careful_output(header, item)
    return header


def _take_parameters(header: InferHeader, items: Iterable[tuple[str, Any]]) -> None:
    """Request parameters: those with a meaning of their own, and the free ones for the model."""
    for key, value in items:
        if key == "sequence_id":
            whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= http_json.UINT64_MAX
            header.correlation_id = value if whole else _parsed(key, http_json.as_string, value)
        elif key == "sequence_start":
            header.flags |= SEQUENCE_START * _parsed(key, http_json.as_bool, value)
        elif key == "sequence_end":
            header.flags |= SEQUENCE_END * _parsed(key, http_json.as_bool, value)
        elif key == "priority":
            header.priority = _parsed(key, http_json.as_uint, value)
        elif key == "timeout":
            header.timeout_us = _parsed(key, http_json.as_uint, value)
        elif key == "binary_data_output":
            header.default_binary = _parsed(key, http_json.as_bool, value)
        elif key.startswith("triton_"):
            raise InvalidArgument(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        else:
            header.parameters[http_json.as_string(key)] = free_parameter(key, value)


def free_parameter(key: str, value: Any) -> bool | int | float | str:
    if isinstance(value, str):
        return http_json.as_string(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if http_json.INT64_MIN <= value <= http_json.INT64_MAX else float(value)
    if isinstance(value, (bool, float)):
        return value
    raise InvalidArgument(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _careful_input(item: Any, max_input_size: int) -> HeaderInput:
    tree = http_json.find(item, "data")
    parameters = http_json.find(item, "parameters")
    size = http_json.find(parameters, "binary_data_size")
    region = http_json.find(parameters, "shared_memory_region")
    sources = {"data": tree, "binary_data_size": size, "shared_memory_region": region}
    present = [name for name, value in sources.items() if value is not MISSING]
    if len(present) != 1:
        fields = "set " + " ".join(f"'{name}'" for name in present) if present else "no field is set"
        raise InvalidArgument(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters'. But {fields}"
        )
    name = _member("name", http_json.as_string, item)
    datatype = _member("datatype", http_json.as_string, item)
    shape = _parsed(
        "shape", lambda dims: [http_json.as_uint(dim) for dim in dims], _member("shape", http_json.as_array, item)
    )
    if datatype not in ITEMSIZE:
        raise InvalidArgument(f"invalid datatype for input {name}")
    count = element_count(name, shape)
    byte_size(name, count, ITEMSIZE[datatype] or 1)
    if region is not MISSING:
        raise _no_region(region)
    if size is not MISSING:
        return HeaderInput(name, datatype, shape, _parsed("binary_data_size", http_json.as_uint, size), b"")
    # No model takes a tensor without dimensions: its shape is what it will be refused for, whatever the data.
    data = _careful_data(name, datatype, count, tree, max_input_size) if shape else b""
    return HeaderInput(name, datatype, shape, -1, data)


def _careful_data(name: str, datatype: str, count: int, tree: Any, max_input_size: int) -> bytes:
    if datatype in ("FP16", "BF16"):
        raise InvalidArgument(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input {name}"
        )
    nbytes = byte_size(name, count, ITEMSIZE[datatype] or 1)
    if nbytes <= max_input_size:
        data = http_tensors.from_values(datatype, count, tree)
        nbytes = len(data)
        if nbytes <= max_input_size:
            return data
    raise InvalidArgument(
        f"JSON input '{name}' has a byte_size ({nbytes} bytes) that exceeds the maximum allowed value of "
        f"{max_input_size} bytes. Use --http-max-input-size to increase the limit."
    )


def _careful_output(header: InferHeader, item: Any) -> None:
    """The last of several with one name counts."""
    name = _member("name", http_json.as_string, item)
    parameters = http_json.find(item, "parameters")
    wanted = {key: http_json.find(parameters, key) for key in ("classification", "binary_data", "shared_memory_region")}
    classes, binary, region = wanted.values()
    if region is not MISSING:
        for key in ("classification", "binary_data"):
            if wanted[key] is not MISSING:
                raise InvalidArgument(f"Output can't set both 'shared_memory_region' and '{key}'")
        raise _no_region(region)
    try:
        top = 0 if classes is MISSING else http_json.as_uint(classes)
    except JsonError as error:
        raise JsonError(f"Unable to set 'classification': {error}") from None
    if name not in header.binary:
        header.outputs.append(name)
    header.binary[name] = binary is not MISSING and _parsed("binary_data", http_json.as_bool, binary)
    header.classes.pop(name, None)
    if top:
        header.classes[name] = top


def _no_region(region: Any) -> NotFound:
    """Clients have no way to register shared memory here, so no region is known."""
    return NotFound(
        f"Unable to find shared memory region: '{_parsed('shared_memory_region', http_json.as_string, region)}'"
    )
