"""The life of a process that serves: it starts, is told to stop by a signal, stops, and has an exit code."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import structlog

from protocol.errors import ServingError
from tensorbus.log_outlet import Outlet

log = structlog.get_logger()

# What messages are decoded to is gone within a turn and makes no cycles. To look for them every 700 objects took a
# gateway, broker and stub host 7 % of what a request costs them.
_GC_THRESHOLDS = 10_000, 20, 20


class CannotListen(Exception):
    """A port is taken; ``str(error)`` is the line for the operator."""


class Service(Protocol):
    """``start`` raises ServingError or CannotListen; ``stop`` cleans up all the same, and is False if the time that it
    had ran out."""

    async def start(self) -> None: ...

    async def stop(self) -> bool: ...


async def run(service: Service, name: str = "server", over: asyncio.Event | None = None) -> int:
    """Until SIGINT or SIGTERM, or until it is ``over`` for a reason of its own, which is a failure; the exit code. A
    second signal ends it at once."""
    stopped = asyncio.Event()

    def on_signal(number: int) -> None:
        if stopped.is_set():
            os._exit(1)  # the fork server sees our end, and cleans up
        log.info(f"Signal ({number}) received.")
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    start = asyncio.create_task(service.start())
    ends = [asyncio.create_task(event.wait()) for event in (stopped, over) if event is not None]
    try:
        await asyncio.wait([start, *ends], return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            start.result()
            gc.collect()
            gc.freeze()  # what there is stays; to look through it once in a while stopped the server for 20 ms
            gc.set_threshold(*_GC_THRESHOLDS)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    except ServingError as error:
        await service.stop()
        return failed(error.status_text().replace(": ", " - ", 1), name)
    except CannotListen as error:
        await service.stop()
        log.error(str(error))
        return 1
    except Exception as error:
        log.exception("failed to start")
        await service.stop()
        return failed(f"Internal - {error}", name)
    start.cancel()
    if await service.stop():
        return 0 if stopped.is_set() else 1
    log.error("failed to stop server: Internal - Exit timeout expired. Exiting immediately.")
    return 1


async def exit_code(life: Awaitable[int], name: str = "server") -> int:
    """Of a whole life, from what it is made of on: ``run`` knows only of what can fail from its start on."""
    try:
        return await life
    except OSError as error:  # of the directories and sockets that it cannot be without
        return failed(f"Internal - {error.strerror or error}", name)
    except Exception:
        log.exception(f"the {name} failed")
        return 1


def failed(reason: str, name: str = "server") -> int:
    """The exit code; the reason is for the operator who has just started it, whatever becomes of the log."""
    Outlet(2).write(f"error: creating {name}: {reason}\n".encode(errors="backslashreplace"))
    return 1


def warn_of(ignored_flags: Iterable[str]) -> None:
    for flag in ignored_flags:
        log.warning(f"--{flag} has no effect here")


async def within(deadline: float, done: Callable[[], bool], say: Callable[[float], None]) -> bool:
    """Waits for ``done``; at once and each second ``say`` is told the seconds that are left."""
    say_at = time.monotonic()
    while True:
        now = time.monotonic()
        if now >= say_at:
            say_at += 1
            say(max(0.0, deadline - now))
        if done():
            return True
        if now >= deadline:
            return False
        await asyncio.sleep(0.01)
