"""Calls from a model to other models (business logic scripting, BLS).

A call is sent when it is made, not when it is awaited. Its answers come in whichever thread reads the bus; what the
model gets of them is made in the thread, or by the coroutine, that wants it. A tensor that the model has received and
not looked at goes on as it lies in shared memory; others are copied there once.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Callable, Deque, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import borrowed, calls, forks, open_calls
from .placer import PlacedTensor, Placer
from .response import InferenceResponse
from .response import receive as receive_response
from .shared import errors, messages, shm_errors, store
from .tensor import Tensor, binary_form, lend
from .tensor import receive as receive_tensor
from .triton_error import TritonModelException

if TYPE_CHECKING:  # most models need none
    import asyncio

_Answer = Tuple[messages.Answered, List[memoryview]]
not_now = "BLS is only supported during the 'execute' function."  # a model in the foreground is told something else


class _Memory(NamedTuple):
    """Where the tensors of calls go, and where those of answers come from."""

    placer: Placer
    reader: store.Reader


_memory: Optional[_Memory] = None


def serve(placer: Placer, reader: store.Reader) -> None:
    """Before the model is loaded; when it may call is for ``calls.serving`` to say."""
    global _memory
    _memory = _Memory(placer, reader)


class Call:
    """One request to another model. Its inputs stay where they are until nobody looks at them any more."""

    def __init__(self, request: messages.Request, inputs: Sequence[Tensor], decoupled: bool) -> None:
        """Sends it, with these inputs instead of its own. Raises TritonModelException."""
        if _memory is None or not calls.serving():
            raise TritonModelException(not_now)
        self._model = request.model
        self._memory = _memory
        self._generation = forks.generation
        self._answers: Deque[_Answer] = deque()
        self._waking: List[Callable[[], None]] = []
        self._dropped = False
        self._complete = False
        self._lost = False
        self._inputs = _memory.placer.place([self._outgoing(tensor) for tensor in inputs])
        # Much quicker than _replace.
        message = messages.Request(0, request.model, request.version, self._inputs.references, *request[4:])
        executing = calls.executing.get()

        def make(number: int) -> Tuple[messages.Call, open_calls.Frames]:
            call = messages.Call(messages.CALL, number, message, executing.batch, executing.waits, decoupled)
            return call, self._inputs.frames

        try:
            borrowed.tell_much()
            self._number = calls.call(make, self)
        except calls.NotServing:
            self._end_inputs()
            raise TritonModelException(not_now) from None

    def has_answer(self) -> bool:
        return bool(self._answers)

    def is_complete(self) -> bool:
        """The final answer has come."""
        return self._complete

    def take(self) -> Tuple[InferenceResponse, bool]:
        """The next answer that has come, and whether it is the final one."""
        answered, frames = self._answers.popleft()
        return self._response(answered, frames), answered.response.final

    def take_only(self) -> InferenceResponse:
        """The response of a complete call to a model that has one. A final flag may have come behind it."""
        response, _ = self.take()
        self.drop()
        return response

    def wait(self, done: Callable[[], object]) -> None:
        """Blocks until ``done()``, which asks this call; an exception (of a signal handler, say) ends the call."""
        try:
            calls.wait(done)
        except calls.NotServing:
            raise TritonModelException(not_now) from None
        except BaseException:
            self.abandon()
            raise

    async def arrival(self, done: Callable[[], object]) -> None:
        """Waits in the running event loop until ``done()``, which asks this call."""
        import asyncio

        loop = asyncio.get_running_loop()
        while not done():
            if self._lost:
                raise TritonModelException(not_now)
            woken: asyncio.Future[None] = loop.create_future()
            self._waking.append(lambda woken=woken: _wake(loop, woken))  # type: ignore[misc]
            if not done() and not self._lost:  # since we asked
                await woken

    def cancel(self) -> None:
        """Answers still come, in the end that it was cancelled."""
        if not self._complete and forks.generation == self._generation:
            with contextlib.suppress(calls.NotServing):
                calls.cancel(self._number)

    def drop(self) -> None:
        """Nobody will take any more answers."""
        self._dropped = True
        if self._answers:
            self._discard()

    def abandon(self) -> None:
        """Neither does the model want them made."""
        self.cancel()
        self.drop()

    def __del__(self) -> None:
        if getattr(self, "_answers", None):
            self._discard()

    # --- in the thread that reads the bus

    def on_answer(self, answered: messages.Answered, frames: List[memoryview]) -> None:
        self._answers.append((answered, frames))
        if answered.response.final:
            self._complete = True
            if answered.response.retained:
                calls.on_returned(answered.call, self._end_inputs)
            else:
                self._end_inputs()
        if self._dropped:
            self._discard()
        self._wake_all()

    def on_lost(self) -> None:
        self._lost = True
        self._wake_all()

    def _wake_all(self) -> None:
        waking, self._waking = self._waking, []
        for wake in waking:
            wake()

    # --- tensors out and in

    def _outgoing(self, tensor: Tensor) -> PlacedTensor:
        place = lend(tensor) if self._memory.placer.is_ours else None
        return tensor._name, tensor._datatype, tensor._shape, place or binary_form(tensor)

    def _end_inputs(self) -> None:
        self._memory.placer.free([self._inputs])

    def _response(self, answered: messages.Answered, frames: List[memoryview]) -> InferenceResponse:
        response = answered.response
        if response.error is not None:
            return receive_response([], response.error, response.parameters)
        tensors, roots, error = [], [], None
        try:
            for name, datatype, shape, place, shared in response.outputs:
                view = self._view(place, shared, frames)
                tensor, root = receive_tensor(name, datatype, shape, view, place, shared, bool(response.lease))
                tensors.append(tensor)
                if root is not None:
                    roots.append(root)
        except (shm_errors.BadHandle, IndexError, ValueError):
            text = "Model {} - Error when running inference: its outputs cannot be read".format(self._model)
            tensors, roots, error = [], [], (int(errors.ErrorKind.INTERNAL), text)
        if response.lease:
            borrowed.hold(answered.origin, response.lease, roots)
        return receive_response(tensors, error, response.parameters)

    def _view(self, place: messages.TensorPlace, shared: bool, frames: List[memoryview]) -> Union[memoryview, bytes]:
        if isinstance(place, bytes):
            return place
        if isinstance(place, int):
            return frames[place]
        return self._memory.reader.view_shared(*place) if shared else self._memory.reader.view(*place)

    def _discard(self) -> None:
        with contextlib.suppress(IndexError):  # another thread may be taking, too
            while self._answers:
                answered, _ = self._answers.popleft()
                if answered.response.lease and forks.generation == self._generation:
                    calls.read(answered.origin, answered.response.lease)


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(lambda: None if woken.done() else woken.set_result(None))
