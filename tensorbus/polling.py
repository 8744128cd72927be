"""``--model-control-mode=poll``: what changes in the repositories is loaded, loaded again or unloaded.

What a load comes to is for the broker to say. Here is only decided when: what is being written at the moment is left
for the next poll, once; a load that has failed is tried again with each poll, and that is not told again as long as
neither the files nor the reason have changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from broker.events import Reload, Removed
from broker.model import VersionState
from broker.server import BrokerServer
from protocol.errors import ServingError
from tensorbus.repository import Repositories

log = structlog.get_logger()

_SETTLES_S = 0.3
_FAILED = "failed"  # no stamp of anything

Stamps = Mapping[str, str]  # by model; "" for what cannot be one


class Changes(NamedTuple):
    """``again`` are those of ``load`` that have failed as they are."""

    load: list[str]
    unload: list[str]
    again: tuple[str, ...] = ()


class Poller:
    """Which models are to be loaded and unloaded. Pure."""

    def __init__(self, seen: Stamps) -> None:
        """``seen`` are those that were there when the models to begin with were loaded; of those that could not be
        ``try_again`` tells."""
        self._seen = dict(seen)
        self._loading: set[str] = set()
        self._in_motion: set[str] = set()  # at the last poll
        self._failed: dict[str, tuple[str, str]] = {}  # the stamps of what was not loaded, and why; "" for not known

    def changed(self, now: Stamps) -> list[str]:
        """Models that are new or other than they were."""
        return [model for model, stamp in now.items() if stamp and stamp != self._seen.get(model)]

    def look(self, first: Stamps, second: Stamps) -> Changes:
        """At two looks, one shortly after the other; what has changed in between is being written."""
        changed = [model for model in self.changed(second) if model not in self._loading]
        in_motion = {model for model in changed if first.get(model) != second[model]} - self._in_motion
        load = [model for model in changed if model not in in_motion]
        unload = [model for model, stamp in self._seen.items() if stamp and not second.get(model)]
        again = tuple(model for model in load if self._failed.get(model, ("",))[0] == second[model])
        self._in_motion = in_motion
        self._seen.update({model: second[model] for model in load})
        self._seen.update({model: "" for model, stamp in second.items() if not stamp})
        for model in self._seen.keys() - second.keys():
            del self._seen[model]
            self._failed.pop(model, None)
        self._loading.update(load)
        return Changes(load, unload, again)

    def ended(self, model: str, cause: str = "") -> bool:
        """A load has come to its end, or failed for a ``cause``. Returns whether that is news."""
        self._loading.discard(model)
        before = self._failed.pop(model, ("", ""))
        if not cause:
            return False
        self._try_again(model, cause)
        stamp, known = before
        return self._failed.get(model, ("",))[0] != stamp or known not in ("", cause)

    def try_again(self, models: Iterable[str]) -> None:
        """With the next poll, though they be as they were; the log has said why they were not loaded."""
        for model in models:
            if model not in self._loading and self._seen.get(model) != _FAILED:
                self._try_again(model, "")

    def _try_again(self, model: str, cause: str) -> None:
        if self._seen.get(model):
            self._failed[model] = (self._seen[model], cause)
            self._seen[model] = _FAILED


async def poll_for_ever(broker: BrokerServer, repositories: Repositories, poller: Poller, every_s: float) -> None:
    """Until it is cancelled."""
    while True:
        await asyncio.sleep(every_s)
        poller.try_again(broker.core.registry.failed())  # with a broker, models to begin with fail whenever hosts come
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
    named = {"load": [model for model in changes.load if model not in changes.again], "unload": changes.unload}
    if any(named.values()):
        log.info("the model repositories have changed", **{what: models for what, models in named.items() if models})
    for model in changes.unload:
        broker.post(Removed(model))
    for model in changes.load:
        broker.post(Reload(model, partial(_ended, broker, poller, model), quiet=model in changes.again))


def _ended(broker: BrokerServer, poller: Poller, model: str, error: ServingError | None) -> None:
    if not poller.ended(model, "" if error is None else str(error)):
        return
    serves = any(row.state is VersionState.READY for row in broker.core.registry.rows(model))
    what = "a model was not loaded" + ("; what has served goes on serving" if serves else "")
    log.error(what, model=model, cause=str(error))
