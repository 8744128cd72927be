"""What makes ``model_warmup`` wrong: said before any instance starts, with Triton's texts where it has some."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from broker.model_config import ModelConfig
from broker.proto import DATA_TYPES, Message
from broker.signature import signature
from protocol.datatypes import BY_CONFIG_NAME
from protocol.errors import InvalidArgument
from protocol.validation import CheckedInput, Checker, byte_size, element_count

_NO_ID = "[request id: <id_unknown>]"


def check_warm_up(config: ModelConfig) -> None:
    """Of a complete configuration. Raises InvalidArgument."""
    samples = [sample for sample in config.message.model_warmup if sample.batch_size]
    if samples:
        checker = Checker(signature(config, 1, {}))
        for sample in samples:
            _check_sample(config, sample, checker)


def _check_sample(config: ModelConfig, sample: Message, checker: Checker) -> None:
    inputs: Mapping[str, Message] = dict(sorted(sample.inputs.items()))
    for name, given in inputs.items():
        if any(dim < 0 for dim in given.dims):
            raise InvalidArgument(
                f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
            )
    known = {spec.name for spec in config.inputs}
    batch = [1] if config.max_batch_size > 0 else []
    checked: list[CheckedInput] = []
    for name, given in inputs.items():
        _check_data(name, given)
        datatype = BY_CONFIG_NAME.get(DATA_TYPES.Name(given.data_type))
        if datatype is None:
            raise InvalidArgument(f"{_NO_ID} warmup setting expects input '{name}' to have data_type set")
        nbytes = byte_size(name, element_count(name, given.dims), datatype.itemsize or 4)
        if name in known:  # others are for the model to understand
            checked.append((name, datatype.name, [*batch, *given.dims], range(nbytes), None))
    checker.check("", checked, [])


def _check_data(name: str, given: Message) -> None:
    if given.WhichOneof("input_data_type") is None:
        raise InvalidArgument(f"{_NO_ID} warmup setting expects input '{name}' to have input_data_type set")
    file = given.input_data_file
    path = posixpath.normpath(file)
    if file and (posixpath.isabs(path) or path.split("/")[0] == ".."):
        raise InvalidArgument(
            f"input_data_file '{file}' of input '{name}' must stay within the model's warmup directory"
        )
