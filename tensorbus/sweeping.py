"""Once in a while, what dead processes have left in shared memory goes: those of other containers too."""

from __future__ import annotations

import asyncio

import structlog

from shm.sweep import sweep

log = structlog.get_logger()

_EVERY_S = 10.0


async def sweep_for_ever(directory: str) -> None:
    while True:
        await asyncio.sleep(_EVERY_S)
        swept = await asyncio.to_thread(sweep, directory)
        if swept:
            log.info("shared memory that dead processes had left was removed", segments=len(swept))
