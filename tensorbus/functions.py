"""Plain Python functions as models: each runs in a thread of this process, and is a stub like any other to the broker.

The thread has a socket on the bus, a session and segments of its own, by the code of the stub processes. All that is
missing is what only a process has: it cannot be killed, and a crash in it is a crash of the server.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import structlog

from broker.events import Spawn
from broker.model import VersionSource
from broker.model_config import PYTHON_BACKEND, from_message
from broker.proto import ModelConfigMessage
from protocol.datatypes import BY_NAME
from protocol.errors import InvalidArgument
from protocol.messages import (
    CONFIGURED,
    GOODBYE,
    HELLO,
    LOG,
    VERSION,
    Configured,
    Goodbye,
    Hello,
    Load,
    Log,
)
from stub.bus import Bus
from stub.channel import Channel
from stub.closed import Closed
from stub.event_loop import EventLoop
from stub.launcher import Launcher
from stub.loop import Loop
from stub.open_calls import OpenCalls
from stub.outputs import Outputs
from stub.request import InferenceRequest
from stub.response import InferenceResponse
from stub.segments import Segments
from stub.session import Session
from stub.user_model import UserModel
from tensorbus.tensors import Array, concatenated, datatype_of, output_tensor, split

log = structlog.get_logger()

_VERSION = 1
_JOIN_S = 2.0


class Tensor(NamedTuple):
    """An input or output of a bound function.

    ``dtype`` is a NumPy dtype, or a datatype's name ("FP32", "BYTES"); str, bytes and object are BYTES. ``shape`` has
    no batch dimension; -1 is variable.
    """

    name: str
    dtype: Any
    shape: Sequence[int] = (-1,)


class BoundFunction:
    """A function, what it takes and what it gives; with ``max_batch_size`` > 0 all arrays have a batch dimension."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        max_batch_size: int,
    ) -> None:
        """Raises InvalidArgument."""
        if not name or "/" in name:
            raise InvalidArgument(f"'{name}' is no name for a model")
        if inspect.iscoroutinefunction(function):
            raise InvalidArgument(f"function '{name}' is async, which bound functions cannot be")
        self.name = name
        self._function = function
        self._inputs = [(tensor.name, datatype_of(tensor.name, tensor.dtype), tensor.shape) for tensor in inputs]
        self._outputs = [(tensor.name, datatype_of(tensor.name, tensor.dtype), tensor.shape) for tensor in outputs]
        self._max_batch_size = max_batch_size
        self.source = self._source()

    def _source(self) -> VersionSource:
        message = ModelConfigMessage(name=self.name, backend=PYTHON_BACKEND, max_batch_size=self._max_batch_size)
        for name, datatype, shape in self._inputs:
            message.input.add(name=name, data_type=BY_NAME[datatype].number, dims=shape)
        for name, datatype, shape in self._outputs:
            message.output.add(name=name, data_type=BY_NAME[datatype].number, dims=shape)
        if self._max_batch_size > 1:
            message.dynamic_batching.SetInParent()
        return VersionSource(self.name, _VERSION, "", from_message(message))

    # --- as a TritonPythonModel

    def execute(self, requests: list[InferenceRequest]) -> list[InferenceResponse]:
        arrays = [self._arrays(request) for request in requests]
        if self._max_batch_size == 0:
            return [self._response(self._call(each)) for each in arrays]
        responses: list[InferenceResponse] = []
        for _, group in groupby(arrays, key=_shapes_of_entries):
            together = list(group)
            sizes = [len(each[0]) if each else 1 for each in together]
            results = self._call([concatenated(parts) for parts in zip(*together, strict=True)])
            self._check_batch(results, sum(sizes))
            shares = zip(*(split(result, sizes) for result in results), strict=True)
            responses += map(self._response, shares)
        return responses

    def _arrays(self, request: InferenceRequest) -> list[Array]:
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        return [given[name] for name, _, _ in self._inputs]

    def _call(self, arrays: Sequence[Array]) -> list[Any]:
        """What the function returns, in the order of the outputs."""
        names = [name for name, _, _ in self._inputs]
        returned = self._function(**dict(zip(names, arrays, strict=True)))
        if isinstance(returned, dict):
            missing = [name for name, _, _ in self._outputs if name not in returned]
            if missing:
                raise ValueError(f"function '{self.name}' returned no '{missing[0]}'")
            return [returned[name] for name, _, _ in self._outputs]
        results = list(returned) if isinstance(returned, tuple) else [returned]
        if len(results) != len(self._outputs):
            raise ValueError(f"function '{self.name}' returned {len(results)} arrays, not {len(self._outputs)}")
        return results

    def _check_batch(self, results: Sequence[Any], size: int) -> None:
        for (name, _, _), result in zip(self._outputs, results, strict=True):
            if len(result) != size:
                raise ValueError(f"output '{name}' of function '{self.name}' has batch size {len(result)}, not {size}")

    def _response(self, results: Sequence[Any]) -> InferenceResponse:
        return InferenceResponse(
            [
                output_tensor(self.name, name, datatype, result)
                for (name, datatype, _), result in zip(self._outputs, results, strict=True)
            ]
        )


