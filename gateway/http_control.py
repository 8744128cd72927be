"""Loading and unloading by HTTP: what the bodies of these requests ask for (KServe v2, model repository extension)."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from gateway import http_json
from gateway.http_json import MISSING, JsonError, Members
from protocol.errors import InternalError, InvalidArgument

_FILE = "file:"


class LoadParameters(NamedTuple):
    """``config`` is JSON text in place of config.pbtxt, None for none; ``files`` are by "file:<path>"."""

    config: str | None
    files: dict[str, bytes]


def load_parameters(document: object) -> LoadParameters:
    """Raises InternalError or InvalidArgument."""
    config: str | None = None
    files: dict[str, bytes] = {}
    for name, value in _parameters(document):
        text = http_json.as_string(value)
        if name == "config":
            config = text
        elif name.startswith(_FILE):
            files[name] = _decoded(name, text)
        else:
            raise InternalError("unexpected error on creating Triton parameter")
    return LoadParameters(config, files)


def unloads_dependents(document: object) -> bool:
    """What else the parameters hold is ignored."""
    return any(name == "unload_dependents" and value is True for name, value in _parameters(document))


def _parameters(document: object) -> Members:
    found = http_json.find(document, "parameters")
    if found is MISSING:
        return Members()
    if not isinstance(found, Members):
        raise JsonError("attempt to get members for non-object")
    return found


def _decoded(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument(f"load parameter '{name}' is not valid base64") from None
