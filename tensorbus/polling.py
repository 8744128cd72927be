"""``--model-control-mode=poll``: what changes in the repositories is loaded, loaded again or unloaded.

What a load comes to is for the broker to say. Here is only decided when: what is being written at the moment is left
for the next poll, once; a load that has failed is tried again with each poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from broker.events import Reload, Removed
from broker.server import BrokerServer
from protocol.errors import ServingError
from tensorbus.repository import Repositories

log = structlog.get_logger()

_SETTLES_S = 0.3
_FAILED = "failed"  # no stamp of anything

Stamps = Mapping[str, str]  # by model; "" for what cannot be one


class Changes(NamedTuple):
    load: list[str]
    unload: list[str]


class Poller:
    """Which models are to be loaded and unloaded. Pure."""

    def __init__(self, seen: Stamps) -> None:
        """``seen`` are those that were there when the models to begin with were loaded; of those that could not be
        ``try_again`` tells."""
        self._seen = dict(seen)
        self._loading: set[str] = set()
        self._in_motion: set[str] = set()  # at the last poll

    def changed(self, now: Stamps) -> list[str]:
        """Models that are new or other than they were."""
        return [model for model, stamp in now.items() if stamp and stamp != self._seen.get(model)]

    def look(self, first: Stamps, second: Stamps) -> Changes:
        """At two looks, one shortly after the other; what has changed in between is being written."""
        changed = [model for model in self.changed(second) if model not in self._loading]
        in_motion = {model for model in changed if first.get(model) != second[model]} - self._in_motion
        load = [model for model in changed if model not in in_motion]
        unload = [model for model, stamp in self._seen.items() if stamp and not second.get(model)]
        self._in_motion = in_motion
        self._seen.update({model: second[model] for model in load})
        self._seen.update({model: "" for model, stamp in second.items() if not stamp})
        for model in self._seen.keys() - second.keys():
            del self._seen[model]
        self._loading.update(load)
        return Changes(load, unload)

    def ended(self, model: str, failed: bool) -> None:
        """A load has come to its end."""
        self._loading.discard(model)
        if failed:
            self.try_again([model])

    def try_again(self, models: Iterable[str]) -> None:
        """With the next poll, though they be as they were."""
        self._seen.update({model: _FAILED for model in models if self._seen.get(model)})


async def poll_for_ever(broker: BrokerServer, repositories: Repositories, poller: Poller, every_s: float) -> None:
    """Until it is cancelled."""
    while True:
        await asyncio.sleep(every_s)
        try:
            first = second = await repositories.look()
            if poller.changed(first):
                await asyncio.sleep(_SETTLES_S)
                second = await repositories.look()
        except ServingError as error:
            log.error("failed to poll model repository; all stays as it is", cause=str(error))
            continue
        _apply(broker, poller, poller.look(first, second))


def _apply(broker: BrokerServer, poller: Poller, changes: Changes) -> None:
    if changes.load or changes.unload:
        log.info("the model repositories have changed", load=changes.load, unload=changes.unload)
    for model in changes.unload:
        broker.post(Removed(model))
    for model in changes.load:
        broker.post(Reload(model, partial(_ended, poller, model)))


def _ended(poller: Poller, model: str, error: ServingError | None) -> None:
    if error is not None:
        log.error("a changed model was not loaded; what has served goes on serving", model=model, cause=str(error))
    poller.ended(model, failed=error is not None)
