"""One request on its way through an ensemble: which step runs when, what it is given, and what the client gets.

Tensors have names inside the ensemble. A step runs when all that it reads is there, once for each iteration: a step
in a decoupled model opens an iteration with every response, and what follows it runs as often. A tensor is forgotten
once all its readers have had it. Pure: what is to be done comes back as Progress; no queue or stub is known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct, structs

from broker.step_slots import StepSlots
from protocol.errors import InvalidArgument
from protocol.messages import TensorRef
from protocol.signature import TensorSpec

_MAX_ROUTES = 64  # that are kept of an ensemble; clients choose outputs


class Part(NamedTuple):
    """What an ensemble must know of a model that one of its steps runs in."""

    max_batch_size: int
    decoupled: bool
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    labels: Mapping[str, tuple[str, ...]] = {}


class Step(NamedTuple):
    """``inputs`` are (the model's name, the ensemble's name), and so are ``outputs``."""

    model: str
    version: int  # -1 is the highest
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    part: Part


class Link(NamedTuple):
    """Where a tensor goes that a step writes, or the request brings. ``only``: its one reader, if that is a step which
    reads nothing else, and what its model calls it."""

    name: str  # the model's
    tensor: str  # the ensemble's
    uses: int  # its readers, and the client
    readers: list[int]  # steps; one once for each of its inputs
    only: tuple[int, str] | None


class Route(NamedTuple):
    """What a request has to go through for its outputs."""

    outputs: list[str]
    begin: list[Link]  # of the request's inputs
    links: list[list[Link]]  # of each step
    asked: list[list[str]]  # of each step, by its model's names
    decoupled: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """An ensemble that has been checked: its steps form a graph from its inputs to its outputs, without a circle."""

    ensemble: str
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    max_inflight: int  # of the requests of one step at a time; 0 is no limit
    _routes: dict[tuple[str, ...], Route] = field(default_factory=dict, compare=False, repr=False)

    @property
    def decoupled(self) -> bool:
        return any(step.part.decoupled for step in self.steps)

    @property
    def models(self) -> set[str]:
        return {step.model for step in self.steps}

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """An output has those of the model that writes it."""
        return {
            tensor: step.part.labels[name]
            for step in self.steps
            for name, tensor in step.outputs
            if tensor in self.outputs and name in step.part.labels
        }

    def route(self, requested: Sequence[str]) -> Route:
        """For these outputs; none is all."""
        outputs = tuple(name for name in self.outputs if name in requested) if requested else self.outputs
        route = self._routes.get(outputs)
        if route is None:
            readers: dict[str, list[int]] = {}
            for index in self.needed(outputs):
                for _, tensor in self.steps[index].inputs:
                    readers.setdefault(tensor, []).append(index)
            links = [self._links(step.outputs, readers, outputs) for step in self.steps]
            written = {tensor for step in self.steps for _, tensor in step.outputs}
            begin = self._links([(tensor, tensor) for tensor in readers if tensor not in written], readers, outputs)
            asked = [[name for name, _ in step.outputs] for step in self.steps]
            route = Route(list(outputs), begin, links, asked, self.decoupled)
            if len(self._routes) < _MAX_ROUTES:
                self._routes[outputs] = route
        return route

    def _links(
        self, tensors: Iterable[tuple[str, str]], readers: Mapping[str, list[int]], outputs: Sequence[str]
    ) -> list[Link]:
        """Without what nobody uses."""
        links: list[Link] = []
        for name, tensor in tensors:
            steps = readers.get(tensor, [])
            uses = len(steps) + (tensor in outputs)
            only = None
            if uses == 1 and steps and len(self.steps[steps[0]].inputs) == 1:
                only = steps[0], self.steps[steps[0]].inputs[0][0]
            if uses:
                links.append(Link(name, tensor, uses, steps, only))
        return links

    def needed(self, outputs: Sequence[str]) -> list[int]:
        """The steps without which these outputs do not come about."""
        writer = {tensor: index for index, step in enumerate(self.steps) for _, tensor in step.outputs}
        found: set[int] = set()
        ahead = list(outputs)
        while ahead:
            index = writer.get(ahead.pop())
            if index is not None and index not in found:
                found.add(index)
                ahead += [tensor for _, tensor in self.steps[index].inputs]
        return sorted(found)


class Memory(Struct, eq=False):
    """What tensors lie in: the outputs of one response, or with origin "" the inputs of the ensemble's request."""

    origin: str
    lease: int
    uses: int = 0  # who looks at it: tensors that wait for readers, steps that were given them, responses


