"""Python-based backends: a folder ``<directory>/<name>`` with a ``model.py`` that runs every model of that backend.

Looked for once, when the server starts; after that only this table is asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from broker.model_config import PYTHON_BACKEND, PYTHON_FILENAME, ModelConfig, from_message

_ENVIRONMENT = "pb_exec_env_model.py.tar.gz"


@dataclass(frozen=True, slots=True)
class Backend:
    """``environment`` is the archive of the interpreter that runs it unless a model names one, "" if there is none;
    ``settings`` are the values of --backend-config that concern it."""

    name: str
    model_file: str
    environment: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


def scan(directories: Iterable[str], settings_of: Callable[[str], Mapping[str, str]]) -> dict[str, Backend]:
    """By name. Of two with one name that of the earlier directory counts; a directory need not exist."""
    found: dict[str, Backend] = {}
    for directory in map(os.path.abspath, directories):
        for name in _names(directory):
            if name not in found and name != PYTHON_BACKEND:
                folder = os.path.join(directory, name)
                environment = os.path.join(folder, _ENVIRONMENT)
                environment = environment if os.path.isfile(environment) else ""
                found[name] = Backend(name, os.path.join(folder, PYTHON_FILENAME), environment, settings_of(name))
    return found


def _names(directory: str) -> list[str]:
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [name for name in names if os.path.isfile(os.path.join(directory, name, PYTHON_FILENAME))]


def with_settings(config: ModelConfig, backend: Backend | None) -> ModelConfig:
    """As the backend's code is told it: its settings are defaults for the model's parameters.

    The original's Python-based backends cannot see their settings at all.
    """
    missing = {} if backend is None else {k: v for k, v in backend.settings.items() if k not in config.parameters}
    if not missing:
        return config
    message = type(config.message)()
    message.CopyFrom(config.message)
    for key, value in missing.items():
        message.parameters[key].string_value = value
    return from_message(message)
