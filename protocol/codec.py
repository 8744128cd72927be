"""MessagePack by msgspec, typed: bytes become a message or a ProtocolError here and nowhere else.

For gateway and broker. Stubs use plain msgpack (stub/codec.py); a test proves that both write the same bytes.
"""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec

from protocol.errors import ProtocolError
from protocol.messages import TO_BROKER, ToBroker, ToStub
from protocol.services import FROM_SERVICE, TO_SERVICE, FromService, ToService

_ENCODER = msgspec.msgpack.Encoder()
_LENIENT = msgpack.Packer(unicode_errors="backslashreplace", default=str)

_FIXSTR_1 = 0xA1
_FROM_STUB: dict[str, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(message) for kind, message in TO_BROKER.items()
}


_FROM_SERVICE: dict[str, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(message) for kind, message in FROM_SERVICE.items()
}
_TO_SERVICE: dict[str, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(message) for kind, message in TO_SERVICE.items()
}


def encode(message: ToStub | ToBroker | FromService | ToService) -> bytes:
    """Always: a lone surrogate (of a path, say), which no encoding has, becomes its escape, a number of more than 64
    bits its digits. What shares a turn of the loop with such a message must leave, too."""
    try:
        return _ENCODER.encode(message)
    except (UnicodeEncodeError, OverflowError):
        data: bytes = _LENIENT.pack(message)
        return data


def decode_from_stub(data: bytes | memoryview) -> ToBroker:
    """One header frame from a stub. Raises ProtocolError."""
    message: ToBroker = _decode(_FROM_STUB, data)
    return message


def decode_from_service(data: bytes | memoryview) -> FromService:
    """What a gateway or a stub host tells the broker. Raises ProtocolError."""
    message: FromService = _decode(_FROM_SERVICE, data)
    return message


def decode_to_service(data: bytes | memoryview) -> ToService:
    """What the broker tells a gateway or a stub host. Raises ProtocolError."""
    message: ToService = _decode(_TO_SERVICE, data)
    return message


def kind_of(data: bytes | memoryview) -> str:
    """[fixarray, fixstr of length 1, kind, ...]: the kind is the third byte of every message. "" if it is none."""
    return chr(data[2]) if len(data) > 2 and data[1] == _FIXSTR_1 else ""


def _decode(decoders: dict[str, msgspec.msgpack.Decoder[Any]], data: bytes | memoryview) -> Any:
    decoder = decoders.get(chr(data[2])) if len(data) > 2 and data[1] == _FIXSTR_1 else None
    if decoder is None:
        raise ProtocolError("unknown message kind")
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(str(error)) from error
