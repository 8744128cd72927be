"""Stubs that have outlived the broker that started them: they become instances of the next one, with all they hold.

A stub is taken over as the instance that it was if its files are still those of the version. The requests inside it are
answered if it still does; none of them is ever executed again.

A model that somebody had loaded is read again before its stubs are taken over. What they say meanwhile waits for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from broker.answering import Answering
from broker.events import Action, Kill, Override, Send, StubDied, StubSaid
from broker.instance import Dispatched, Instance, InstanceState, Open
from broker.model import ModelVersion, files_of
from broker.model_config import InstanceSpec
from broker.model_files import PREFIX
from broker.queue import Pending, ReplySink, Timing
from broker.roster import Roster
from protocol.codec import decode_from_stub
from protocol.errors import ProtocolError
from protocol.messages import CANCEL, Cancel, NewFamily, NewMetric, Ready, Request
from protocol.services import HeldStub

SinkOf = Callable[[int], ReplySink]  # where the answers to a request go that another broker has taken


class FilesAreLost(Exception):
    """Those that were given with a request to load a model."""


class _Held(NamedTuple):
    stub: HeldStub
    ready: Ready
    sink: SinkOf


class Adoption:
    """Holds the stubs of hosts until each is taken over or nobody wants it."""

    def __init__(self, roster: Roster, answering: Answering) -> None:
        self._roster = roster
        self._answering = answering
        self._held: dict[tuple[str, str], list[_Held]] = {}  # by host and model
        self._said: dict[str, list[StubSaid | StubDied]] = {}  # by the key of each of those: what it has said since
        self._due: list[StubSaid | StubDied] = []  # what those had said that were taken over since

    def __bool__(self) -> bool:
        return bool(self._held or self._due)

    def add(self, host: str, stubs: Iterable[HeldStub], sink: SinkOf, now: int) -> list[Action]:
        """What a host has. Stubs that do not serve yet are of no use."""
        actions: list[Action] = []
        for stub in stubs:
            ready = _ready(stub)
            if ready is None:
                actions.append(Kill(stub.key))
            else:
                self._held.setdefault((host, stub.model), []).append(_Held(stub, ready, sink))
                self._said[stub.key] = [StubSaid(stub.key, message, ()) for message in _made(stub)]
                self._answering.inherited.lent(stub.key, stub.lent, now)
                self._answering.inherited.claim(stub.key, stub.reading)
        return actions

    def keeps(self, event: StubSaid | StubDied) -> bool:
        """Whether it is of a stub that nobody has taken over yet."""
        said = self._said.get(event.key.partition("/")[0])
        if said is None:
            return False
        said.append(event)
        return True

    def due(self) -> list[StubSaid | StubDied]:
        """What is to be heard now, before anything else."""
        due, self._due = self._due, []
        return due

    def remove(self, host: str) -> None:
        """It is lost."""
        for place in [place for place in self._held if place[0] == host]:
            self._forget(place)

    def _forget(self, place: tuple[str, str]) -> list[_Held]:
        held = self._held.pop(place)
        for one in held:
            del self._said[one.stub.key]
            self._answering.inherited.gone(one.stub.key)
        return held

    def models(self) -> set[str]:
        return {model for _, model in self._held}

    def override(self, model: str) -> Override | None:
        """What its youngest stub was loaded with in place of what the repository holds. Raises FilesAreLost."""
        stubs = [one.stub for (_, name), held in self._held.items() if name == model for one in held]
        youngest = max(stubs, key=lambda stub: int(stub.key.partition(".")[0]))
        given = youngest.given
        if given is None:
            return None
        if not given.files:
            return Override(given.config)
        files = next((one.files for one in stubs if one.files and one.given == given), None)
        if files is None:
            raise FilesAreLost
        paths = {f"{PREFIX}{path}": content for path, content in files.items()}
        return Override(given.config, paths, {one.version: files_of(one.stamp) for one in stubs if one.given == given})

    def drop(self, model: str) -> list[Action]:
        """No instance of it will take one over any more."""
        places = [place for place in self._held if place[1] == model]
        return [Kill(held.stub.key) for place in places for held in self._forget(place)]

    def config(self, version: ModelVersion) -> str:
        """The complete configuration of the version, as one of them was given it; "" if there is none."""
        for (_, model), held in self._held.items():
            for one in held if model == version.name else ():
                if _runs(one.stub, version):
                    return one.stub.config
        return ""

    def take(self, version: ModelVersion, spec: InstanceSpec, host: str, now: int) -> Instance | None:
        """The instance that one of the host's stubs is, READY."""
        held = self._held.get((host, version.name), [])
        found = next((one for one in held if _runs(one.stub, version) and one.stub.instance == spec.name), None)
        if found is None or ((found.stub.batches or found.stub.open) and not _is_plain(version)):
            return None
        held.remove(found)
        if not held:
            del self._held[host, version.name]
        self._due += self._said.pop(found.stub.key)
        return self._instance(version, spec, host, found, now)

    def cancel_orphans(self, instance: Instance) -> list[Action]:
        """Steps of ensembles and calls of models: who waited for them was known to the other broker alone. One that
        waits for credit or for its reader would wait for long."""
        requests = [pending for dispatched in instance.outstanding for pending in dispatched.requests]
        requests += [one.pending for one in instance.open.values()]
        orphans = [pending for pending in requests if pending.request.id < 0]
        for pending in orphans:
            pending.unwanted = True
        return [Send(instance.key, Cancel(CANCEL, [one.request.id for one in orphans]))] if orphans else []

    def _instance(self, version: ModelVersion, spec: InstanceSpec, host: str, held: _Held, now: int) -> Instance:
        stub, ready, sink = held
        index, _, incarnation = stub.key.partition(".")
        instance = Instance(spec, int(index), host)
        instance.incarnation, instance.key = int(incarnation), stub.key
        instance.state = InstanceState.READY
        instance.shared = bool(ready.nonce)
        instance.asks_ready = ready.asks_ready
        instance.ready_since = now
        instance.sink_of = sink
        for batch, requests in sorted(stub.batches):
            pendings = [self._pending(version, request, sink, instance, now) for request in requests]
            instance.outstanding.append(Dispatched(batch, pendings, now))
        for request in stub.open:
            pending = self._pending(version, request, sink, instance, now)
            instance.open[request] = Open(pending, 0, Timing(now))
        self._roster.add_instance(version, instance)
        return instance

    def _pending(self, version: ModelVersion, id: int, sink: SinkOf, instance: Instance, now: int) -> Pending:
        """What is known of it is enough to answer it."""
        pending = Pending(Request(id, version.name, version.version, []), (), sink(id), 1, now)
        pending.holder = instance.index
        pending.taken_over = True
        self._answering.living[id] = (version, pending)
        return pending


def _made(stub: HeldStub) -> Iterator[NewFamily | NewMetric]:
    """The metrics that its model has, made once more."""
    for header in stub.made:
        with contextlib.suppress(ProtocolError):
            message = decode_from_stub(header)
            if isinstance(message, NewFamily | NewMetric) and not message.call:
                yield message


def _ready(stub: HeldStub) -> Ready | None:
    """What it has said when it had loaded its model; None if it has not, or is not what a broker has started."""
    index, _, incarnation = stub.key.partition(".")
    if not (index.isdecimal() and incarnation.isdecimal() and stub.stamp and stub.config):
        return None
    try:
        ready = decode_from_stub(stub.ready)
    except ProtocolError:
        return None
    return ready if isinstance(ready, Ready) else None


def _runs(stub: HeldStub, version: ModelVersion) -> bool:
    source = version.source
    return (stub.version, stub.stamp, stub.given) == (version.version, source.stamp, source.given)


def _is_plain(version: ModelVersion) -> bool:
    """Nothing was known of its requests but where they are: no sequences, no order."""
    return version.sequences is None and version.order is None and not version.config.iterative
