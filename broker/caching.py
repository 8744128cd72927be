"""Requests to models whose responses are cached: looked up before they are queued, kept once they are answered.

    LookUp -> the shell digests the inputs -> LookedUp: it is there, and answered with what was kept
                                                    or not, and goes its way
    its answer -> Keep -> the shell copies the outputs -> Kept: now it goes to who asked

What is cached is the response to the same request of the same load of a model: inputs with their types and shapes,
outputs asked for, and parameters, all of which a model may look at. Nothing that failed, nothing of models on their way
out; and an ensemble's responses are forgotten when one of its models goes or is replaced.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from broker.events import Action, Keep, Kept, LookedUp, LookUp, Say
from broker.model import ModelVersion, VersionState
from broker.model_config import Scheduler
from broker.queue import Frames, Pending
from broker.registry import Registry
from broker.response_cache import Entry, Key, ResponseCache, TooLarge
from protocol.messages import Handle, Response, TensorRef

ORIGIN = "cache"  # of the leases of cached outputs; no stub has such a key


class CachingOwner(Protocol):
    """Of the owner of all requests."""

    living: dict[int, tuple[ModelVersion, Pending]]

    def answer(
        self, version: ModelVersion, pending: Pending, response: Response, origin: str, frames: Frames, now: int
    ) -> list[Action]: ...


class _Miss(NamedTuple):
    version: ModelVersion
    key: Key
    lookup_ns: int


class _Held(NamedTuple):
    """A response whose outputs are being copied."""

    version: ModelVersion
    pending: Pending
    response: Response
    origin: str
    frames: Frames
    entry: Entry
    lookup_ns: int


class Caching:
    """Invariant: a request is in ``_looking`` or ``_held`` while the shell works for it, and is living then."""

    def __init__(self, cache: ResponseCache, registry: Registry, owner: CachingOwner) -> None:
        self._cache = cache
        self._registry = registry
        self._owner = owner
        self._looking: dict[int, tuple[ModelVersion, Pending]] = {}  # by request id, as all of these
        self._missed: dict[int, _Miss] = {}
        self._held: dict[int, _Held] = {}

    def __contains__(self, request: object) -> bool:
        """Whether a request waits for nothing but the shell."""
        return request in self._looking or request in self._held

    # --- before a request is queued ---------------------------------------------------------------------------------

    def look_up(self, version: ModelVersion, pending: Pending) -> list[Action]:
        id = pending.request.id
        self._looking[id] = self._owner.living[id] = (version, pending)
        version.flows += 1
        return [LookUp(pending, _asked_of(version, pending))]

    def found(self, event: LookedUp, now: int) -> tuple[list[Action], tuple[ModelVersion, Pending] | None]:
        """The second is a request that was not found, to be queued."""
        looking = self._looking.pop(event.request, None)
        if looking is None:  # its client has gone
            return [], None
        version, pending = looking
        version.flows -= 1
        del self._owner.living[event.request]
        record = self._cache.record
        record.lookup_ns += event.took_ns
        if not event.digest:  # its inputs could not be read; the model will say so
            return [], looking
        key = Key(version, event.digest)
        entry = self._cache.look_up(key)
        if entry is None:
            self._missed[event.request] = _Miss(version, key, event.took_ns)
            return [], looking
        pending.answered = True
        total_ns = now - pending.arrived_ns
        version.recorder.hit(total_ns, max(0, total_ns - event.took_ns), event.took_ns)
        lease = self._cache.lend(entry)
        response = Response(event.request, list(entry.outputs), lease, None, entry.parameters)
        return self._owner.answer(version, pending, response, ORIGIN, (), now), None

    def give_up(self, request: int) -> bool:
        """Its client has gone. False if it is answered already, and only its outputs are being copied."""
        looking = self._looking.pop(request, None)
        if looking is None:
            return False
        looking[0].flows -= 1
        return True

    # --- once it is answered ----------------------------------------------------------------------------------------

    def keep(
        self, version: ModelVersion, pending: Pending, response: Response, origin: str, frames: Frames, now: int
    ) -> list[Action] | None:
        """None if there is nothing to keep, and the response may go."""
        if not response.final or not self._missed:
            return None
        id = pending.request.id
        miss = self._missed.pop(id, None)
        if miss is None or response.error is not None or version.state is not VersionState.READY:
            return None
        if self._cache.knows(miss.key):  # a like request has been quicker
            return None
        tensors = _sized(response, frames)
        if tensors is None:
            return None
        # Those of an ensemble speak of the one request.
        parameters = response.parameters if version.plan is None else {}
        try:
            entry = self._cache.reserve(miss.key, tensors, parameters)
        except TooLarge as error:
            version.recorder.missed(miss.lookup_ns)
            said = Say(
                "error", "Failed to insert key into response cache", {"model": version.name, "cause": str(error)}
            )
            return [said, *self._owner.answer(version, pending, response, origin, frames, now)]
        if entry is None:
            version.recorder.missed(miss.lookup_ns)
            return None
        self._held[id] = _Held(version, pending, response, origin, frames, entry, miss.lookup_ns)
        self._owner.living[id] = (version, pending)
        version.flows += 1
        return [Keep(id, entry.start, response.outputs, frames)]

    def kept(self, event: Kept, now: int) -> list[Action]:
        version, pending, response, origin, frames, entry, lookup_ns = self._held.pop(event.request)
        version.flows -= 1
        del self._owner.living[event.request]
        self._cache.record.insertion_ns += event.took_ns
        version.recorder.missed(lookup_ns + event.took_ns)
        actions: list[Action] = []
        if event.error:
            self._cache.drop(entry)
            fields = {"model": version.name, "cause": event.error}
            actions.append(Say("error", "Failed to insert key into response cache", fields))
        else:
            self._cache.fill(entry)
        return actions + self._owner.answer(version, pending, response, origin, frames, now)

    def let_go(self, request: int) -> bool:
        """The model does not look at the inputs any more of a request that it has answered. False if the answer has
        left; else it will say so."""
        held = self._held.get(request)
        if held is None:
            return False
        self._held[request] = held._replace(response=held.response._replace(retained=False))
        return True

    def read(self, lease: int) -> None:
        """Somebody has read outputs that were found."""
        self._cache.read(lease)

    # --- when models change -----------------------------------------------------------------------------------------

    def changed(self, model: str) -> None:
        """It goes, or another load of it has come to serve: nothing that it had a part in is to be found any more, nor
        anything kept of an ensemble in which it has sequences now."""
        for version in [one for one in self._registry if one.cached]:
            parts = self._registry.with_models(version)
            if all(one.name != model for one in parts):
                continue
            self._cache.forget(version)
            for request in [id for id, miss in self._missed.items() if miss.version is version]:
                del self._missed[request]
            if any(one.config.scheduler is Scheduler.SEQUENCE for one in parts):
                version.cached = version.recorder.cached = False

    def check(self, living: dict[int, tuple[ModelVersion, Pending]]) -> None:
        """Raises AssertionError if an invariant is broken."""
        self._cache.check()
        assert self._looking.keys() | self._held.keys() | self._missed.keys() <= living.keys()
        assert not self._looking.keys() & self._held.keys()
        assert self._cache.record.hits + self._cache.record.misses >= len(self._missed)


def _sized(response: Response, frames: Frames) -> list[tuple[TensorRef, int]] | None:
    """The outputs with their sizes, which a stub may have wrong; None if nobody will be able to read them."""
    sized: list[tuple[TensorRef, int]] = []
    for tensor in response.outputs:
        place = tensor.place
        if isinstance(place, Handle):
            sized.append((tensor, place.nbytes))
        elif isinstance(place, bytes):
            sized.append((tensor, len(place)))
        elif 0 <= place < len(frames):
            sized.append((tensor, len(frames[place])))
        else:
            return None
    return sized if all(nbytes >= 0 for _, nbytes in sized) else None


def _asked_of(version: ModelVersion, pending: Pending) -> list[str]:
    """The outputs asked for, which are all if none is named."""
    return sorted(pending.request.outputs) or sorted(spec.name for spec in version.config.outputs)
