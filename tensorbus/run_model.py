"""``tensorbus run-model DIR``: one model in the foreground, in this process, for its author's debugger.

Nothing stands between the model and the terminal: ``breakpoint()``, an IDE, ``input()`` and ``print`` work as in any
script. Responses go to stdout, one line of JSON each; what is said about them goes to stderr.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
from collections.abc import Sequence
from types import FrameType

from broker.repository import place_and_reason
from gateway.calls import InferCall
from protocol.errors import ServingError
from protocol.messages import Response
from tensorbus import backends, foreground, request_files
from tensorbus.foreground import ForegroundModel
from tensorbus.logs import LEVELS
from tensorbus.response_text import response_text
from tensorbus.settings import ServeSettings

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def run_model(argv: Sequence[str]) -> int:
    """The exit code: 1 if the model does not load or any response is an error."""
    try:
        given = _parser().parse_args(argv)
    except SystemExit as usage:
        return EXIT_USAGE if usage.code else EXIT_OK
    signal.signal(signal.SIGINT, _Interrupt())
    try:
        return _run(given)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except ServingError as error:
        _say(f"error: {error.status_text()}{place_and_reason(error)}")
    except OSError as error:
        _say(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}")
    return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tensorbus run-model", description="Run one model in this process, to debug it.")
    parser.add_argument("model", metavar="DIR", help="the model's directory: config.pbtxt and version directories")
    parser.add_argument("--version", type=int, metavar="N", help="instead of the highest one that would be served")
    parser.add_argument(
        "--input", metavar="FILE", help="KServe JSON (a request or a list of requests), or .npz; else all zeros"
    )
    parser.add_argument("--batch", action="store_true", help="all requests in one call of execute, else one call each")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run all of it N times")
    parser.add_argument("--full", action="store_true", help="show whole tensors, however large")
    parser.add_argument(
        "--backend-directory",
        default=ServeSettings.backend_directory,
        metavar="PATH",
        help="where Python-based backends are looked for [%(default)s]",
    )
    return parser


class _Interrupt:
    """Ctrl-C ends the run even where the model, or the session around it, has taken the exception for an error."""

    happened = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        _Interrupt.happened = True
        raise KeyboardInterrupt


def _run(given: argparse.Namespace) -> int:
    checked = foreground.check(given.model, given.version, backends.find(given.backend_directory))
    environment = foreground.environment(checked)
    if environment:
        _say(f"note: {environment} is not used here; this is {sys.executable}")
    foreground.make_room()
    model = ForegroundModel(checked, _log)
    printer = _Printer(model, given.full)
    try:
        _execute(given, model, printer)
    finally:
        has_finalized = model.finalize()
    return EXIT_FAILED if printer.failed or not has_finalized else EXIT_OK


def _execute(given: argparse.Namespace, model: ForegroundModel, printer: _Printer) -> None:
    requests = _requests(model, given.input)
    calls = [requests] if given.batch else [[request] for request in requests]
    took = [printer.execute(call) for _ in range(given.repeat) for call in calls]
    if len(took) > 1:
        _say(_summary(took))


def _requests(model: ForegroundModel, path: str | None) -> list[InferCall]:
    if path is not None:
        return request_files.read(path, model.signature)
    _say("note: no --input; all inputs are zeros of the configured shapes, 1 in place of -1")
    return [request_files.zeros(model.signature)]


class _Printer:
    """Responses on stdout; how long it took on stderr."""

    def __init__(self, model: ForegroundModel, full: bool) -> None:
        self.failed = False
        self._model = model
        self._full = full
        self._names: dict[int, str] = {}  # of the client's, by Request.id

    def execute(self, calls: list[InferCall]) -> int:
        """How many nanoseconds the model took."""
        requests = []
        for call in calls:
            try:
                requests.append(self._model.accept(call))
            except ServingError as error:
                self.show(Response(0, [], error=(int(error.kind), str(error))), ())
        self._names = {request.id: request.request_id for request in requests}
        if not requests:
            return 0
        executed = self._model.execute(requests, self.show)
        if _Interrupt.happened or self._model.has_quit:
            raise KeyboardInterrupt
        _say(
            f"execute took {_ms(executed.infer_ns)} for {len(requests)} request(s), "
            f"inputs {_ms(executed.input_ns)}, outputs {_ms(executed.output_ns)}"
        )
        return executed.infer_ns

    def show(self, response: Response, frames: Sequence[bytes]) -> None:
        if response.error is not None:
            self.failed = True
            if self._model.has_quit:
                return
        elif response.flag_only:
            return
        name = self._names.get(response.request, "")
        print(response_text(self._model.signature, name, response, frames, not self._full), flush=True)


def _summary(times_ns: list[int]) -> str:
    times = f"fastest {_ms(min(times_ns))}, median {_ms(statistics.median(times_ns))}, slowest {_ms(max(times_ns))}"
    return f"{len(times_ns)} calls of execute: {times}"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f} ms"


def _log(level: str, file: str, line: int, text: str) -> None:
    """What the model logs, and what it raises."""
    if level != "V":
        _say(f"{LEVELS[level]}: {os.path.basename(file)}:{line}: {text}" if line else text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
