"""How the responses of an instance become messages and leave: what all its open requests share."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple
from weakref import ref

from .closed import Closed
from .failures import Failures
from .pacing import Pacing
from .placer import PlacedTensor
from .response import InferenceResponse
from .retained import RetainedInputs
from .shared import errors, messages
from .tensor import binary_form, outgoing
from .triton_error import TritonModelException

Roots = List["ref[Any]"]  # of a request's inputs: weak references to the arrays that hold their memory

_INTERNAL, _CANCELLED = int(errors.ErrorKind.INTERNAL), int(errors.ErrorKind.CANCELLED)
_NO_RESPONSE = "The execute function returned no response for the request and sent none through its response sender."
_NO_FINAL = "The model has let go of the request and of its response sender without sending the final flag."
_NONE: Dict[str, messages.ParameterValue] = {}


class OutputPlacer(Protocol):
    """Where the tensors of a response go: a block of shared memory, or frames of the message."""

    def place(
        self, tensors: Sequence[PlacedTensor], frames: List[bytes], inline: bool
    ) -> Tuple[List[messages.TensorRef], int]:
        """Copies the tensors of ONE response (never empty), the inline ones to the end of ``frames``; returns their
        references and the lease (0: inline). From any thread."""

    def lend_nothing(self) -> int:
        """A lease without memory. From any thread."""


class Port(Protocol):
    """What of the bus is needed here (bus.py)."""

    @property
    def is_ours(self) -> bool: ...
    def send(self, message: messages.ToBroker, frames: Sequence[bytes] = ()) -> None: ...
    def wait(self, done: Callable[[], Any], timeout_s: Optional[float] = None) -> bool: ...
    def glance(self) -> None: ...
    def nudge(self) -> None: ...


class _Abandoned(NamedTuple):
    request: int
    roots: Roots


class Delivery:
    """``open`` are the requests that ``execute`` has left without a final response; ``cancelled`` those whose clients
    do not want one, and some that have not come here yet; ``inline`` those whose outputs go into frames. All are used
    by any thread, by single operations on sets of numbers."""

    def __init__(
        self,
        decoupled: bool,
        declared: Dict[str, str],
        outputs: OutputPlacer,
        port: Port,
        failures: Failures,
        max_unread: int = 0,
    ) -> None:
        self.decoupled = decoupled
        self.output_names = frozenset(declared)
        self._unseen = declared  # of outputs that the model has never made
        self.open: Set[int] = set()
        self.cancelled: Set[int] = set()
        self.inline: Set[int] = set()
        self.pacing = Pacing(port, self.cancelled, max_unread)
        self.retained = RetainedInputs(port.nudge)
        self._place = outputs.place
        self._lend_nothing = outputs.lend_nothing
        self._port = port
        self._failures = failures
        self.abandoned: Deque[_Abandoned] = deque()  # for ``take_abandoned`` to answer

    def convert(
        self, message: messages.Request, response: InferenceResponse, final: bool, frames: List[bytes]
    ) -> messages.Response:
        """What was asked for of the outputs, in the order of the response, as they are now.

        A response that cannot be had becomes an error in its place."""
        request = message.id
        inline = request in self.inline
        wanted = message.outputs or self.output_names
        tensors: List[PlacedTensor] = []
        try:
            parameters = response._parameters
            error = response._error
            if error is not None:
                return messages.Response(request, [], 0, (int(error._code), error._message), parameters, final)
            for tensor in response._tensors:
                name = tensor._name
                if name in wanted:
                    data = binary_form(tensor) if inline or tensor._place is None else outgoing(tensor)
                    tensors.append((name, tensor._datatype, tensor._shape, data))
            if self._unseen:
                self._compare(tensors)
        except TritonModelException as refused:
            return failed(request, self._failures.text(str(refused)), final)
        except Exception as broken:  # a subclass of the model's own that has not initialized ours
            return failed(request, self._failures.hidden("the response cannot be read", broken), final)
        if not tensors:
            return messages.Response(request, [], 0, None, parameters, final)
        try:
            outputs, lease = self._place(tensors, frames, inline)
            if not lease and self.decoupled and self.pacing.is_bounded(request):
                lease = self._lend_nothing()
        except Exception as full:
            return failed(request, self._failures.hidden("the outputs found no place", full), final)
        return messages.new(messages.Response, (request, outputs, lease, None, parameters, final, False, False))

    def _compare(self, tensors: Sequence[PlacedTensor]) -> None:
        """As it is the model's first, which stands for all; clients are told what it is."""
        for name, datatype, _, _ in tensors:
            declared = self._unseen.pop(name, "")
            if declared and declared != datatype:
                text = "output '{}' is {} and not {}, as the configuration has it; clients get it as it is"
                self._failures.warn(text.format(name, datatype, declared))

    def send(self, response: messages.Response, frames: Sequence[bytes] = ()) -> None:
        """At once. Raises TritonModelException where nobody would take it."""
        if not self._port.is_ours:
            raise TritonModelException("Unable to send response. This process has been forked from the model's.")
        if self.decoupled:
            self.pacing.sends(response, sum(map(len, frames)))
        try:
            self._port.send(messages.Results(messages.RESULTS, [], [], [response], []), frames)
        except Closed:
            raise TritonModelException("Unable to send response. The model has been unloaded.") from None
        self._port.glance()  # the memory of responses that have been read comes back so

    def end(self, response: messages.Response, roots: Roots) -> messages.Response:
        """The final response, as it is to leave. From here on the request is not open."""
        if self.decoupled:
            self.pacing.ended(response.request)
        if self.open:
            self.open.discard(response.request)
        if self.cancelled:
            self.cancelled.discard(response.request)
        if self.inline:
            self.inline.discard(response.request)
        for root in roots:
            if root() is not None and self.retained.hold(response.request, roots):
                return response._replace(retained=True)
        return response

    def end_all(self, finals: Sequence[Tuple[messages.Response, Roots]]) -> List[messages.Response]:
        """The same for those of a batch. Mostly there is nothing to be done for them."""
        if self.decoupled or self.open or self.cancelled or self.inline:
            return [self.end(response, roots) for response, roots in finals]
        return [self.end(response, roots) if roots else response for response, roots in finals]

    def is_cancelled(self, request: int) -> bool:
        self._port.glance()
        return request in self.cancelled

    def abandon(self, request: int, roots: Roots) -> None:
        """Nobody can answer it any more. In any thread, from a finalizer."""
        self.abandoned.append(_Abandoned(request, roots))
        self._port.nudge()

    def take_abandoned(self) -> List[messages.Response]:
        """The final responses to requests that were abandoned since the last time."""
        return [self._answer(self.abandoned.popleft()) for _ in range(len(self.abandoned))]

    def _answer(self, abandoned: _Abandoned) -> messages.Response:
        if abandoned.request in self.cancelled:
            return self.end(cancelled(abandoned.request), abandoned.roots)
        text = self._failures.text(_NO_FINAL if self.decoupled else _NO_RESPONSE)
        return self.end(failed(abandoned.request, text), abandoned.roots)


def failed(request: int, text: str, final: bool = True) -> messages.Response:
    return messages.Response(request, [], 0, (_INTERNAL, text), _NONE, final)


def cancelled(request: int) -> messages.Response:
    return messages.Response(request, [], 0, (_CANCELLED, ""))


def no_more(request: int) -> messages.Response:
    """The final flag alone."""
    return messages.Response(request, [], flag_only=True)
