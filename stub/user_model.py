"""The user's model file: finding it, importing it, making and initialising its ``TritonPythonModel``."""

from __future__ import annotations

from typing import Any, Dict


class LoadError(Exception):
    """Loading failed; ``str(error)`` is the text for the client (``Failed.text``), its kind is INTERNAL."""


class UserModel:
    """An instance of the user's ``TritonPythonModel`` and what the stub must know of it."""

    model_file: str
    args: Dict[str, str]
    instance: Any

    @classmethod
    def load(cls, model_file: str, args: Dict[str, str]) -> UserModel:
        """Imports the file, instantiates the class, calls ``initialize(args)``. Raises LoadError."""
        raise NotImplementedError


def auto_complete(model_file: str, args: Dict[str, str]) -> str:
    """Imports the file and returns the configuration (JSON) as its ``auto_complete_config`` left it.

    ``args["model_config"]`` unchanged where the model has none. Raises LoadError.
    """
    raise NotImplementedError