def _shapes_of_entries(arrays: Sequence[Array]) -> list[tuple[int, ...]]:
    return [array.shape[1:] for array in arrays]


class Functions:
    """Starts the stubs of bound functions, and by the launcher those of all other models."""

    def __init__(self, bus: str, launcher: Launcher, on_exit: Callable[[str, int], None]) -> None:
        """``on_exit`` is called as the launcher's is, but in any thread."""
        self._bus = bus
        self._launcher = launcher
        self._on_exit = on_exit
        self._functions: list[BoundFunction] = []
        self._threads: dict[str, threading.Thread] = {}
        self._channels: dict[str, Channel] = {}
        self._is_closed = False

    def bind(self, function: BoundFunction) -> VersionSource:
        self._functions.append(function)
        return function.source

    def spawn(self, order: Spawn) -> None:
        key, title, source, interpreter = order[:4]
        function = next((one for one in self._functions if one.source is source), None)
        if function is None:
            self._launcher.spawn(key, title, interpreter)
            return
        if self._is_closed:
            return
        thread = threading.Thread(target=self._live, args=[key, function], name=f"tensorbus {title}", daemon=True)
        self._threads[key] = thread
        thread.start()

    def kill(self, key: str) -> None:
        """A thread cannot be: it ends as soon as its function returns, and nobody hears of it before."""
        if self._threads.pop(key, None) is None:
            self._launcher.kill(key)
        else:
            self._on_exit(key, -9)
            self._hang_up(key)

    def close(self) -> None:
        """Waits for those that have been told to finish, though not for ever: none is while one does not return. No
        other one starts, and nobody hears of their ends."""
        self._is_closed = True
        until_s = time.monotonic() + _JOIN_S
        for key, thread in list(self._threads.items()):
            thread.join(max(0.0, until_s - time.monotonic()))
            self._hang_up(key)

    def _hang_up(self, key: str) -> None:
        channel = self._channels.pop(key, None)
        if channel is not None:
            channel.close()

    def _live(self, key: str, function: BoundFunction) -> None:
        try:
            channel = self._channels[key] = Channel(self._bus, key)
            _run(channel, function)
        except Closed:
            log.warning("a bound function has returned after its server's end", model=function.name)
        except Exception:
            log.exception("a bound function has ended", model=function.name)
        finally:
            self._hang_up(key)
            if self._threads.pop(key, None) is not None and not self._is_closed:
                self._on_exit(key, 0)


def _run(channel: Channel, function: BoundFunction) -> None:
    channel.send(Hello(HELLO, VERSION, os.getpid()))
    received = None
    while received is None:
        received = channel.receive()
    load = received.message
    assert isinstance(load, Load), load
    if load.mode == "auto_complete":
        channel.send(Configured(CONFIGURED, load.args["model_config"]))
    else:
        _serve(channel, load, function)


def _serve(channel: Channel, load: Load, function: BoundFunction) -> None:
    """As stub/process.py does, without what a process has but one of."""

    def say(level: str, file: str, line: int, text: str) -> None:
        with contextlib.suppress(Closed):
            channel.send(Log(LOG, level, file, line, text))

    segments = Segments(load)
    try:
        outputs = Outputs(segments.placer)
        bus = Bus(channel, threading.get_ident())
        model = UserModel(function, function.name, load.args)
        name, clock_ns = load.args["model_instance_name"], time.monotonic_ns
        session = Session(model, name, outputs, bus, EventLoop(), say, clock_ns, load.max_unread)
        loop = Loop(bus, OpenCalls(bus), session, outputs, segments.reader, segments.status)
        channel.send(segments.ready())
        loop.run()
        channel.send(Goodbye(GOODBYE, session.finalize()))
    finally:
        segments.close()
