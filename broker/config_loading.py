"""The stations a configuration passes between being read and being served.

    repository.poll -> prepare -> (auto_complete.request, the model's own code, auto_complete.merge) -> finish

Each takes a ModelConfig and returns a new one, or raises a ServingError that becomes the version's reason.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from broker import time_limits
from broker.backends import Backend
from broker.config_instances import check_instance_groups, normalize_instance_groups
from broker.config_io import check_io
from broker.config_sequence import check_states
from broker.config_validation import check_model
from broker.config_warm_up import check_warm_up
from broker.model_config import (
    PYTHON_BACKEND,
    PYTHON_FILENAME,
    ModelConfig,
    from_message,
)
from protocol.errors import InvalidArgument, Unsupported

_NOT_IN_NAMES = frozenset(";|&$`<>()[]{}\\\"'*?~#!")
_FORCE_CPU = "FORCE_CPU_ONLY_INPUT_TENSORS"  # "no": an instance on a GPU has its inputs there (stub/gpu.py)


def prepare(config: ModelConfig, gpus: Sequence[int] = (), backend: Backend | None = None) -> ModelConfig:
    """Settle that we can run the backend and which instances there are. ``gpus`` are the ids of the usable GPUs,
    ``backend`` is the Python-based backend of that name, if there is one."""
    _check_backend(config, backend)
    _check_filename(config)
    message = type(config.message)()
    message.CopyFrom(config.message)
    if backend is not None:
        message.runtime = message.runtime or PYTHON_FILENAME
    normalize_instance_groups(message, gpus)
    check_instance_groups(message, gpus)
    _check_parameters(config)
    prepared = from_message(message)
    _check_names(prepared)
    return prepared


def finish(config: ModelConfig) -> ModelConfig:
    """Check all that auto-completion may have changed or provided."""
    check_model(config.message)
    check_io(config.message)
    check_states(config.message)
    check_warm_up(config)
    return config


def _check_backend(config: ModelConfig, backend: Backend | None) -> None:
    if config.backend != PYTHON_BACKEND and backend is None:
        raise InvalidArgument(
            f"unable to find backend library for backend '{config.backend}', try specifying runtime on the model "
            "configuration."
        )
    if config.runtime not in ("", PYTHON_FILENAME, f"libtriton_{config.backend}.so"):
        raise InvalidArgument(f"unable to find backend library '{config.runtime}' for model '{config.name}'")


def _check_filename(config: ModelConfig) -> None:
    path = posixpath.normpath(config.default_model_filename)
    if posixpath.isabs(path) or path.split("/")[0] == "..":
        raise InvalidArgument(
            f"default_model_filename '{config.default_model_filename}' of model '{config.name}' must stay within the "
            "version directory"
        )


def _check_names(config: ModelConfig) -> None:
    """The process that completes the configuration bears the model's name, the others that of their instance."""
    names = [spec.name for spec in config.instances]
    if names and not _NOT_IN_NAMES.isdisjoint("".join([config.name, *names])):
        raise InvalidArgument("Invalid stub name: contains invalid characters")


def _check_parameters(config: ModelConfig) -> None:
    value = config.parameters.get(_FORCE_CPU, "yes")
    if value not in ("yes", "no"):
        raise Unsupported(f"Incorrect value for {_FORCE_CPU}: {value}'")
    for parameter in (time_limits.LOAD, time_limits.EXECUTE):
        time_limits.limit_ns(config, parameter)
