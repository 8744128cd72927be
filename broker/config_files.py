"""The files beside config.pbtxt that a configuration names: labels of outputs and initial states of sequences.

Texts name these files relative to the model's directory: a reason of the repository index is read by clients.
"""

from __future__ import annotations

import os
from math import prod

from broker.config_reading import read_file
from broker.model_config import ModelConfig
from broker.proto import DATA_TYPES, Message
from protocol.datatypes import BY_CONFIG_NAME
from protocol.errors import InternalError, InvalidArgument, Unsupported

_INITIAL_STATES = "initial_state"


def read_labels(config: ModelConfig, model_dir: str) -> dict[str, tuple[str, ...]]:
    """Labels by output name, line k of the file for index k. Raises InternalError or Unsupported."""
    labels = {}
    for output, file_name in config.label_files.items():
        path = os.path.join(model_dir, file_name)
        if escapes(path, model_dir):
            raise Unsupported(
                f"label file path '{file_name}' for output '{output}' in model '{config.name}' is outside model "
                "directory"
            )
        text = _read(path, file_name).decode(errors="replace")
        labels[output] = tuple(text.removesuffix("\n").split("\n")) if text else ()
    return labels


def check_initial_states(config: ModelConfig, model_dir: str) -> None:
    """That each data file is there and long enough. Raises InternalError or InvalidArgument."""
    for state in config.message.sequence_batching.state:
        for initial in state.initial_state:
            if initial.WhichOneof("state_data") == "data_file":
                _check_data_file(initial, os.path.join(model_dir, _INITIAL_STATES))


def _check_data_file(initial: Message, directory: str) -> None:
    path = os.path.join(directory, initial.data_file)
    if escapes(path, directory):
        raise InvalidArgument(f"initial_state data file '{initial.data_file}' is outside model directory")
    size = len(_read(path, initial.data_file))
    row = BY_CONFIG_NAME.get(DATA_TYPES.Name(initial.data_type))
    expected = prod(initial.dims) * (row.itemsize or 0) if row else 0
    if size < expected:
        raise InvalidArgument(
            f"initial_state setting expects {expected} bytes, but the data provided from {initial.data_file}only has "
            f"{size} bytes."
        )


def escapes(path: str, directory: str) -> bool:
    """Whether it leads out of the directory, by a link or otherwise."""
    real = os.path.realpath(directory)
    return os.path.commonpath([os.path.realpath(path), real]) != real


def _read(path: str, name: str) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise InternalError(f"failed to open text file for read {name}: {error.strerror}") from error
