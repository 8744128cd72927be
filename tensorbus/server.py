"""The server in the user's own process.

with tensorbus.Server("models") as server:
    outputs = server.infer("add_sub", {"INPUT0": a, "INPUT1": b})
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import starmap
from types import TracebackType
from typing import Any, TypeVar

import uvloop

from broker.events import LoadModels
from broker.model import VersionState
from gateway.bus import Done
from gateway.calls import InferCall
from protocol.errors import AlreadyExists, InvalidArgument, ServingError, Unavailable
from protocol.messages import Parameters
from tensorbus.functions import BoundFunction, Tensor
from tensorbus.logs import configure_as_guest
from tensorbus.parameters import check_text, parameter
from tensorbus.replies import Replies
from tensorbus.run_directory import run_directory
from tensorbus.running import CannotListen
from tensorbus.services import Services
from tensorbus.settings import UsageError, from_values
from tensorbus.tensors import Array, input_tensor

__all__ = ["InferenceError", "Server", "ServerError", "Tensor"]

T = TypeVar("T")
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_SETTLED_S = 0.005  # between two looks whether a bound function is up


class ServerError(Exception):
    """The server did not do what it was asked for. ``kind`` is the error's name in Triton's list: "INTERNAL",
    "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED" or "UNKNOWN"."""

    def __init__(self, error: ServingError) -> None:
        super().__init__(str(error))
        self.kind: str = error.kind.name


class InferenceError(ServerError):
    """A request was refused or has failed; the text is what a client over HTTP would get."""


class Server:
    """A whole server: broker and, if asked for, fronts in a thread of this process; a process for each model instance.

    All methods may be called from any thread, also at the same time. Leaving the ``with`` block ends everything that
    the server has started, after the requests in flight are answered.
    """

    def __init__(
        self,
        model_repository: Paths = (),
        *,
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        log_info: bool = False,
        **settings: Any,
    ) -> None:
        """Ports: None is no such front, 0 a free one. ``settings`` are the flags of ``tensorbus serve`` by name, with
        "_" for "-". What models print goes to stdout whatever ``log_info`` says.

        Raises TypeError for a setting that is none, and ValueError for a value, with the text of ``tensorbus serve``.
        """
        paths = [model_repository] if isinstance(model_repository, (str, os.PathLike)) else model_repository
        ports = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        for name, port in ports.items():
            settings[f"allow_{name}"] = port is not None
            settings[f"{name}_port"] = port or 0
        settings["model_repository"] = [os.fspath(path) for path in paths]
        try:
            self._settings = from_values({**settings, "log_info": log_info})
        except UsageError as error:
            raise ValueError(str(error)) from None
        self._functions: list[BoundFunction] = []
        self._started: Future[None] = Future()
        self._thread: threading.Thread | None = None
        self._services: Services | None = None

    # --- life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when all models are ready and the fronts listen. Raises ServerError if one of them cannot be; then
        nothing is left running."""
        if self._thread is not None:
            raise RuntimeError("a server starts once")
        self._loop = uvloop.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="tensorbus server", daemon=True)
        self._thread.start()
        try:
            self._started.result()
        except ServingError as error:
            self._thread.join()
            raise ServerError(error) from None
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Answers what is in flight, finalizes the models and ends what was started. May be called again."""
        if self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            configure_as_guest(self._settings.log_settings())
            with run_directory() as run_dir, asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve(run_dir))
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self, run_dir: str) -> None:
        services = Services(self._settings, run_dir)
        try:
            await services.start()
            self._services = services
            for function in self._functions:
                await self._bind(function)
            self._started.set_result(None)
            await self._stopping.wait()
        except CannotListen as error:
            raise Unavailable(str(error)) from None
        finally:
            await services.stop()

    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def _running(self) -> Services:
        """Raises InferenceError before the start and after the end."""
        if self._services is None or not self._is_alive():
            raise InferenceError(Unavailable("the server does not run"))
        return self._services

    # --- requests -------------------------------------------------------------------------------------------------

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = (),
        *,
        version: int = -1,
        parameters: Parameters | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> dict[str, Array]:
        """One request to a model that gives one response: its outputs by name, all or those of ``outputs``.

        ``inputs``: arrays by name, of the configured dtype and shape, batch dimension included; arrays of str, bytes or
        objects for BYTES. Outputs are copies; BYTES come as an object array of bytes, BF16 as its bits in uint16.
        ``version`` -1 is the highest. Raises InferenceError, and TimeoutError once ``timeout_s`` is over: then the
        request is cancelled.
        """
        replies = self._send(model, inputs, outputs, version, parameters, request_id, decoupled=False)
        try:
            return replies.next(timeout_s).arrays
        except ServingError as error:
            raise InferenceError(error) from None
        finally:
            replies.end()

    def stream(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = (),
        *,
        version: int = -1,
        parameters: Parameters | None = None,
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> Iterator[dict[str, Array]]:
        """The same for a model that may give any number of responses (decoupled): each as it comes. The request is sent
        at once. An iterator that is closed before its end cancels the request. ``timeout_s`` is for each response."""
        return _each(self._send(model, inputs, outputs, version, parameters, request_id, decoupled=True), timeout_s)

    def _send(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str],
        version: int,
        parameters: Parameters | None,
        request_id: str,
        decoupled: bool,
    ) -> Replies:
        try:
            tensors = [input_tensor(name, array) for name, array in inputs.items()]
            check_text("request_id", request_id)
            sendable = dict(starmap(parameter, (parameters or {}).items()))
        except ServingError as error:
            raise InferenceError(error) from None
        call = InferCall(model, version, tensors, request_id, list(outputs), sendable)
        replies = Replies(self._running.dataplane, self._loop.call_soon_threadsafe, self._is_alive)
        self._loop.call_soon_threadsafe(replies.begin, call, decoupled)
        return replies

    # --- models ---------------------------------------------------------------------------------------------------

    def ready(self, model: str = "", version: int = -1) -> bool:
        """Whether the model is, or the whole server. Models with ``is_ready`` are asked. Raises ServerError for a model
        that nobody knows."""
        bus = self._running.dataplane.bus
        if not model:
            everything: bool = self._ask(bus.ready)
            return everything
        ready: bool = self._ask(functools.partial(bus.model_ready, model, version))
        return ready

    def load(self, model: str, config: Mapping[str, Any] | str | None = None, files: Mapping[str, bytes] = {}) -> None:
        """Load a model of the repository, or load it again if it has changed; returns when it is ready. ``config``
        takes the place of its config.pbtxt, ``files`` (by "file:<version>/<name>") that of its directory.

        Raises ServerError; what has served before then goes on serving. Needs ``model_control_mode="explicit"``.
        """
        text = config if config is None or isinstance(config, str) else json.dumps(config)
        bus = self._running.dataplane.bus
        self._do(lambda done: bus.load(model, text, files, done))

    def unload(self, model: str) -> None:
        """From here on the model takes no requests; those in flight are answered. Needs
        ``model_control_mode="explicit"``. Raises ServerError."""
        bus = self._running.dataplane.bus
        self._do(lambda done: bus.unload(model, False, done))

    def bind(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        batch: int = 0,
    ) -> None:
        """Serve ``function`` as a model, before or after the start.

        It is called with one array for each input, by keyword, in a thread of this process, one call at a time; it
        returns an array, a tuple in the order of ``outputs``, or a dict by their names. With ``batch`` all arrays have
        a batch dimension in front, and requests that wait together go to one call of up to ``batch`` entries. What it
        raises is the client's error. Raises ServerError.
        """
        try:
            bound = BoundFunction(name, function, inputs, outputs, batch)
            if self._thread is None:
                self._functions.append(bound)
            else:
                asyncio.run_coroutine_threadsafe(self._bind(bound), self._loop).result()
        except ServingError as error:
            raise ServerError(error) from None

    async def _bind(self, function: BoundFunction) -> None:
        services = self._running
        broker = services.broker
        registry = broker.core.registry
        if any(entry.name == function.name for entry in registry.index(ready=False)):
            raise AlreadyExists(f"there is a model '{function.name}' already")
        broker.post(LoadModels([services.functions.bind(function)]))
        while True:
            await asyncio.sleep(_SETTLED_S)
            (entry,) = [entry for entry in registry.index(ready=False) if entry.name == function.name] or (None,)
            if entry is not None and entry.state == VersionState.READY.value:
                return
            if entry is not None and entry.state == VersionState.UNAVAILABLE.value:
                raise InvalidArgument(entry.reason)

    # --- addresses ------------------------------------------------------------------------------------------------

    @property
    def http_port(self) -> int | None:
        """None without such a front."""
        return self._running.ports.get("http")

    @property
    def grpc_port(self) -> int | None:
        return self._running.ports.get("grpc")

    @property
    def metrics_port(self) -> int | None:
        return self._running.ports.get("metrics")

    # --- between the threads --------------------------------------------------------------------------------------

    def _ask(self, ask: Callable[[Callable[[T], None]], None]) -> T:
        """What ``ask``, called on the loop of a running server, has its argument told. Raises ServerError."""
        answer: Future[T] = Future()

        def begin() -> None:
            try:
                ask(answer.set_result)
            except Exception as error:  # whatever it is, somebody waits
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(begin)
        try:
            return answer.result()
        except ServingError as error:
            raise ServerError(error) from None

    def _do(self, do: Callable[[Done], None]) -> None:
        error = self._ask(do)
        if error is not None:
            raise ServerError(error)


def _each(replies: Replies, timeout_s: float | None) -> Iterator[dict[str, Array]]:
    try:
        yield from replies.each(timeout_s)
    except ServingError as error:
        raise InferenceError(error) from None
    finally:
        replies.end()
