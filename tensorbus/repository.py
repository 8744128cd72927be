"""From the model repositories to a loaded registry: scan, name what cannot be loaded, have the core load the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from broker import config_files, repository
from broker.events import LoadModels
from broker.model import Labels, VersionSource
from broker.registry import Registry
from broker.server import BrokerServer
from protocol.errors import ServingError

log = structlog.get_logger()

_PROGRESS_S = 5.0
_LEVELS = {"I": "info", "W": "warning", "E": "error"}


async def load_repositories(broker: BrokerServer, repositories: Sequence[str], auto_complete: bool) -> None:
    """Returns when every model is READY or has failed. Raises ServingError for a repository that is not there."""
    scan = repository.scan(repositories, auto_complete)
    _say(scan.log)
    registry = broker.core.registry
    for failure in scan.failures:
        registry.add_name(failure.name, failure.text if failure.is_duplicate else "")
    sources = [source for directory in scan.models for source in _sources(directory, registry)]
    if sources:
        broker.post(LoadModels(sources))
        await _loaded(broker, len(sources))


def _sources(directory: repository.ModelDirectory, registry: Registry) -> list[VersionSource]:
    try:
        versions, lines = repository.versions_to_load(directory)
    except ServingError as error:
        log.error(f"failed to load model '{directory.name}': {error}")
        registry.add_failure(directory.name)
        return []
    _say(lines)
    labels, refusal = _read_files(directory)
    return [
        VersionSource(
            directory.name, version, directory.path, directory.config, labels, refusal, directory.requirements
        )
        for version in versions
    ]


def _read_files(directory: repository.ModelDirectory) -> tuple[Labels, ServingError | None]:
    """The labels, or why the files that the configuration names will not do."""
    try:
        config_files.check_initial_states(directory.config, directory.path)
        return config_files.read_labels(directory.config, directory.path), None
    except ServingError as error:
        return {}, error


async def _loaded(broker: BrokerServer, total: int) -> None:
    """Polls, since loads take milliseconds at best; says now and then what is still awaited."""
    loop = asyncio.get_running_loop()
    say_at = loop.time() + _PROGRESS_S
    while True:
        await asyncio.sleep(0.005)
        waiting = broker.core.registry.loading()
        if not waiting and not broker.core.loading:
            return
        if loop.time() >= say_at:
            say_at += _PROGRESS_S
            log.info("still loading", done=total - len(waiting), total=total, waiting_for=waiting[:10])


def _say(lines: Sequence[repository.LogLine]) -> None:
    for line in lines:
        getattr(log, _LEVELS[line.level])(line.text)
