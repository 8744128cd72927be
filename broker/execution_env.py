"""Which Python environment a model is to run in, if it is not the server's own."""

from __future__ import annotations

from typing import NamedTuple

from broker.backends import Backend
from broker.model import VersionSource

PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


class ExecutionEnv(NamedTuple):
    """``path`` is an archive or a directory that holds an environment, or a requirements file to make one from; it may
    not exist. ``asked_by`` says in an error who names it."""

    path: str
    asked_by: str
    is_requirements: bool = False


def wanted(source: VersionSource, backend: Backend | None) -> ExecutionEnv | None:
    """The model's own wins over that of its backend, and what its configuration names over a file that lies there."""
    named = source.config.parameters.get(PARAMETER, "")
    if named:
        return ExecutionEnv(_resolve(named, source.directory), f"{PARAMETER} of model '{source.model}'")
    if source.requirements:
        return ExecutionEnv(source.requirements, f"requirements.txt of model '{source.model}'", is_requirements=True)
    if backend is not None and backend.environment:
        return ExecutionEnv(backend.environment, f"environment of backend '{backend.name}'")
    return None


def _resolve(path: str, model_directory: str) -> str:
    """Relative paths stay so: they are relative to the server's working directory."""
    return model_directory + path.removeprefix(_MODEL_DIRECTORY) if path.startswith(_MODEL_DIRECTORY) else path
