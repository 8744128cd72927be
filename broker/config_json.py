"""A configuration as JSON: the text of the config endpoint and of ``args["model_config"]``, and back.

Proto3 JSON with the original's conventions: snake_case names in the order of the .proto, every scalar, list and map
printed even at its default, sub-messages and members of a oneof only when set, enums by name, 64-bit integers as
numbers save for the few that Triton leaves as strings. Compact.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from broker import loose_json
from broker.proto import Message, ModelConfigMessage
from protocol.errors import InvalidArgument

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


def from_json(text: str) -> Message:
    """Both spellings of field names, 64-bit integers as numbers or strings, enum names in any case, and loose JSON;
    unknown fields are errors. Raises InvalidArgument."""
    try:
        value = loose_json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("a model configuration is a JSON object")
        return json_format.ParseDict(_fold_enums(value, ModelConfigMessage.DESCRIPTOR), ModelConfigMessage())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise InvalidArgument(str(error)) from error


def _fold_enums(value: Any, descriptor: Descriptor) -> Any:
    """Enum names in upper case, as the parser knows them; what has not the expected form is left to the parser."""
    if not isinstance(value, dict):
        return value
    fields = {spelling: field for field in descriptor.fields for spelling in (field.name, field.camelcase_name)}
    return {key: _fold_field(item, fields[key]) if key in fields else item for key, item in value.items()}


def _fold_field(value: Any, field: FieldDescriptor) -> Any:
    if isinstance(value, list):
        return [_fold_field(item, field) for item in value]
    if field.enum_type is not None:
        return value.upper() if isinstance(value, str) else value
    if field.message_type is None:
        return value
    if field.message_type.GetOptions().map_entry and isinstance(value, dict):
        return {key: _fold_field(item, field.message_type.fields_by_name["value"]) for key, item in value.items()}
    return _fold_enums(value, field.message_type)


@cache
def _message_printer(descriptor: Descriptor) -> _Printer:
    # The original adds the scalars of a oneof when all else is printed.
    fields = sorted(
        descriptor.fields, key=lambda field: field.message_type is None and field.containing_oneof is not None
    )
    members = [(field.name, _member(field)) for field in fields]

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
    return _number(value, 6, 9, lambda text: struct.unpack("<f", struct.pack("<f", float(text)))[0])


def _double(value: float) -> str:
    return _number(value, 15, 17, float)


def _number(value: float, short: int, long: int, parse: Callable[[str], float]) -> str:
    """Protocol buffers prints ``short`` digits if they give the same value, else ``long``; Triton reads that text and
    prints it once more: what looks like an integer as one, the rest by ``_shortest``."""
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    text = f"{value:.{short}g}"
    if parse(text) != value:
        text = f"{value:.{long}g}"
    return str(int(text)) if text.lstrip("-").isdecimal() else _shortest(float(text))


def _shortest(value: float) -> str:
    """As RapidJSON does: no exponent from 1e-6 up to 1e21, none with a plus sign or leading zeros."""
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)  # it is a letter for what is not finite
    text = "".join(map(str, digits))
    point = len(text) + exponent  # where the decimal point stands within the digits
    if exponent >= 0 and point <= 21:
        text = text + "0" * exponent + ".0"
    elif 0 < point <= 21:
        text = text[:point] + "." + text[point:]
    elif -6 < point <= 0:
        text = "0." + "0" * -point + text
    else:
        text = text[0] + ("." + text[1:] if text[1:] else "") + f"e{point - 1}"
    return "-" * sign + text
