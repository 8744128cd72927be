"""``tensorbus serve``: a server from its start to its exit code."""

from __future__ import annotations

import structlog

from tensorbus.run_directory import run_directory
from tensorbus.running import failed, run
from tensorbus.services import Services
from tensorbus.settings import ServeSettings

log = structlog.get_logger()


async def serve(settings: ServeSettings) -> int:
    """Until SIGINT or SIGTERM; the exit code. A second signal ends it at once."""
    if not settings.model_repository:
        return failed("Invalid argument - --model-repository must be specified")
    try:
        with run_directory() as run_dir:
            return await run(Services(settings, run_dir))
    except OSError as error:  # of the directories and sockets that it cannot be without
        return failed(f"Internal - {error.strerror or error}")
    except Exception:
        log.exception("the server failed")
        return 1
