"""A configuration as the JSON text of the config endpoint and of ``args["model_config"]``.

Proto3 JSON with the original's conventions: snake_case names in the order of the .proto, every scalar, list and map
printed even at its default, sub-messages and members of a oneof only when set, enums by name, 64-bit integers as
numbers save for the few that Triton leaves as strings. Compact.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from broker.proto import Message

# 64-bit fields that the original forgets to turn into numbers; clients parse what it sends.
_KEPT_AS_STRINGS = frozenset(
    {
        "inference.ModelSequenceBatching.InitialState.dims",
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    }
)
_CONTROL = re.compile(r"\\u00[01][0-9a-f]")

_Printer = Callable[[Any], str]


def to_json(message: Message) -> str:
    """The whole text; maps are printed by ascending key."""
    return _message_printer(message.DESCRIPTOR)(message)


@cache
def _message_printer(descriptor: Descriptor) -> _Printer:
    members = [(field.name, _member(field)) for field in descriptor.fields]

    def print_message(message: Message) -> str:
        texts = ((name, text(message)) for name, text in members)
        return "{" + ",".join(f'"{name}":{text}' for name, text in texts if text is not None) + "}"

    return print_message


def _member(field: FieldDescriptor) -> Callable[[Message], str | None]:
    """The text of one field of a message, None where it is not printed."""
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _map_member(field)
    printer = _value_printer(field)
    if field.is_repeated:
        return lambda message: "[" + ",".join(map(printer, getattr(message, name))) + "]"
    if field.message_type is not None or field.containing_oneof is not None:
        return lambda message: printer(getattr(message, name)) if message.HasField(name) else None
    return lambda message: printer(getattr(message, name))


def _map_member(field: FieldDescriptor) -> Callable[[Message], str | None]:
    name = field.name
    printer = _value_printer(field.message_type.fields_by_name["value"])

    def print_map(message: Message) -> str:
        entries = sorted(getattr(message, name).items())
        return "{" + ",".join(f"{_string(str(key))}:{printer(value)}" for key, value in entries) + "}"

    return print_map


def _value_printer(field: FieldDescriptor) -> _Printer:
    if field.message_type is not None:
        return lambda value: _message_printer(field.message_type)(value)
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return lambda value: f'"{names[value].name}"' if value in names else str(value)
    if field.full_name in _KEPT_AS_STRINGS:
        return lambda value: f'"{value}"'
    return {
        FieldDescriptor.CPPTYPE_STRING: _string,
        FieldDescriptor.CPPTYPE_BOOL: lambda value: "true" if value else "false",
        FieldDescriptor.CPPTYPE_FLOAT: _float,
        FieldDescriptor.CPPTYPE_DOUBLE: _double,
    }.get(field.cpp_type, str)


def _string(value: str) -> str:
    return _CONTROL.sub(lambda match: "\\u" + match[0][2:].upper(), json.dumps(value, ensure_ascii=False))


def _float(value: float) -> str:
    """The shortest digits that give the same 32-bit float, read as a double."""
    for digits in range(6, 9):
        text = f"{value:.{digits}g}"
        if _as_float32(float(text)) == value:
            return _double(float(text))
    return _double(float(f"{value:.9g}"))


def _as_float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _double(value: float) -> str:
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
