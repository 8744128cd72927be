"""``tensorbus serve``: a server from its start to its exit code."""

from __future__ import annotations

import asyncio
import gc
import os
import signal

import structlog

from protocol.errors import ServingError
from tensorbus.log_outlet import Outlet
from tensorbus.run_directory import run_directory
from tensorbus.services import CannotListen, Services
from tensorbus.settings import ServeSettings

log = structlog.get_logger()


async def serve(settings: ServeSettings) -> int:
    """Until SIGINT or SIGTERM; the exit code. A second signal ends it at once."""
    if not settings.model_repository:
        return _failed("Invalid argument - --model-repository must be specified")
    try:
        with run_directory() as run_dir:
            return await _serve(Services(settings, run_dir))
    except OSError as error:  # of the directories and sockets that it cannot be without
        return _failed(f"Internal - {error.strerror or error}")
    except Exception:
        log.exception("the server failed")
        return 1


async def _serve(services: Services) -> int:
    stopped = asyncio.Event()

    def on_signal(number: int) -> None:
        if stopped.is_set():
            os._exit(1)  # the fork server sees our end, and cleans up
        log.info(f"Signal ({number}) received.")
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    start = asyncio.create_task(services.start())
    try:
        await asyncio.wait([start, asyncio.create_task(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            start.result()
            gc.collect()
            gc.freeze()  # what there is stays; to look through it once in a while stopped the server for 20 ms
            await stopped.wait()
    except ServingError as error:
        await services.stop()
        return _failed(error.status_text().replace(": ", " - ", 1))
    except CannotListen as error:
        await services.stop()
        log.error(str(error))
        return 1
    except Exception as error:
        log.exception("failed to start")
        await services.stop()
        return _failed(f"Internal - {error}")
    start.cancel()
    if await services.stop():
        return 0
    log.error("failed to stop server: Internal - Exit timeout expired. Exiting immediately.")
    return 1


def _failed(reason: str) -> int:
    Outlet(2).write(f"error: creating server: {reason}\n".encode(errors="backslashreplace"))
    return 1
