"""What stubs say of requests, and what the askers are told: every response, and the one end of each request.

A request ends where it leaves ``living``: in ``_executed`` if ``execute`` returned its only response, in ``_responded``
if a response sender ended it, else in ``fail``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from broker import caching
from broker.caching import Caching
from broker.calls import Calls, Lease, inputs_released
from broker.ensemble_leases import ORIGIN
from broker.ensembles import Ensembles
from broker.events import Action, Answer, Kill, Pause, Say
from broker.inherited import InheritedLeases
from broker.instance import Dispatched, IllegalTransition, Instance, Open
from broker.iterative import again
from broker.model import ModelVersion
from broker.queue import Frames, Pending, Timing
from broker.registry import Registry
from broker.releases import Releases
from broker.response_cache import ResponseCache
from broker.response_order import Held
from broker.roster import Roster
from broker.tally import REASONS, Tally
from metrics.recorder import BACKEND, CANCELED
from protocol.errors import Cancelled, ErrorKind, InternalError, ServingError
from protocol.messages import Executed, Request, Response, Results, new
from protocol.services import FORGOTTEN_NS

_NOT_ITERATIVE = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
    "such a flag"  # Triton's words
)


class Answering:
    """``living`` are the requests that have no final answer yet, by id, wherever they are."""

    def __init__(
        self,
        registry: Registry,
        roster: Roster,
        releases: Releases,
        cache: ResponseCache,
        epoch_ms: int,
        max_unread: int,
        first_number: int,
    ) -> None:
        """``epoch_ms`` is for Tally, ``max_unread`` for Ensembles."""
        self._roster = roster
        self._releases = releases
        self.tally = Tally(epoch_ms)
        self.living: dict[int, tuple[ModelVersion, Pending]] = {}
        ids = count(-1 - first_number, -1)
        self.calls = Calls(registry, ids)
        self.ensembles = Ensembles(registry, ids, self, max_unread, first_number)
        self.inherited = InheritedLeases(lambda key: roster.serving(key) is not None, self._is_used, FORGOTTEN_NS)
        cache.number_from(first_number)
        self.caching = Caching(cache, registry, self)
        self._passed_on: dict[str, set[int]] = {}  # unread responses with tensors of other models, by who sent them
        self._orphaned: dict[str, list[Lease]] = {}  # what a dead process has had and its unread responses still show

    def results(
        self, version: ModelVersion, instance: Instance, message: Results, frames: Frames, now: int
    ) -> list[Action]:
        """What a stub has to tell of its work."""
        actions: list[Action] = []
        if instance.sink_of is not None:
            self._lends(instance, message)
        try:
            for response in message.responses:
                actions += self._responded(version, instance, response, frames, now)
            for executed in message.executed:
                actions += self._executed(version, instance, executed, frames, now)
        except IllegalTransition as fault:  # what it answered before is answered
            return actions + breach(instance.key, fault)
        for request in message.released:
            retained = instance.retained.pop(request, None)
            if retained is not None:
                actions += self.released(retained, now)
            elif instance.sink_of is not None:  # an earlier broker has told its final response
                actions.append(
                    inputs_released(Pending(Request(request, "", 0, []), (), instance.sink_of(request), 1, now))
                )
        if message.read:
            for origin, lease in self._read_by(instance, message):
                actions += self.outputs_read(origin, lease, now)
        return actions

    def _lends(self, instance: Instance, message: Results) -> None:
        responses = [*message.responses, *(one for executed in message.executed for one in executed.responses)]
        for response in responses:
            if response.lease:
                self.inherited.lends(instance.key, response.lease)

    def _read_by(self, instance: Instance, message: Results) -> list[Lease]:
        """Leases that the instance has had, some of them perhaps by way of an earlier broker."""
        others = [
            (origin, lease) for origin, lease in message.read if self.inherited.read(instance.key, (origin, lease))
        ]
        return others + self.calls.read(instance.index, message.read)

    def _is_used(self, lease: Lease) -> bool:
        return self.calls.borrows(lease) or self.ensembles.uses(lease)

    def _executed(
        self, version: ModelVersion, instance: Instance, executed: Executed, frames: Frames, now: int
    ) -> list[Action]:
        """``execute`` has returned. Most often each request of the batch ends by the one response that it returned;
        that they count is left to the tally, but for what the next work goes by."""
        dispatched = instance.take(executed)
        if not _answers_all(dispatched, executed):
            instance.outstanding.appendleft(dispatched)
            return self._executed_in_part(version, instance, executed, frames, now)
        _, input_ns, infer_ns, output_ns, _, responses, _, ended_ns = executed
        instance.observe(input_ns + infer_ns + output_ns)
        instance.freed(ended_ns, now)
        failed = False
        actions: list[Action] = []
        for pending, response in zip(dispatched.requests, responses, strict=True):
            request, _, _, error, _, _, retained, _ = response
            if retained:
                instance.retained[request] = pending
            del self.living[request]
            pending.answered = True
            actions += self.answer(version, pending, response, instance.key, frames, now)
            if error is not None:
                pending.error, failed = error, True
                if error[0] != ErrorKind.CANCELLED:
                    actions.append(failure(version, pending, error[1]))
        if failed:
            timing = Timing(dispatched.sent_ns, input_ns, infer_ns, output_ns)
            self.tally.failed(version, dispatched, timing, now)
        else:
            self.tally.executed(version, dispatched, executed, now)
        if version.sequences is not None:
            for pending in dispatched.requests:
                version.sequences.done(pending, now)
        return _in_parts(actions) if version.may_lead and len(actions) > _AT_ONCE else actions

    def _executed_in_part(
        self, version: ModelVersion, instance: Instance, executed: Executed, frames: Frames, now: int
    ) -> list[Action]:
        """Response senders have answered requests of the batch, or will; or the model wants them again."""
        actions: list[Action] = []
        for response in executed.responses:
            actions += self._responded(version, instance, response, frames, now)
        dispatched = instance.outstanding.popleft()
        _, input_ns, infer_ns, output_ns, _, _, rescheduled, ended_ns = executed
        instance.observe(input_ns + infer_ns + output_ns)
        instance.freed(ended_ns, now)
        version.recorder.executed(dispatched.batch_size, input_ns, infer_ns, output_ns)
        timing = Timing(dispatched.sent_ns, input_ns, infer_ns, output_ns)
        for pending, ended_ns in dispatched.ended:
            self.tally.ended(version, pending, timing, ended_ns)
        for pending in dispatched.unanswered():
            if pending.request.id in rescheduled:
                actions += self._again(version, pending, now)
            else:
                instance.open[pending.request.id] = Open(pending, executed.batch, timing)
        return actions

    def _responded(
        self, version: ModelVersion, instance: Instance, response: Response, frames: Frames, now: int
    ) -> list[Action]:
        """One response of any number; the final one ends the request."""
        place = instance.held(response.request)
        pending = self.living[response.request][1]
        if version.config.decoupled:
            _count_response(version, pending, response, now)
        actions: list[Action] = []
        if response.error is not None and pending.error is None:
            pending.error = response.error
            if response.error[0] != ErrorKind.CANCELLED:
                actions.append(failure(version, pending, response.error[1]))
        if response.final:
            instance.answered = True
            if response.retained:
                instance.retained[response.request] = pending
            del self.living[response.request]
            pending.answered = True
            if isinstance(place, Open):
                del instance.open[response.request]
                self.tally.ended(version, pending, place.timing, now)
            else:
                place.ended.append((pending, now))
            if version.sequences is not None:
                version.sequences.done(pending, now)
        return self.answer(version, pending, response, instance.key, frames, now) + actions

    def _again(self, version: ModelVersion, pending: Pending, now: int) -> list[Action]:
        if not version.config.iterative or version.sequences is None:
            needs = f"model '{version.name}' needs sequence_batching {{ iterative_sequence: true }}"
            return self.fail(version, pending, InternalError(f"{_NOT_ITERATIVE}: {needs}"), now)
        if pending.unwanted:
            return self.fail(version, pending, Cancelled(""), now)
        pending.holder = 0
        again(pending)
        version.sequences.again(pending, now)
        version.recorder.queued()
        return []

    def answer(
        self, version: ModelVersion, pending: Pending, response: Response, origin: str, frames: Frames, now: int
    ) -> list[Action]:
        if version.cached:
            keeping = self.caching.keep(version, pending, response, origin, frames, now)
            if keeping is not None:
                return keeping
        if response.lease:
            for tensor in response.outputs:
                if tensor.shared:
                    self._passed_on.setdefault(origin, set()).add(response.lease)
                    break
        if pending.whole is not None:
            return self.ensembles.answered(version, pending, response, origin, frames, now)
        if pending.caller is None:
            if version.order is not None and pending.request.id in version.order:
                passed = version.order.answered(Held(pending, response, origin, frames))
                return [Answer(*one) for one in passed]
            return [new(Answer, (pending, response, origin, frames))]
        actions, is_read = self.calls.answer(version, pending, response, origin, frames)
        if is_read and response.lease:
            actions += self.outputs_read(origin, response.lease, now)
        return actions

    def respond(
        self, version: ModelVersion, pending: Pending, response: Response, origin: str, frames: Frames, now: int
    ) -> list[Action]:
        """A response of an ensemble."""
        if version.config.decoupled:
            _count_response(version, pending, response, now)
        if response.final:
            del self.living[pending.request.id]
            pending.answered = True
            self.tally.ended_flow(version, pending, response, now)
        actions = self.answer(version, pending, response, origin, frames, now)
        if response.error is not None and response.error[0] != ErrorKind.CANCELLED:
            actions.append(failure(version, pending, response.error[1]))
        return actions

    def released(self, pending: Pending, now: int) -> list[Action]:
        """The input lease of a request whose final response was ``retained`` is over."""
        if self.caching.let_go(pending.request.id):
            return []
        return [inputs_released(pending)] if pending.whole is None else self.ensembles.let_go(pending, now)

    def fail(
        self,
        version: ModelVersion,
        pending: Pending,
        error: ServingError,
        now: int,
        reason: str = "",
        retained: bool = False,
    ) -> list[Action]:
        """A request ends that no instance has answered. ``reason`` is for the metric, where the error does not say;
        with ``retained`` somebody may still look at its inputs, until ``released``."""
        del self.living[pending.request.id]
        pending.answered = True
        if version.sequences is not None and pending.holder:
            version.sequences.done(pending, now)
        reason = reason or REASONS.get(error.kind, BACKEND)
        version.recorder.failed(reason, now - pending.arrived_ns)
        response = refusal(pending.request.id, error)._replace(retained=retained)
        actions = self.answer(version, pending, response, "", (), now)
        return actions if reason == CANCELED else [*actions, failure(version, pending, str(error))]

    def outputs_read(self, origin: str, lease: int, now: int) -> list[Action]:
        """Somebody has read the outputs of a response; the stub that has them is told with its next message."""
        actions: list[Action] = []
        found = self._roster.serving(origin)
        if found is not None:
            if self.inherited.ends((origin, lease)):
                self._releases.add(found[1], lease, now)
        elif origin == ORIGIN:
            actions = self.ensembles.read(lease, now)
        elif origin == caching.ORIGIN:
            self.caching.read(lease)
        unread = self._passed_on.get(origin)
        if unread is not None and lease in unread:
            unread.remove(lease)
            if not unread:
                del self._passed_on[origin]
                for orphan in self._orphaned.pop(origin, ()):
                    actions += self.outputs_read(*orphan, now)
        return actions

    def caller_died(self, key: str, instance: Instance, now: int) -> tuple[list[Pending], list[Action]]:
        """Ends the leases that a dead process has had; returns the calls that it made, which nobody wants now."""
        calls, leases = self.calls.died(instance.index)
        actions: list[Action] = []
        if key in self._passed_on:
            self._orphaned[key] = leases
            return calls, actions
        for origin, lease in leases:
            actions += self.outputs_read(origin, lease, now)
        return calls, actions

    def lost(self, version: ModelVersion, key: str, error: ServingError, now: int) -> list[Action]:
        """The process is dead that has the outputs of responses whose turn has not come."""
        actions: list[Action] = []
        if version.order is not None:
            for one in version.order.replace(key, (int(error.kind), str(error))):
                actions += self.outputs_read(key, one.response.lease, now)
        return actions

    def lends(self, instances: Iterable[Instance]) -> bool:
        """Whether models look at outputs of them, or steps of ensembles are to."""
        keys = {instance.key for instance in instances}
        return self.calls.lends(keys) or self.ensembles.lends(keys)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        self.caching.check(self.living)
        self.calls.check(set(self.living))
        self.ensembles.check(set(self.living))


def _count_response(version: ModelVersion, pending: Pending, response: Response, now: int) -> None:
    failed = response.error is not None
    version.recorder.responded(pending.responses, now - pending.responded_ns, failed, response.flag_only)
    pending.responses += 1
    pending.responded_ns = now


_AT_ONCE = 16  # answers to a batch


def _in_parts(actions: list[Action]) -> list[Action]:
    """The answers to one batch while the next is executed. What the first clients send next is read before the last
    ones are answered, so that it comes in time for the batch after that. (Of 64 clients 61 were in one batch and 3 in
    the next, which was over before the 61 had their answers.)"""
    parts = actions[:_AT_ONCE]
    for start in range(_AT_ONCE, len(actions), _AT_ONCE):
        parts += [Pause(), *actions[start : start + _AT_ONCE]]
    return parts


def _answers_all(dispatched: Dispatched, executed: Executed) -> bool:
    """Whether each request of the batch has its one and only response in it."""
    pendings, responses = dispatched.requests, executed.responses
    if dispatched.ended or len(pendings) != len(responses):
        return False
    for pending, response in zip(pendings, responses, strict=True):
        if response.request != pending.request.id or not response.final or pending.error is not None:
            return False
    return True


def breach(key: str, fault: IllegalTransition) -> list[Action]:
    return [Kill(key), Say("error", "a stub broke the protocol", {"cause": str(fault)})]


def refusal(request: int, error: ServingError) -> Response:
    return Response(request, [], error=(int(error.kind), str(error)))


def failure(version: ModelVersion, pending: Pending, text: str) -> Say:
    fields = {
        "model": version.name,
        "version": version.version,
        "request_id": pending.request.request_id,
        "cause": text,
    }
    return Say("error", "request failed", fields)