class SequenceMark(NamedTuple):
    """What a request says of its sequence."""

    correlation_id: int | str
    flags: int


class Value(Struct):
    """A tensor. ``frame`` are its bytes if they came in one, ``memory`` what must not go before it."""

    tensor: TensorRef
    frame: memoryview | bytes | None
    memory: Memory | None
    mark: SequenceMark | None = None  # given by the response that brought it, in place of the request's own


class Started(Struct):
    """A step that runs: a request to its model."""

    number: int
    step: int
    iteration: int
    inputs: list[tuple[str, Value]]  # by the model's names


class Progress(Struct):
    """Steps to start, then responses to send, by the ensemble's names. It is over after them if nothing runs."""

    started: list[Started]
    responses: list[dict[str, Value]]
    over: bool


class _Kept(Struct):
    """A tensor of one iteration. None is one that its step did not give."""

    value: Value | None
    left: int  # readers that it still waits for


class Run:
    """Invariant: a memory has a use for each kept tensor, each running step's input and each unread response in it.

    ``ended`` are the memories that nobody looks at any more; the owner of the run takes them from there."""

    __slots__ = (
        "_iterations",
        "_kept",
        "_last",
        "_steps",
        "_waiting",
        "ended",
        "id",
        "over",
        "plan",
        "route",
        "running",
        "slots",
    )

    def __init__(self, plan: Plan, outputs: Sequence[str], slots: StepSlots | None = None, id: int = 0) -> None:
        """``outputs`` are the requested ones; none is all. ``slots`` are the ensemble's, ``id`` is for the owner."""
        self.plan = plan
        self.id = id
        self.slots = StepSlots(plan.max_inflight) if slots is None else slots
        self.route = plan.route(outputs)
        self._steps = plan.steps
        self.running: dict[int, Started] = {}
        self.over = False
        self.ended: list[Memory] = []
        self._kept: dict[tuple[str, int], _Kept] = {}
        self._iterations: dict[str, int] = {}  # so far, of what a decoupled step writes
        self._waiting: dict[int, deque[Started]] = {}  # by step, for others of it to end
        self._last = 0

    # --- what happens ---------------------------------------------------------------------------------------------

    def begin(self, inputs: Mapping[str, Value | None]) -> Progress:
        """All inputs of the ensemble; None is an optional one that the request does not have."""
        return self._go_on(self.route.begin, inputs, 0)

    def responded(self, number: int, outputs: Mapping[str, Value], final: bool) -> Progress:
        """A step's response, by the model's names. Of a decoupled model a final one without outputs tells only that."""
        started = self.running[number]
        index, iteration, links = started.step, started.iteration, self.route.links[started.step]
        if final:
            self.finished(number)
        if self.route.decoupled and self._steps[index].part.decoupled:
            if final and not outputs:
                return self._go_on([], outputs, iteration)
            iteration = self._iteration_of(self._steps[index])
        return self._go_on(links, outputs, iteration)

    def _iteration_of(self, step: Step) -> int:
        tensor = step.outputs[0][1]
        self._iterations[tensor] = self._iterations.get(tensor, -1) + 1
        return self._iterations[tensor]

    def end(self) -> None:
        """No further step is to start, be it over or failed; what still runs is of no interest."""
        self.over = True
        for line in self._waiting.values():
            for started in line:
                self.let_go(started)
        self._waiting.clear()
        self.slots.forget(self)
        for kept in self._kept.values():
            if kept.value is not None and kept.value.memory is not None:
                self.drop(kept.value.memory)
        self._kept.clear()

    def finished(self, number: int) -> None:
        """A step has had its final response, or never came to its model; the next one of it may run."""
        started = self.running.pop(number, None)
        if started is not None:
            self.slots.free(started.step)

    @property
    def waits(self) -> bool:
        """Whether there are steps that could run but for the limit."""
        return bool(self._waiting)

    def resume(self) -> list[Started]:
        """Takes what may run now from those that wait."""
        return [one for step in list(self._waiting) for one in self._under_the_limit(step)]

    def force(self, step: int) -> list[Started]:
        """One of a step that waits runs whatever the limit."""
        self.slots.force(step, self)
        return [self._next(step), *self.resume()]

    def let_go(self, started: Started) -> None:
        """The step's model does not look at its inputs any more."""
        for _, value in started.inputs:
            if value.memory is not None:
                self.drop(value.memory)

    # --- steps ----------------------------------------------------------------------------------------------------

    def _go_on(self, links: list[Link], values: Mapping[str, Value | None], iteration: int) -> Progress:
        """``links`` are of tensors of this iteration that have just come about."""
        kept, steps = self._kept, self._steps
        started: list[Started] = []
        ready: dict[int, None] = {}  # an ordered set
        for name, tensor, left, readers, only in links:
            value = values.get(name)
            if value is not None:
                if left > 1:
                    value = structs.replace(value, tensor=value.tensor._replace(shared=True))
                if value.memory is not None:
                    value.memory.uses += 1
            if only is not None:
                index, given = only
                self._last += 1
                started.append(Started(self._last, index, iteration, [] if value is None else [(given, value)]))
                continue
            kept[tensor, iteration] = _Kept(value, left)
            for index in readers:
                ready[index] = None
        for index in ready:
            if all((name, iteration) in kept for _, name in steps[index].inputs):
                started.append(self._start(index, iteration))
        if self.slots.limit:
            for one in started:
                self._waiting.setdefault(one.step, deque()).append(one)
            started = self.resume()
        else:
            for one in started:
                self.running[one.number] = one
        over = not (self.running or self._waiting)
        if self.route.decoupled:
            return Progress(started, self._complete(links, iteration), over)
        return Progress(started, [self._response(0)] if over else [], over)

    def _start(self, index: int, iteration: int) -> Started:
        given: list[tuple[str, Value]] = []
        for name, tensor in self._steps[index].inputs:
            value = self._read(tensor, iteration)
            if value is not None:
                given.append((name, value))
        self._last += 1
        return Started(self._last, index, iteration, given)

    def _read(self, tensor: str, iteration: int) -> Value | None:
        """The reader has a use of its memory from now on."""
        kept = self._kept[tensor, iteration]
        kept.left -= 1
        if kept.left == 0:
            del self._kept[tensor, iteration]  # its use is the reader's
        elif kept.value is not None and kept.value.memory is not None:
            kept.value.memory.uses += 1
        return kept.value

    def _under_the_limit(self, step: int) -> list[Started]:
        started: list[Started] = []
        while step in self._waiting and self.slots.take(step, self):
            started.append(self._next(step))
        return started

    def _next(self, step: int) -> Started:
        line = self._waiting[step]
        one = line.popleft()
        self.running[one.number] = one
        if not line:
            del self._waiting[step]
        return one

    # --- responses ------------------------------------------------------------------------------------------------

    def _complete(self, fresh: Iterable[Link], iteration: int) -> list[dict[str, Value]]:
        """Of a decoupled ensemble: the outputs of an iteration, if the last of them has come."""
        outputs = self.route.outputs
        came = any(link.tensor in outputs for link in fresh)
        return [self._response(iteration)] if came and all((name, iteration) in self._kept for name in outputs) else []

    def _response(self, iteration: int) -> dict[str, Value]:
        """Raises InvalidArgument if an output never came to be; one that its step did not give is left out."""
        missing = [name for name in self.route.outputs if (name, iteration) not in self._kept]
        if missing:
            raise InvalidArgument(
                "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
            )
        values = {name: self._read(name, iteration) for name in self.route.outputs}
        return {name: value for name, value in values.items() if value is not None}

    # --- memory ---------------------------------------------------------------------------------------------------

    def drop(self, memory: Memory) -> None:
        memory.uses -= 1
        if memory.uses == 0:
            self.ended.append(memory)

    def check(self) -> None:
        """Raises AssertionError if an invariant is broken."""
        assert not self.over or not (self._kept or self._waiting)
        for kept in self._kept.values():
            assert kept.left > 0
            assert kept.value is None or kept.value.memory is None or kept.value.memory.uses > 0
