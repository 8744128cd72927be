"""Loading and unloading models from a model. A later capability: for now each call ends in a clear exception."""

from __future__ import annotations

from typing import Mapping, NoReturn, Optional

from .triton_error import TritonModelException


def load_model(model_name: str, config: str = "", files: Optional[Mapping[str, bytes]] = None) -> NoReturn:
    raise _unsupported("Failed to load model")


def unload_model(model_name: str, unload_dependents: bool = False) -> NoReturn:
    raise _unsupported("Failed to unload model")


def is_model_ready(model_name: str, model_version: str = "") -> NoReturn:
    raise _unsupported("Failed to check model readiness")


def _unsupported(prefix: str) -> TritonModelException:
    return TritonModelException(prefix + ": model control from models is not supported by this version of tensorbus.")
