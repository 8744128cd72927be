"""Requests to ensembles: each is a Flow whose steps are requests of their own, queued and answered like any other.

Tensors go from step to step where they lie. A request keeps the versions that its models had when it came: none of them
goes before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from broker.calls import model_shapes
from broker.ensemble import Memory, Progress, Run, Started, Value
from broker.ensemble_leases import ORIGIN, EnsembleLeases, LeaseOwner
from broker.ensemble_tensors import inputs_of, outputs_of, parameters_of, placed
from broker.events import Action, Say, Send
from broker.flow import Flow
from broker.model import ModelVersion
from broker.patience import PATIENCE_NS, Patience
from broker.queue import Frames, Pending, Timing
from broker.registry import Registry
from broker.step_slots import StepSlots
from protocol.errors import Cancelled, InvalidArgument, ServingError, error_of
from protocol.messages import CREDIT, Credit, Handle, Request, Response, TensorRef, new

_WINDOW = 64  # responses that a stream may be ahead of what is known to have been read


class FlowOwner(LeaseOwner, Protocol):
    """What the owner of all requests does for an ensemble."""

    def respond(
        self, version: ModelVersion, pending: Pending, response: Response, origin: str, frames: Frames, now: int
    ) -> list[Action]: ...


class Ensembles:
    """Invariant: a request is in ``_flows`` until it is answered, a step in ``_steps`` until its inputs are let go."""

    def __init__(
        self, registry: Registry, ids: Iterator[int], owner: FlowOwner, max_unread: int, first_lease: int = 0
    ) -> None:
        """``ids`` are for requests that no gateway has made. Streams of a request to an ensemble pause while its client
        has ``max_unread`` bytes to read; 0: never."""
        self._max_unread = max_unread
        self._registry = registry
        self._ids = ids
        self._owner = owner
        self._flows: dict[int, Flow] = {}  # by request id
        self._steps: dict[int, tuple[Flow, Started]] = {}  # by request id
        self._opened: list[tuple[ModelVersion, Pending]] = []
        self._unwanted: list[int] = []
        self._leases = EnsembleLeases(owner, first_lease)
        self._patience = Patience()

    # --- what is asked of it ----------------------------------------------------------------------------------------

    def begin(self, version: ModelVersion, pending: Pending, now: int) -> list[Action]:
        plan = version.plan
        assert plan is not None
        pending.responded_ns = now
        if version.step_slots is None:
            version.step_slots = StepSlots(plan.max_inflight)
        run = Run(plan, pending.request.outputs, version.step_slots, pending.request.id)
        flow = self._flows[pending.request.id] = Flow(version, pending, run)
        pending.spent = Timing(now)
        version.flows += 1
        try:
            flow.members = [self._registry.find(step.model, step.version) for step in plan.steps]
        except ServingError as error:
            return self._fail(flow, flow.wrapped(error), now)
        for member in flow.members:
            member.expected += 1
        actions = self._carry_out(flow, run.begin(inputs_of(flow)), now)
        return actions + self._let_others_go(flow, now) if run.slots.limit else actions

    def answered(
        self, version: ModelVersion, pending: Pending, response: Response, origin: str, frames: Frames, now: int
    ) -> list[Action]:
        """``pending`` is a step."""
        _, _, lease, error, _, final, retained, _ = response
        flow, started = self._steps[pending.request.id]
        run = flow.run
        memory = self._leases.lend(origin, lease) if lease else None
        actions: list[Action] = []
        if final:
            del flow.steps[started.number]
            flow.ahead.pop(started.number, None)
        elif pending.window:
            flow.ahead[started.number] = (origin, flow.ahead.get(started.number, ("", 0))[1] + 1)
        if not run.over and error is None:
            try:
                progress = run.responded(started.number, outputs_of(version, response, memory, frames), final)
            except InvalidArgument as refused:
                actions += self._fail(flow, flow.wrapped(flow.with_id(refused)), now)
            else:
                actions += self._carry_out(flow, progress, now)
        else:
            if not run.over and error is not None:
                actions += self._fail(flow, flow.wrapped(error_of(*error)), now)
            if final:
                run.finished(started.number)
        if final and run.slots.limit:
            actions += self._let_others_go(flow, now)
        if flow.ahead:
            actions += self._give_credit(flow)
        if final and not retained:
            del self._steps[pending.request.id]
            run.let_go(started)
        if memory is not None:
            run.drop(memory)
        return actions + self._leases.end(flow, now) if run.ended else actions

    def let_go(self, pending: Pending, now: int) -> list[Action]:
        """The model of a step does not look at its inputs any more."""
        flow, started = self._steps.pop(pending.request.id)
        flow.run.let_go(started)
        return self._leases.end(flow, now) if flow.run.ended else []

    def read(self, lease: int, now: int) -> list[Action]:
        """Somebody has read a response of an ensemble."""
        flow = self._leases.read(lease)
        return self._give_credit(flow) + self._leases.end(flow, now)

    def cancel(self, request: int) -> list[int]:
        """Its client is gone; returns the steps that are to be cancelled for it."""
        flow = self._flows[request]
        return [step.request.id for step in flow.steps.values()]

    @property
    def has_news(self) -> bool:
        """There are steps to take."""
        return bool(self._opened or self._unwanted)

    def take_opened(self) -> list[tuple[ModelVersion, Pending]]:
        """Steps to queue."""
        opened, self._opened = self._opened, []
        return opened

    def take_unwanted(self) -> list[int]:
        """Steps of what has failed, to cancel."""
        unwanted, self._unwanted = self._unwanted, []
        return unwanted

    @staticmethod
    def is_wanted(pending: Pending) -> bool:
        """Of an opened step: its client may have gone since, or another step may have failed."""
        assert pending.whole is not None
        return not (pending.whole.answered or pending.whole.unwanted)

    def running(self, request: int) -> list[Pending]:
        """The steps that a request to an ensemble waits for."""
        flow = self._flows.get(request)
        return [] if flow is None else list(flow.steps.values())

    def uses(self, lease: tuple[str, int]) -> bool:
        """Whether steps look at these outputs, or are to."""
        return self._leases.uses(lease)

    def lends(self, keys: Collection[str]) -> bool:
        """Whether outputs of these stubs wait for their readers."""
        return self._leases.lends(keys)

    # --- on its way -------------------------------------------------------------------------------------------------

    def _carry_out(self, flow: Flow, progress: Progress, now: int) -> list[Action]:
        actions: list[Action] = []
        started, responses, over = progress.started, progress.responses, progress.over
        if over and not responses:
            responses = [{}]
        if responses:
            for position, values in enumerate(responses, 1):
                actions += self._respond(flow, values, over and position == len(responses), now)
        if started and flow.pending.unwanted:
            return actions + self._give_up(flow, started, Cancelled(""), now)
        return actions + self._open(flow, started, now) if started else actions

    def _open(self, flow: Flow, started: list[Started], now: int) -> list[Action]:
        whole = flow.pending
        for position, one in enumerate(started):
            version = flow.members[one.step]
            frames: list[memoryview | bytes] = []
            try:
                request = self._request(flow, one, version, frames)
            except InvalidArgument as error:  # its model does not take the tensors
                return self._give_up(flow, started[position:], flow.wrapped(error), now)
            pending = Pending(request, frames, None, version.batch_size(request), now, whole=whole, waits=whole.waits)
            if version.config.decoupled and version.plan is None:
                pending.window = flow.run.plan.max_inflight or (_WINDOW if self._max_unread else 0)
            flow.steps[one.number] = pending
            self._steps[request.id] = (flow, one)
            self._opened.append((version, pending))
        return []

    def _give_up(self, flow: Flow, never: list[Started], error: ServingError, now: int) -> list[Action]:
        """It fails before these steps have come to their models."""
        for started in never:
            flow.run.finished(started.number)
            flow.run.let_go(started)
        return self._fail(flow, error, now)

    def _request(
        self, flow: Flow, started: Started, version: ModelVersion, frames: list[memoryview | bytes]
    ) -> Request:
        """Raises InvalidArgument."""
        asked = flow.pending.request
        wanted = flow.run.route.asked[started.step]
        correlation_id, flags = asked.correlation_id, asked.flags
        inputs: list[TensorRef] = []
        for (name, value), shape in zip(started.inputs, self._shapes(flow, started, version, wanted), strict=True):
            _, datatype, _, place, shared = value.tensor
            if value.frame is not None:
                place = len(frames)
                frames.append(value.frame)
            inputs.append(new(TensorRef, (name, datatype, shape, place, shared)))
            if value.mark is not None:  # the last one counts
                correlation_id, flags = value.mark
        fields = (
            next(self._ids),
            version.name,
            version.version,
            inputs,
            asked.request_id,
            wanted,
            asked.parameters,
            correlation_id,
            flags,
            asked.priority,
            asked.timeout_us,
        )
        return new(Request, fields)

    @staticmethod
    def _shapes(flow: Flow, started: Started, version: ModelVersion, wanted: list[str]) -> Sequence[tuple[int, ...]]:
        """Of the inputs, as the model gets them; what is given to it again and again is checked once. Raises
        InvalidArgument if it does not take them."""
        given: list[object] = [wanted]
        anew = False
        for name, value in started.inputs:
            _, datatype, shape, place, _ = value.tensor
            if type(place) is bytes and datatype != "BYTES":  # of those the elements are looked at
                given.append((name, datatype, shape, len(place)))
            elif type(place) is Handle:
                given.append((name, datatype, shape, place.nbytes))
            else:
                anew = True
        known, shapes = version.taken
        if anew or given != known:
            frames: list[memoryview | bytes] = []
            specs, batching = version.checker.inputs, version.config.max_batch_size > 0
            inputs = [placed(name, value, specs.get(name), batching, frames) for name, value in started.inputs]
            shapes = model_shapes(version, flow.pending.request.request_id, inputs, wanted, frames)
            if not anew:
                version.taken = (given, shapes)
        return shapes

    # --- the pace ---------------------------------------------------------------------------------------------------

    def _let_others_go(self, flow: Flow, now: int) -> list[Action]:
        """Requests to the same ensemble that have waited for a step to end."""
        slots = flow.run.slots
        actions: list[Action] = []
        for step, _ in slots.first():
            while (run := slots.next(step)) is not None:
                assert isinstance(run, Run)
                other = self._flows[run.id]
                actions += self._open(other, run.resume(), now) + self._give_credit(other)
        self._patience.watch(slots, now)
        return actions

    def _give_credit(self, flow: Flow) -> list[Action]:
        """To what streams for it, unless that has to wait for the steps that follow, or for the client."""
        if not flow.ahead or flow.run.waits:
            return []
        if 0 < self._max_unread <= flow.unread and flow.pending.sink is not None:
            return []
        actions: list[Action] = []
        for number, (key, responses) in list(flow.ahead.items()):
            step = flow.steps.get(number)
            if step is not None and 2 * responses >= step.window:
                del flow.ahead[number]
                actions.append(Send(key, Credit(CREDIT, step.request.id, responses)))
        return actions

    def next_deadline(self) -> int | None:
        return self._patience.next_deadline()

    def deadline_passed(self, now: int) -> list[Action]:
        """Steps that have waited for very long run all the same: what they wait for may be waiting for them."""
        actions: list[Action] = []
        for slots in self._patience.exhausted(now):
            for step, run in slots.first():
                assert isinstance(run, Run)
                flow = self._flows[run.id]
                actions.append(_forced(flow.version, step, slots))
                actions += self._open(flow, run.force(step), now) + self._give_credit(flow)
            self._patience.watch(slots, now)
        return actions

    # --- responses --------------------------------------------------------------------------------------------------

    def _respond(self, flow: Flow, values: dict[str, Value], final: bool, now: int) -> list[Action]:
        version, pending = flow.version, flow.pending
        frames: list[memoryview | bytes] = []
        specs, batching = version.checker.outputs, version.config.max_batch_size > 0
        correlation_id, flags = pending.request.correlation_id, pending.request.flags
        outputs: list[TensorRef] = []
        memories: list[Memory] = []
        for name, value in values.items():
            outputs.append(placed(name, value, specs.get(name), batching, frames))
            if value.memory is not None:
                memories.append(value.memory)
            if value.mark is not None:
                correlation_id, flags = value.mark
        # What is still to come waits until enough has been read; that is told by leases.
        paces = self._max_unread > 0 and not final and pending.sink is not None
        lease = self._leases.new_lease(flow, memories, outputs, frames) if memories or paces else 0
        parameters = parameters_of(correlation_id, flags) if values else {}
        if final:
            self._over(flow)
        retained = final and self._retains(flow)
        flag_only = final and not values and version.checker.signature.decoupled
        fields = (pending.request.id, outputs, lease, None, parameters, final, retained, flag_only)
        response = new(Response, fields)
        return self._owner.respond(version, pending, response, ORIGIN, frames, now)

    def _fail(self, flow: Flow, error: ServingError, now: int) -> list[Action]:
        """Its end. What still runs of it is dropped; a stream, which might have no end, is cancelled."""
        self._over(flow)
        self._unwanted += [step.request.id for step in flow.steps.values() if self._is_stream(step)]
        response = Response(flow.pending.request.id, [], error=(int(error.kind), str(error)))
        response = response._replace(retained=self._retains(flow))
        return self._owner.respond(flow.version, flow.pending, response, "", (), now)

    def _is_stream(self, step: Pending) -> bool:
        flow, started = self._steps[step.request.id]
        return flow.members[started.step].config.decoupled

    def _over(self, flow: Flow) -> None:
        del self._flows[flow.pending.request.id]
        flow.version.flows -= 1
        for member in flow.members:
            member.expected -= 1
        flow.run.end()
        flow.own.uses -= 1

    def _retains(self, flow: Flow) -> bool:
        """Whether steps, or whoever reads the response, still look at the inputs of the request: ``own`` ends later."""
        flow.retained = flow.own.uses > 0
        return flow.retained

    def check(self, living: set[int]) -> None:
        """``living`` are the ids of all requests that are not finally answered. Raises AssertionError."""
        assert self._flows.keys() <= living
        for id, flow in self._flows.items():
            assert flow.pending.request.id == id and not flow.run.over
            assert flow.own.uses > 0 and not flow.run.ended
            flow.run.check()
            flow.run.slots.check()
        self._leases.check()
        for flow, _ in self._steps.values():
            assert flow.run.over or flow.pending.request.id in self._flows


def _forced(version: ModelVersion, step: int, slots: StepSlots) -> Say:
    waited = f"(inflight: {slots.running(step)} >= limit: {slots.limit}) for {PATIENCE_NS // 10**9} seconds"
    text = f"Ensemble '{version.name}' unable to schedule step {step} {waited}. Proceeding to avoid deadlock."
    return Say("error", text, {"model": version.name})
