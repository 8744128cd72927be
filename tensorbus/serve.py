"""``tensorbus serve``: a server from its start to its exit code."""

from __future__ import annotations

from tensorbus.run_directory import run_directory
from tensorbus.running import exit_code, failed, run
from tensorbus.services import Services
from tensorbus.settings import ServeSettings


async def serve(settings: ServeSettings) -> int:
    """Until SIGINT or SIGTERM; the exit code. A second signal ends it at once."""
    if not settings.model_repository:
        return failed("Invalid argument - --model-repository must be specified")
    return await exit_code(_serve(settings))


async def _serve(settings: ServeSettings) -> int:
    with run_directory() as run_dir:
        return await run(Services(settings, run_dir))
