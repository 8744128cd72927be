"""Models that hang: how long a process may take to load its model, and how long one ``execute`` may take.

Neither has a limit unless the configuration sets one, by the parameters LOAD_TIMEOUT_SECONDS and
EXECUTE_TIMEOUT_SECONDS. A process that takes longer is aborted, so that the stacks of its threads come into the log,
and killed a second later in case it has no ear for that; from there on it is like any dead process.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.events import Abort, Action, Kill, Say
from broker.model_config import ModelConfig
from protocol.errors import InvalidArgument

LOAD, EXECUTE = "LOAD_TIMEOUT_SECONDS", "EXECUTE_TIMEOUT_SECONDS"
_GRACE_NS = 1_000_000_000  # to write down the stacks


class _Limit(NamedTuple):
    at: int
    verdict: str
    name: str  # of the instance


def limit_ns(config: ModelConfig, parameter: str) -> int:
    """0: none. Raises InvalidArgument."""
    text = config.parameters.get(parameter, "")
    if not text:
        return 0
    try:
        seconds = float(text)
        if not 0 < seconds <= 1e9:
            raise ValueError
    except ValueError:
        raise InvalidArgument(
            f"parameter {parameter} of model '{config.name}' must be a number of seconds, not '{text}'"
        ) from None
    return int(seconds * 1e9)


class TimeLimits:
    """A key is in ``_running`` while its process does what has a limit, then perhaps in ``_aborted`` until it dies."""

    def __init__(self) -> None:
        self._running: dict[str, _Limit] = {}
        self._aborted: dict[str, _Limit] = {}

    def begin(self, key: str, name: str, config: ModelConfig, parameter: str, now: int) -> None:
        """The process begins to load, or to execute the next batch; what it did before is done."""
        limit = limit_ns(config, parameter)
        if limit and key not in self._aborted:
            what = "loading" if parameter == LOAD else "execute"
            seconds = config.parameters[parameter]
            verdict = f"{what} took longer than the {seconds} s that {parameter} of model '{config.name}' allows."
            self._running[key] = _Limit(now + limit, verdict, name)

    def done(self, key: str) -> None:
        """It does nothing now that has a limit."""
        if self._running:
            self._running.pop(key, None)

    def died(self, key: str) -> str:
        """Why we had it killed; "" if we had not."""
        self._running.pop(key, None)
        aborted = self._aborted.pop(key, None)
        return aborted.verdict if aborted is not None else ""

    def next_deadline(self) -> int | None:
        return min((one.at for limits in (self._running, self._aborted) for one in limits.values()), default=None)

    def deadline_passed(self, now: int) -> list[Action]:
        actions: list[Action] = []
        for key, limit in list(self._aborted.items()):
            if limit.at <= now:
                self._aborted[key] = limit._replace(at=now + _GRACE_NS)
                actions.append(Kill(key))
        for key, limit in list(self._running.items()):
            if limit.at <= now:
                del self._running[key]
                self._aborted[key] = limit._replace(at=now + _GRACE_NS)
                actions += [Say("error", limit.verdict, {"instance": limit.name}), Abort(key)]
        return actions

    def check(self) -> None:
        assert not self._running.keys() & self._aborted.keys()
