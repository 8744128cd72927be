"""One model in this process and its main thread, under its author's debugger: the stub's own code without its bus.

The model finds the stub's code under the private name, as in a stub process, so that its tensors and responses are of
the classes that the session knows.
"""

from __future__ import annotations

import bdb
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import stub
from broker import auto_complete, config_files, config_loading, repository
from broker.backends import Backend, with_settings
from broker.execution_env import wanted
from broker.model import VersionSource
from broker.model_config import ModelConfig, Scheduler
from broker.signature import initialize_args, signature
from gateway.calls import InferCall
from protocol.errors import InternalError, InvalidArgument
from protocol.messages import Batch, Executed, Request, Response, TensorRef, ToBroker
from protocol.signature import Signature
from protocol.validation import Checker
from tensorbus import gpus

sys.path.insert(0, os.path.join(os.path.dirname(stub.__file__), "api"))
if TYPE_CHECKING:
    from protocol import messages
    from stub import bls, event_loop, exception_text, failures, logger, outputs, placer, session, user_model
else:
    from _tensorbus_app.protocol import messages
    from _tensorbus_app.stub import (
        bls,
        event_loop,
        exception_text,
        failures,
        logger,
        outputs,
        placer,
        session,
        user_model,
    )

OnResponse = Callable[[Response, Sequence[bytes]], None]  # a response, and the frames that hold its outputs

_NO_SERVER = "A model in the foreground cannot call other models: there is no server."
_OURS = ("broker", "gateway", "metrics", "protocol", "shm", "stub", "tensorbus")


class Checked(NamedTuple):
    """A model directory whose configuration is good enough for the model to complete it."""

    source: VersionSource
    config: ModelConfig
    backend: Backend | None


def check(directory: str, version: int | None, backends: dict[str, Backend]) -> Checked:
    """As the server does when it loads; without a ``version``, the highest one it would serve. Raises ServingError."""
    path = os.path.abspath(directory)
    if not os.path.isdir(path):
        raise InvalidArgument(f"{directory} is no directory")
    found = repository.poll(os.path.basename(path), path)
    if found.config.scheduler is Scheduler.ENSEMBLE:
        raise InvalidArgument(f"model '{found.name}' is an ensemble, which has no code of its own to run")
    if version is None:
        version = repository.versions_to_load(found)[0][-1]
    elif not os.path.isdir(os.path.join(path, str(version))):
        raise InvalidArgument(f"there is no version {version} of model '{found.name}'")
    config_files.check_initial_states(found.config, path)
    labels = config_files.read_labels(found.config, path)
    source = VersionSource(found.name, version, path, found.config, labels, requirements=found.requirements)
    backend = backends.get(found.config.backend)
    return Checked(source, config_loading.prepare(found.config, gpus.usable(), backend), backend)


def environment(checked: Checked) -> str:
    """What the model asks to run in instead of this interpreter; "" for nothing."""
    env = wanted(checked.source, checked.backend)
    return "" if env is None else f"{env.asked_by}: {env.path}"


