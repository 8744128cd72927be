"""Executions before a model serves: of the samples in its configuration's ``model_warmup``, whose answers go nowhere.

They are made here and pass no queue, no counter and no broker; what they ask of other models is real. The broker has
checked the configuration (broker/config_warm_up.py); what only the instance knows is checked here.
"""

from __future__ import annotations

import json
import math
import os
import time
from itertools import count
from typing import Any, Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from .bus import Bus
from .event_loop import EventLoop
from .logger import LogSink
from .outputs import Outputs
from .placer import Placer
from .session import Session
from .shared import datatypes, errors, messages
from .user_model import LoadError, UserModel

_DIRECTORY = "warmup"  # of the model
_SEQUENCE = messages.SEQUENCE_START | messages.SEQUENCE_END

Config = Mapping[str, Any]


class _Input(NamedTuple):
    name: str
    datatype: str
    shape: List[int]
    data: bytes


def warm_up(model: UserModel, bus: Bus, event_loop: EventLoop, log: LogSink) -> None:
    """Raises LoadError."""
    config = json.loads(model.args["model_config"])
    samples = list(_samples(config, model.args["model_repository"], log))
    if not samples:
        return
    answers = _Answers(bus)
    name = model.args["model_instance_name"]
    session = Session(model, name, Outputs(Placer(None)), answers, event_loop, log, time.monotonic_ns)
    ids = count(1)
    for sample, inputs in samples:
        of = "warmup sample '{}'".format(sample["name"])
        for iteration in range(1, max(1, int(sample["count"])) + 1):
            who = "model '{}' instance {}".format(config["name"], name)
            log("V", __file__, 0, "{} is running {} for iteration {}".format(who, of, iteration))
            failures = _too_many(config, sample, name) or _execute(session, answers, config, sample, inputs, ids)
            if failures:
                log("V", __file__, 0, "{} failed to run {}".format(who, of))
                causes = "".join("{}; ".format(cause) for cause in failures)
                raise LoadError("failed to run {}: {}".format(of, causes), errors.ErrorKind.INVALID_ARG)


def _too_many(config: Config, sample: Config, instance: str) -> List[str]:
    """Each request is a batch of one."""
    size, largest = int(sample["batch_size"]), int(config.get("max_batch_size", 0))
    if size == 1 or size <= largest:
        return []
    return ["batch size {} for '{}', max allowed is {}".format(size, instance, largest)] * size


# --- samples ------------------------------------------------------------------------------------------------------


def _samples(config: Config, model_directory: str, log: LogSink) -> Iterator[tuple[Config, List[_Input]]]:
    for sample in config.get("model_warmup", []):
        if not int(sample["batch_size"]):
            log("V", __file__, 0, "Skipping batch 0 warmup sample '{}'".format(sample["name"]))
            continue
        log("V", __file__, 0, "Generating warmup sample data for '{}'".format(sample["name"]))
        yield sample, _inputs(config, sample["inputs"], model_directory)


def _inputs(config: Config, given: Mapping[str, Config], model_directory: str) -> List[_Input]:
    """Without the control inputs of sequences, which each request of one gets anyhow."""
    controls = {one["name"] for one in config.get("sequence_batching", {}).get("control_input", [])}
    known = {one["name"]: one for one in config.get("input", [])}
    inputs: List[_Input] = []
    for name, entry in given.items():
        if name in controls:
            continue
        datatype = datatypes.BY_CONFIG_NAME[entry["data_type"]]
        dims = [int(dim) for dim in entry["dims"]]
        shape = _reshaped(known[name], dims) if name in known else dims
        if int(config.get("max_batch_size", 0)) > 0:
            shape = [1, *shape]
        data = _data(entry, datatype, math.prod(dims), model_directory)
        inputs.append(_Input(name, datatype.name, shape, data))
    return inputs


def _reshaped(known: Config, dims: List[int]) -> List[int]:
    if "reshape" not in known:
        return dims
    variable = iter([size for size, dim in zip(dims, known["dims"]) if int(dim) < 0])
    return [next(variable) if int(dim) < 0 else int(dim) for dim in known["reshape"]["shape"]]


def _data(entry: Config, datatype: datatypes.Datatype, elements: int, model_directory: str) -> bytes:
    """In KServe's binary form. Random strings are empty ones, as zeros are."""
    nbytes = elements * (datatype.itemsize or 4)
    if entry.get("input_data_file"):
        return _file(entry["input_data_file"], nbytes, datatype, model_directory)
    if "random_data" not in entry or datatype.itemsize is None:
        return bytes(nbytes)
    data = os.urandom(nbytes)
    return bytes(byte & 1 for byte in data) if datatype.name == "BOOL" else data


def _file(name: str, nbytes: int, datatype: datatypes.Datatype, model_directory: str) -> bytes:
    try:
        with open(os.path.join(model_directory, _DIRECTORY, name), "rb") as file:
            data = file.read()
    except OSError as error:
        text = "failed to open text file for read {}/{}: {}".format(_DIRECTORY, name, error.strerror)
        raise LoadError(text) from None
    if datatype.itemsize is None:
        return data
    if len(data) < nbytes:
        text = "warmup setting expects {} bytes, but the data provided from {} only has {} bytes"
        text = "[request id: <id_unknown>] " + text.format(nbytes, name, len(data))
        raise LoadError(text, errors.ErrorKind.INVALID_ARG)
    return data[:nbytes]


# --- executing them -----------------------------------------------------------------------------------------------


class _Answers:
    """A session's Port: takes what answers a request. A model may answer from any thread."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.failures: List[str] = []

    @property
    def is_ours(self) -> bool:
        return self._bus.is_ours

    def send(self, message: messages.ToBroker, frames: Sequence[bytes] = ()) -> None:
        assert isinstance(message, messages.Results)
        self.note(message.responses)
        self._bus.nudge()

    def note(self, responses: Sequence[messages.Response]) -> None:
        self.failures += [response.error[1] for response in responses if response.error is not None]

    def wait(self, done: Callable[[], Any], timeout_s: Optional[float] = None) -> bool:
        return self._bus.wait(done, timeout_s)

    def glance(self) -> None:
        self._bus.glance()

    def nudge(self) -> None:
        self._bus.nudge()


def _execute(
    session: Session, answers: _Answers, config: Config, sample: Config, inputs: List[_Input], ids: Iterator[int]
) -> List[str]:
    """Once, until all of its requests are answered; returns the texts of errors."""
    requests = [_request(config, inputs, next(ids)) for _ in range(int(sample["batch_size"]))]
    delivery = session.delivery
    answers.failures.clear()
    while requests:
        executed = session.execute(messages.Batch(0, requests), lambda tensor: _view(inputs, tensor), [])
        answers.note(executed.responses)
        requests = [request for request in requests if request.id in executed.rescheduled]
    while delivery.open:
        answers.wait(lambda: not delivery.open or delivery.abandoned)
        answers.note(delivery.take_abandoned())
    return answers.failures


def _request(config: Config, inputs: List[_Input], id: int) -> messages.Request:
    tensors = [
        messages.TensorRef(one.name, one.datatype, tuple(one.shape), position) for position, one in enumerate(inputs)
    ]
    request = messages.Request(id, config["name"], 1, tensors)
    if "sequence_batching" not in config:
        return request
    return request._replace(correlation_id=1, flags=_SEQUENCE)


def _view(inputs: List[_Input], tensor: messages.TensorRef) -> memoryview:
    """A copy: the model may write to its inputs."""
    assert isinstance(tensor.place, int)
    return memoryview(bytearray(inputs[tensor.place].data))
