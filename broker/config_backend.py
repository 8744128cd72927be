"""Guessing a model's backend from its configuration and files (the first stage of auto-completion).

Which of them can be served is settled later (broker/backends.py); a refusal names the backend that was recognised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.model_config import PYTHON_BACKEND, PYTHON_FILENAME
from broker.proto import Message
from protocol.errors import InvalidArgument
from protocol.signature import ENSEMBLE_PLATFORM


@dataclass(frozen=True, slots=True)
class _Backend:
    """How a backend is recognised. ``platforms``: the first is the one filled in; ``file_only``: a folder of that
    name does not count."""

    name: str
    platforms: tuple[str, ...]
    filename: str
    file_only: bool = False


_KNOWN = (
    _Backend("tensorflow", ("tensorflow_savedmodel",), "model.savedmodel"),
    _Backend("tensorflow", ("tensorflow_graphdef",), "model.graphdef", file_only=True),
    _Backend("tensorrt", ("tensorrt_plan",), "model.plan", file_only=True),
    _Backend("onnxruntime", ("onnxruntime_onnx",), "model.onnx"),
    _Backend("openvino", (), "model.xml"),
    _Backend("pytorch", ("pytorch_libtorch", "libtorch"), "model.pt", file_only=True),
    _Backend("pytorch", ("torch_aoti",), "model.pt2", file_only=True),
    _Backend(PYTHON_BACKEND, (), PYTHON_FILENAME),
)
_PLATFORMS: dict[str, set[str]] = {}
for _row in _KNOWN:
    _PLATFORMS.setdefault(_row.name, set()).update(_row.platforms)


def complete_backend(message: Message, model: str, files: Mapping[str, bool]) -> None:
    """Fill in name, backend, platform and default_model_filename where they are missing.

    ``files`` are the entries of the first version directory, each with whether it is a directory. Raises
    InvalidArgument when nothing tells the backend.
    """
    message.name = message.name or model
    if message.platform == ENSEMBLE_PLATFORM:
        return
    row = _named(message, files) if message.backend else _recognised(message, files)
    if row is not None:
        message.backend = row.name
        if row.platforms:
            message.platform = message.platform or row.platforms[0]
        message.default_model_filename = message.default_model_filename or row.filename
    elif not (message.backend or message.platform or message.default_model_filename):
        _complete_from_name(message, model)


def platform_fits(message: Message) -> bool:
    """Whether the platform is one that the (known) backend serves; unknown backends take any."""
    platforms = _PLATFORMS.get(message.backend)
    return not platforms or message.platform in platforms


def _named(message: Message, files: Mapping[str, bool]) -> _Backend | None:
    rows = [row for row in _KNOWN if row.name == message.backend]
    for row in rows:
        if message.platform in row.platforms or message.default_model_filename == row.filename:
            return row
    return next((row for row in rows if _present(row, files)), rows[0] if rows else None)


def _recognised(message: Message, files: Mapping[str, bool]) -> _Backend | None:
    for row in _KNOWN:
        if message.platform in row.platforms or message.default_model_filename == row.filename:
            return row
    if message.platform or message.default_model_filename:
        return None
    return next((row for row in _KNOWN if _present(row, files)), None)


def _present(row: _Backend, files: Mapping[str, bool]) -> bool:
    return row.filename in files and not (row.file_only and files[row.filename])


def _complete_from_name(message: Message, model: str) -> None:
    """``model.identity`` has backend "identity"."""
    _, dot, backend = model.partition(".")
    if not dot:
        raise InvalidArgument(
            f"Invalid model name: Could not determine backend for model '{model}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'."
        )
    message.backend = backend
    message.default_model_filename = f"model.{backend}"
