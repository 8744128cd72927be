"""The life of a stub process, told from top to bottom.

Say Hello, be told what to load, prove that shared memory is shared; then either let the model complete its
configuration and exit, or load it, say Ready and execute batches until told to finish. Everything that calls the
model happens in the main thread, but for ``is_ready`` and coroutines. When all is said the process goes, whatever the
model has left running in it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import threading
import time
import traceback
import types
from typing import Callable, NamedTuple, NoReturn

from . import bls, calls, logger, metric_family, readiness, signals, streams
from .bus import Bus
from .channel import Channel, Closed
from .event_loop import EventLoop
from .exception_text import full_traceback
from .loop import Loop
from .open_calls import OpenCalls
from .outputs import Outputs
from .segments import Segments
from .session import Session
from .shared import errors, messages
from .user_model import LoadError, UserModel, auto_complete
from .warm_up import warm_up

EXIT_OK, EXIT_FAILED_TO_LOAD, EXIT_PROTOCOL_ERROR = 0, 1, 2
_EXIT_HANDLERS_S = 2.0


class Assignment(NamedTuple):
    """What a stub process is told from outside."""

    bus: str
    key: str
    title: str


def run(assignment: Assignment) -> NoReturn:
    """Lives and exits. Only a process that the model has forked comes out of here, by an exception."""
    pid = os.getpid()
    try:
        code = _live(assignment)
    except BaseException as error:  # a signal handler of the model may well say sys.exit()
        if os.getpid() != pid:
            raise
        code = _code_of(error)
    _exit(code)


def _live(assignment: Assignment) -> int:
    """Returns the exit code."""
    _become_stub(assignment.title)
    try:
        channel = Channel(assignment.bus, assignment.key)
    except Closed:
        return EXIT_OK  # so soon has the server gone
    try:
        channel.send(messages.Hello(messages.HELLO, messages.VERSION, os.getpid()))
        received = None
        while received is None:
            received = channel.receive()
        if not isinstance(received.message, messages.Load):
            raise errors.ProtocolError("the answer to Hello is no Load")
        return _load(assignment, channel, received.message)
    except errors.ProtocolError as error:
        print("tensorbus stub {}: the broker sent a {}".format(assignment.title, error), file=sys.stderr)
        return EXIT_PROTOCOL_ERROR
    except Closed:
        return EXIT_OK  # the server has gone
    finally:
        channel.close()


def _code_of(error: BaseException) -> int:
    """What the interpreter would exit with."""
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    with contextlib.suppress(Exception):
        traceback.print_exc()
    return 1


def _exit(code: int) -> NoReturn:
    """Without the interpreter's own end, which waits for ever for threads, executors and exit handlers that hang.

    Nothing but the process's death is outstanding now, and until then the broker can neither restart the instance nor
    end itself. Threads are not waited for; a model that needs its own to finish joins them in ``finalize``. Exit
    handlers are run, in the main thread as always: coverage and profilers save what they found in theirs, logging and
    C code flush their buffers. Those rightly take milliseconds, so all of it together has two seconds.
    """
    try:
        watchdog = threading.Timer(_EXIT_HANDLERS_S, os._exit, [code])
        watchdog.daemon = True
        watchdog.start()
        for last in (atexit._run_exitfuncs, _flush_python, _flush_c):
            with contextlib.suppress(BaseException):  # handlers have printed their own; sys.exit() in one is no error
                last()
    finally:
        os._exit(code)


def _flush_python() -> None:
    """The model may have put anything in the place of its streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _flush_c() -> None:
    ctypes.CDLL(None).fflush(None)


def set_title(text: str) -> None:
    try:
        import setproctitle
    except ImportError:  # an interpreter without it; the command line names the instance too
        return
    setproctitle.setproctitle(text)


def _become_stub(title: str) -> None:
    # Triton's own name of such processes is in there for whoever looks for them by it.
    set_title("tensorbus stub: {} (triton_python_backend_stub)".format(title))
    sys.argv[:] = [""]
    # Processes that the model starts by multiprocessing run the file of __main__ again, unless it has none.
    sys.modules["__main__"] = types.ModuleType("__main__")
    signals.ignore()
    streams.open_streams()
    _reseed()


def _reseed() -> None:
    """Forked stubs would all draw the same random numbers (the random module sees to itself)."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _load(assignment: Assignment, channel: Channel, load: messages.Load) -> int:
    try:
        if load.mode == "auto_complete":
            config = auto_complete(load.model_file, load.args, load.version_directory)
            channel.send(messages.Configured(messages.CONFIGURED, config))
            return EXIT_OK
        if load.mode == "serve":
            return _serve(assignment, channel, load)
    except LoadError as error:
        if error.__cause__ is not None:
            _logger(channel)("E", os.path.basename(load.model_file), 0, full_traceback(error.__cause__))
        channel.send(messages.Failed(messages.FAILED, error.kind, str(error)))
        return EXIT_FAILED_TO_LOAD
    raise errors.ProtocolError("Load of unknown mode {}".format(load.mode))


def _serve(assignment: Assignment, channel: Channel, load: messages.Load) -> int:
    """Raises LoadError."""
    segments = Segments(load)
    outputs = Outputs(segments.placer)
    bls.serve(segments.placer, segments.reader)
    log = _logger(channel)
    logger.set_sink(log)
    bus = Bus(channel)
    asked = OpenCalls(bus)
    calls.begin(asked, assignment.bus, assignment.key)
    metric_family.set_instance(load.args["model_instance_name"])
    model = UserModel.load(load.model_file, load.args, load.version_directory)
    event_loop = EventLoop()
    calls.set_serving(True)
    warm_up(model, bus, event_loop, log)
    name, clock_ns = load.args["model_instance_name"], time.monotonic_ns
    session = Session(model, name, outputs, bus, event_loop, log, clock_ns, load.max_unread)
    loop = Loop(bus, asked, session, outputs, segments.reader, segments.status)
    asks_ready = hasattr(model.instance, "is_ready")
    if asks_ready:
        readiness.serve(assignment.bus, assignment.key, model.instance, event_loop.result_of)
    channel.send(segments.ready(asks_ready))
    loop.run()
    calls.set_serving(False)
    channel.send(messages.Goodbye(messages.GOODBYE, session.finalize()))
    segments.close()
    return EXIT_OK


def _logger(channel: Channel) -> Callable[[str, str, int, str], None]:
    def log(level: str, file: str, line: int, text: str) -> None:
        if channel.is_ours:
            with contextlib.suppress(Closed):
                channel.send(messages.Log(messages.LOG, level, file, line, text))
                return
        # In a process that the model forked, or after our Goodbye.
        print("{} {}:{}] {}".format(level, file, line, text), file=sys.stderr)

    return log
