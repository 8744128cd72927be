"""``pb_utils.load_model``, ``unload_model`` and ``is_model_ready``: a model has the server load and unload others.

From ``initialize`` and ``execute``, in any thread; each call blocks (without the GIL) until the server has answered.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from .arguments import incompatible, text_argument
from .shared import messages
from .told import value_of
from .triton_error import TritonModelException

_NO_SERVER = "there is no server to ask; models are loaded and unloaded from 'initialize', 'execute' and later threads"


def load_model(model_name: str, config: str = "", files: Optional[Mapping[str, bytes]] = None) -> None:
    """Returns once the model is ready. ``config`` is JSON in place of its config.pbtxt; ``files``, contents by
    "file:<version>/<name>", take the place of its directory. If it fails, what has served goes on serving.

    Raises TritonModelException."""
    signature = "(model_name: str, config: str = '', files: object = None) -> None"
    name, text = _texts("load_model", signature, model_name, config)
    contents = None if files is None else _contents(name, files)
    value_of(
        lambda call: messages.Control(messages.CONTROL, call, "load", name, config=text, files=contents),
        "Failed to load model: ",
        _NO_SERVER,
    )


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Returns once the model takes no new requests; those in flight end before it finalizes. Raises
    TritonModelException."""
    signature = "(model_name: str, unload_dependents: bool = False) -> None"
    (name,) = _texts("unload_model", signature, model_name)
    dependents = bool(unload_dependents)
    value_of(
        lambda call: messages.Control(messages.CONTROL, call, "unload", name, unload_dependents=dependents),
        "Failed to unload model: ",
        _NO_SERVER,
    )


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Raises TritonModelException for a model or version that is not known."""
    signature = "(model_name: str, model_version: str = '') -> bool"
    name, version = _texts("is_model_ready", signature, model_name, model_version)
    ready = value_of(
        lambda call: messages.Control(messages.CONTROL, call, "is_ready", name, version),
        "Failed to check model readiness: ",
        _NO_SERVER,
    )
    return bool(ready)


def _texts(function: str, signature: str, *values: Any) -> List[str]:
    try:
        return [text_argument(function, value) for value in values]
    except TypeError:
        raise incompatible(function, signature, *values) from None


def _contents(model: str, files: Any) -> Dict[str, bytes]:
    if not isinstance(files, dict):
        raise TritonModelException(
            "failed to load model '{}', files should be a dictionary of file paths and file contents".format(model)
        )
    return {text_argument("load_model", path): _content(content) for path, content in files.items()}


def _content(content: Any) -> bytes:
    if isinstance(content, str):
        return text_argument("load_model", content).encode()
    if isinstance(content, (bytes, bytearray)):
        return bytes(content)
    raise incompatible("load_model", "files: Dict[str, bytes]", content)