def make_room() -> None:
    """For the model's own modules: none of ours stands in the place of one that has the same name. Ours go on working;
    only what imports one of them from now on does not find it. Processes that the model starts by multiprocessing run
    the file of __main__ again, unless it has none."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [entry for entry in sys.path if (entry and os.path.abspath(entry) != here) or _is_packages(entry)]
    for name in list(sys.modules):
        if name.partition(".")[0] in _OURS:
            del sys.modules[name]
    sys.modules["__main__"] = types.ModuleType("__main__")


def _is_packages(entry: str) -> bool:
    return os.path.basename(entry) in ("site-packages", "dist-packages")


class ForegroundModel:
    """Loaded and initialised; executes in the calling thread."""

    def __init__(self, checked: Checked, log: logger.LogSink) -> None:
        """Raises ServingError, with the traceback logged if it was the model that raised."""
        logger.set_sink(log)
        bls.not_now = _NO_SERVER
        failures.Failures.details_every_ns = 0
        failures.on_raised = self._on_raised
        self.has_quit = False  # "q" in pdb, inside execute
        self._log = log
        config = self._complete(checked)
        source, backend = checked.source, checked.backend
        self.signature: Signature = signature(config, source.version, source.labels)
        self._checker = Checker(self.signature)
        instance = config.instances[0]
        args = initialize_args(with_settings(config, backend), instance, source.version, source.directory)
        model = self._load(lambda file, folder: user_model.UserModel.load(file, args, folder), checked)
        self._port = _Port()
        self._session = session.Session(
            model,
            instance.name,
            outputs.Outputs(placer.Placer(None)),
            self._port,
            event_loop.EventLoop(),
            log,
            time.monotonic_ns,
        )
        self._memory: list[bytes | memoryview] = []  # of inputs, by TensorRef.place
        self._ids = count(1)

    def _on_raised(self, error: BaseException) -> None:
        if isinstance(error, bdb.BdbQuit):
            self.has_quit = True

    def _complete(self, checked: Checked) -> ModelConfig:
        source = checked.source
        args = {
            "model_config": auto_complete.request(with_settings(checked.config, checked.backend)),
            "model_repository": source.directory,
            "model_version": str(source.version),
            "model_name": source.model,
        }
        completed = self._load(lambda file, folder: user_model.auto_complete(file, args, folder), checked)
        objection = auto_complete.objection(checked.config, completed)
        if objection:
            self._log("W", "config.pbtxt", 0, objection)
        return config_loading.finish(auto_complete.merge(checked.config, completed))

    def _load(self, how: Callable[[str, str], Any], checked: Checked) -> Any:
        source, backend = checked.source, checked.backend
        try:
            return how(source.model_file if backend is None else backend.model_file, source.version_directory)
        except user_model.LoadError as error:
            if error.__cause__ is not None:
                self._log("E", source.model_file, 0, exception_text.full_traceback(error.__cause__))
            raise InternalError(str(error)) from None

    def accept(self, call: InferCall) -> Request:
        """The request as the model gets it, for the next ``execute``. Raises InvalidArgument."""
        shapes = self._checker.check(call.request_id, call.inputs, call.outputs)
        inputs = []
        for tensor, shape in zip(call.inputs, shapes, strict=True):
            inputs.append(TensorRef(tensor.name, tensor.datatype, shape, len(self._memory)))
            self._memory.append(tensor.data)
        return Request(
            next(self._ids),
            self.signature.model,
            self.signature.version,
            inputs,
            call.request_id,
            call.outputs,
            call.parameters,
            call.correlation_id,
            call.flags,
            call.priority,
            call.timeout_us,
        )

    def execute(self, requests: Sequence[Request], on_response: OnResponse) -> Executed:
        """One call of ``execute``, and more if requests ask to be rescheduled. Returns when all are answered.

        ``on_response`` is called in whichever thread of the model has sent the response."""
        self._port.on_response = on_response
        while True:
            frames: list[bytes] = []
            executed: Executed = self._session.execute(Batch(next(self._ids), list(requests)), self._view, frames)
            for response in executed.responses:
                on_response(response, frames)
            requests = [request for request in requests if request.id in executed.rescheduled]
            if not requests:
                self._wait_for_the_rest(on_response)
                self._memory.clear()
                return executed

    def _view(self, tensor: TensorRef) -> memoryview:
        """A copy: the model may write to its inputs, and the next execution has them as they were."""
        assert isinstance(tensor.place, int)
        return memoryview(bytearray(self._memory[tensor.place]))

    def _wait_for_the_rest(self, on_response: OnResponse) -> None:
        delivery = self._session.delivery
        while delivery.open:
            self._port.wait(lambda: not delivery.open or delivery.abandoned)
            for response in delivery.take_abandoned():
                on_response(response, ())

    def finalize(self) -> bool:
        """False if it has raised; then the traceback is logged."""
        return not self._session.finalize()


class _Port:
    """A session's Port: responses that leave by themselves are handed on at once."""

    is_ours = True

    def __init__(self) -> None:
        self.on_response: OnResponse = lambda response, frames: None
        self._changed = threading.Condition()

    def send(self, message: ToBroker, frames: Sequence[bytes] = ()) -> None:
        assert isinstance(message, messages.Results), message
        with self._changed:
            for response in message.responses:
                self.on_response(response, frames)
            self._changed.notify_all()

    def wait(self, done: Callable[[], Any], timeout_s: float | None = None) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(done, timeout_s))

    def glance(self) -> None:
        """There is no bus to look at."""

    def nudge(self) -> None:
        """From a finalizer, too."""
        with self._changed:
            self._changed.notify_all()
