"""From the model repositories to a loaded registry: scan, name what cannot be loaded, have the core load the rest."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Sequence

import structlog

from broker import config_files, model_files, places, repository
from broker.config_steps import step_models
from broker.events import LoadModels, Override
from broker.load_lines import not_polled
from broker.model import UNLOADED, OutputLabels, VersionSource, VersionState
from broker.registry import Registry
from broker.server import BrokerServer
from broker.stamps import Fingerprints, fingerprint
from protocol.errors import InternalError, InvalidArgument, NotFound, ServingError
from tensorbus.cloud import Cloud

log = structlog.get_logger()

_PROGRESS_S = 5.0


class Repositories:
    """A broker.server.Repositories: files are read in threads, off the loop."""

    def __init__(
        self,
        cloud: Cloud,
        auto_complete: bool,
        private_root: str,
        config_name: str = "",
        namespaces: Sequence[str] = (),
    ) -> None:
        """``private_root`` is where directories are made for loads that bring their files; ``namespaces`` are those of
        the repositories, if they have any."""
        self._cloud = cloud
        self._paths = cloud.paths
        self._auto_complete = auto_complete
        self._private_root = private_root
        self._config_name = config_name
        self._namespaces = namespaces

    async def open(self) -> None:
        """Raises ServingError for a repository that is not there."""
        await asyncio.to_thread(self._cloud.open)
        repository.check_repositories(self._paths)

    async def load(self, broker: BrokerServer, only: Collection[str] | None = None) -> None:
        """The models to begin with, all or some with the models of ensembles among them. Returns when each is READY or
        has failed. Raises ServingError."""
        total = await self.begin_load(broker, only)
        if total:
            await _loaded(broker, total)

    async def begin_load(self, broker: BrokerServer, only: Collection[str] | None = None) -> int:
        """The same, without waiting; returns how many versions are to be loaded. Raises ServingError."""
        scan, along = await asyncio.to_thread(self._scan, only)
        _say(scan.log)
        registry = broker.core.registry
        for failure in scan.failures:
            registry.add_name(failure.name, failure.text if failure.is_duplicate else "")
        sources = [source for directory in scan.models for source in _sources_at_start(directory, registry)]
        if sources:
            broker.post(LoadModels(sources, frozenset(along)))
        return len(sources)

    def _scan(self, only: Collection[str] | None) -> tuple[repository.Scan, set[str]]:
        """What is found, and which models of it were not asked for by name."""
        self._look_at(only)
        if only is not None:
            self._cloud.look_at_names()
        known = places.names(self._paths, self._namespaces).keys()
        named = None if only is None else self._meant(only, known)
        found = self._read_all(named)
        along: set[str] = set()
        while more := (self._of_ensembles(found) & known) - along - named if named is not None else set():
            along |= more
            self._look_at(more)
            found += self._read_all(more)
        return found, along

    def _look_at(self, models: Collection[str] | None) -> None:
        """Raises ServingError."""
        if models is not None and self._namespaces:
            models = {model.rpartition("::")[2] for model in models}
        self._cloud.look(models)

    def _read_all(self, only: Collection[str] | None) -> repository.Scan:
        return repository.scan(
            self._paths, self._auto_complete, self._config_name, only, self._cloud.localise, self._namespaces
        )

    def _meant(self, names: Iterable[str], known: Collection[str]) -> set[str]:
        """The models of these names; a name that there is not is itself."""
        meant = {name: places.candidates(name, self._namespaces) for name in names}
        return {one for name, models in meant.items() for one in (set(models) & set(known) or {name})}

    def _of_ensembles(self, scan: repository.Scan) -> set[str]:
        steps = {model for directory in scan.models for model, _ in step_models(directory.config)}
        return {one for model in steps for one in places.candidates(model, self._namespaces)}

    async def names(self) -> dict[str, str]:
        """What the repositories hold now, with the reason of what cannot be a model."""
        await asyncio.to_thread(self._cloud.look_at_names)
        return await asyncio.to_thread(places.names, self._paths, self._namespaces)

    async def look(self) -> dict[str, str]:
        """What there is, by model with a stamp: another one when its files have changed, "" for what can be no model.
        Raises ServingError."""
        return await asyncio.to_thread(self._look)

    def _look(self) -> dict[str, str]:
        self._cloud.look()
        found = places.find(self._paths, self._namespaces)
        return {model: self._stamp(paths[0]) if len(paths) == 1 else "" for model, paths in found.items()}

    def _stamp(self, directory: str) -> str:
        return self._cloud.stamp(directory) or fingerprint(directory)

    async def poll(self, model: str, override: Override | None, quiet: bool = False) -> list[VersionSource]:
        """Texts of the log name paths, and are left out if ``quiet``; those of the errors go to whoever asked."""
        private = ""
        try:
            if override is not None and override.files:
                private = await asyncio.to_thread(tempfile.mkdtemp, dir=self._private_root)
            sources, lines = await asyncio.to_thread(self._sources, model, override, private)
        except BaseException as error:
            if private:
                await self.discard(private)
            if not isinstance(error, PollError):
                raise
            if not quiet:
                log.error(str(error))
            raise not_polled(model) from None
        if not quiet:
            _say(lines)
        return sources

    def _sources(
        self, model: str, override: Override | None, private: str
    ) -> tuple[list[VersionSource], list[repository.LogLine]]:
        """Raises PollError for the log, or ServingError for the client."""
        directory = self._read(model, override, private)
        try:
            versions, lines = repository.versions_to_load(directory)
        except ServingError as error:
            raise InvalidArgument(f"load failed for model '{model}': {error}\n") from None
        return _version_sources(directory, versions, private, override), lines

    def _read(self, model: str, override: Override | None, private: str) -> repository.ModelDirectory:
        try:
            if private and override is not None:
                path = model_files.write(override.files, override.config, os.path.join(private, model))
            else:
                self._look_at([model])
                path = places.locate(model, self._paths, self._namespaces)
                self._cloud.localise(path)
        except (OSError, ValueError) as error:
            raise PollError(f"failed to write the files of model '{model}': {error}") from None
        except NotFound as error:
            if self._namespaces:  # it may be in another one
                raise
            raise PollError(str(error)) from None
        except (InvalidArgument, InternalError) as error:
            raise PollError(repository.poll_failed(model, error)) from None
        try:
            config = None if override is None else override.config
            return repository.poll(model, path, self._auto_complete, self._config_name, config)
        except ServingError as error:
            raise PollError(repository.poll_failed(model, error)) from None

    async def trim(self, registry: Registry) -> None:
        """Gives back what copies of models in object stores take that are loaded no longer."""
        if self._cloud.holds_copies:
            unloaded: set[str] = set()
            needed: set[str] = set()
            for row in registry:
                is_unloaded = (row.state, row.reason) == (VersionState.UNAVAILABLE, UNLOADED)
                (unloaded if is_unloaded else needed).add(row.source.directory)
            await asyncio.to_thread(self._cloud.forget, unloaded - needed)

    async def discard(self, directory: str) -> None:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)


class PollError(Exception):
    """Why a directory is no model that we can load, for the log."""


def _sources_at_start(directory: repository.ModelDirectory, registry: Registry) -> list[VersionSource]:
    try:
        versions, lines = repository.versions_to_load(directory)
    except ServingError as error:
        log.error(f"failed to load model '{directory.name}': {error}")
        registry.add_failure(directory.name)
        return []
    _say(lines)
    return _version_sources(directory, versions)


def _version_sources(
    directory: repository.ModelDirectory, versions: Sequence[int], private: str = "", override: Override | None = None
) -> list[VersionSource]:
    labels, refusal = _read_files(directory)
    stamps = {} if override is None else override.stamps
    seen = Fingerprints(directory.path, repository.CONFIG_ENTRIES)
    return [
        VersionSource(
            directory.name,
            version,
            directory.path,
            directory.config,
            labels,
            refusal,
            directory.requirements,
            seen.all,
            stamps.get(version) or seen.version(version),
            private,
            None if override is None else override.config,
        )
        for version in versions
    ]


def _read_files(directory: repository.ModelDirectory) -> tuple[OutputLabels, ServingError | None]:
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
        getattr(log, line.level)(line.text)
