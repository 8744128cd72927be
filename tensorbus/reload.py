"""``--reload``: a model whose files have changed is loaded again; what has served goes on serving until it is ready.

What that load comes to is for the broker to say. Here is only decided when: a change counts once the files have stayed
as they are from one look to the next, so that half of what an editor or a checkout writes is not loaded.
"""

from __future__ import annotations

import asyncio

import structlog

from broker.events import Reload
from broker.registry import Registry
from broker.server import BrokerServer
from broker.stamps import Stamp, stamps
from protocol.errors import ServingError

log = structlog.get_logger()

Snapshot = dict[str, Stamp]  # of each file, by its path within the model's directory

_EVERY_S = 0.5
_MADE_BY_PEOPLE = (".py", ".pbtxt")


class Watcher:
    """When one model is to be loaded again. Pure."""

    def __init__(self, loaded: Snapshot) -> None:
        self._loaded = loaded
        self._last = loaded

    def look(self, now: Snapshot) -> list[str]:
        """The files that are a reason to load it now. They count as loaded from here on."""
        is_settled, self._last = now == self._last, now
        files = changed(self._loaded, now) if is_settled else []
        if files:
            self._loaded = now
        return files

    def ended(self, now: Snapshot) -> None:
        """The load has come to its end. What other files were written meanwhile the model has written itself, as likely
        as not; if that were a reason, there would be no end."""
        code = {name for name in changed(self._loaded, now) if name.endswith(_MADE_BY_PEOPLE)}
        self._loaded = {name: at for name, at in now.items() if name not in code} | {
            name: self._loaded[name] for name in code if name in self._loaded
        }


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    return sorted({name for name, _ in before.items() ^ after.items()})


def snapshot(directory: str) -> Snapshot:
    """Takes as long as reading the names of all files does."""
    return {path: stamp for path, stamp in stamps(directory) if stamp is not None}


async def first_look(broker: BrokerServer) -> dict[str, Watcher]:
    """By model. What is changed after this is a reason."""
    directories = _directories(broker.core.registry).items()
    return {model: Watcher(await asyncio.to_thread(snapshot, directory)) for model, directory in directories}


async def watch(broker: BrokerServer, watches: dict[str, Watcher]) -> None:
    """Until it is cancelled. ``watches`` are those of the first look; models that come later are added."""
    loading: set[str] = set()
    while True:
        for model, directory in _directories(broker.core.registry).items():
            now = await asyncio.to_thread(snapshot, directory)
            known = watches.setdefault(model, Watcher(now))
            if model in loading:
                continue
            files = known.look(now)
            if files:
                log.info("files have changed: the model is loaded again", model=model, files=files)
                loading.add(model)
                broker.post(Reload(model, _Ended(model, directory, known, loading)))
        await asyncio.sleep(_EVERY_S)


def _directories(registry: Registry) -> dict[str, str]:
    """Of the models that come from a repository."""
    return {
        one.name: one.source.directory for one in registry if one.source.directory and not one.source.private_directory
    }


class _Ended:
    """What is called at the end of a load."""

    def __init__(self, model: str, directory: str, watch: Watcher, loading: set[str]) -> None:
        self._model = model
        self._directory = directory
        self._watch = watch
        self._loading = loading

    def __call__(self, error: ServingError | None) -> None:
        if error is not None:
            log.error("the changed model was not loaded; what has served goes on serving", model=self._model)
        self._watch.ended(snapshot(self._directory))
        self._loading.discard(self._model)
