"""``pb_utils.InferenceRequest``: a received request, or one made by the model to call another model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, FrozenSet, List, Literal, Mapping, Optional, Sequence, Set, Union, overload

from .arguments import incompatible, int_argument, list_argument, not_castable, text_argument
from .bls import Call
from .open_request import OpenRequest
from .parameters import checked_parameters
from .pybind_enum import PybindEnum
from .response import InferenceResponse
from .response_iterator import ResponseIterator
from .sender import InferenceResponseSender
from .shared import messages
from .tensor import Tensor
from .triton_error import TritonModelException

if TYPE_CHECKING:  # most models need none
    import asyncio

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = messages.SEQUENCE_START
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = messages.SEQUENCE_END
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

_MISSING: Any = object()  # a mandatory argument behind optional ones: the original's order
_UINT32, _UINT64 = (1 << 32) - 1, (1 << 64) - 1
_INT64 = 1 << 63


class MemoryType(PybindEnum):
    """``pb_utils.TRITONSERVER_MEMORY_CPU`` and ``_GPU``."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


TRITONSERVER_MEMORY_GPU, TRITONSERVER_MEMORY_CPU = MemoryType


class PreferredMemory:
    """A hint where the outputs of a call to another model should lie."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            raise incompatible("__init__", "PreferredMemory(preferred_memory_type: MemoryType)", preferred_memory_type)
        self._memory_type = preferred_memory_type
        self._device_id = int_argument("__init__", preferred_device_id, -_INT64, _INT64 - 1)


class InferenceTrace:
    """The trace of a request; without OpenTelemetry tracing it is empty."""

    __module__ = "c_python_backend_utils"
    __slots__ = ()

    def get_context(self) -> Optional[str]:
        return None


class InferenceRequest:
    """``_message`` holds the request's plain data; a received request is an OpenRequest as well."""

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_default_outputs", "_flags", "_inputs", "_message", "_open", "_sender")

    _default_outputs: FrozenSet[str]
    _flags: int
    _inputs: List[Tensor]
    _message: messages.Request
    _open: Optional[OpenRequest]
    _sender: Optional[InferenceResponseSender]

    def __init__(
        self,
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        inputs: Sequence[Tensor] = _MISSING,
        requested_output_names: Sequence[str] = _MISSING,
        model_name: str = _MISSING,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Optional[PreferredMemory] = None,
        trace: Optional[InferenceTrace] = None,
        parameters: Optional[Mapping[str, Any]] = None,
    ) -> None:
        request_id = text_argument("__init__", request_id)
        model = text_argument("__init__", model_name)
        tensors = list_argument("__init__", inputs)
        outputs = [text_argument("__init__", name) for name in list_argument("__init__", requested_output_names)]
        _check_kinds(preferred_memory, trace)
        _check_inputs(tensors, request_id, model)
        if "" in outputs:
            raise TritonModelException(_should_not_be_empty("Requested output name", request_id, model))
        self._inputs = tensors
        self._flags = int_argument("__init__", flags, 0, _UINT32)
        self._default_outputs = frozenset()
        self._open = None
        self._sender = None
        self._message = messages.Request(
            0,
            model,
            int_argument("__init__", model_version, -_INT64, _INT64 - 1),
            [],
            request_id,
            outputs,
            checked_parameters(parameters),
            _correlation_id(correlation_id),
            timeout_us=int_argument("__init__", timeout, 0, _UINT64),
        )

    def inputs(self) -> List[Tensor]:
        """A new list of the same tensors each time; absent optional inputs are absent."""
        return self._inputs[:]

    def request_id(self) -> str:
        return self._message.request_id

    def correlation_id(self) -> Union[int, str]:
        return self._message.correlation_id

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = int_argument("set_flags", flags, 0, _UINT32)

    def timeout(self) -> int:
        """Microseconds; 0 is none."""
        return self._message.timeout_us

    def parameters(self) -> str:
        """JSON text: compact for a received request, in the style of ``json.dumps`` for a self-made one."""
        parameters = self._message.parameters
        if self._open is None:
            return json.dumps(parameters)
        return json.dumps(parameters, separators=(",", ":"), ensure_ascii=False) if parameters else "{}"

    def requested_output_names(self) -> Set[str]:
        """What the client asked for; all configured outputs where it named none."""
        return set(self._message.outputs or self._default_outputs)

    def trace(self) -> InferenceTrace:
        return InferenceTrace()

    def get_response_sender(self) -> InferenceResponseSender:
        """The same object at each call."""
        if self._sender is None:
            self._sender = InferenceResponseSender(self._open)
        return self._sender

    def is_cancelled(self) -> bool:
        """Whether the client is gone or no longer wants an answer. False for a request that the model has made."""
        return self._open is not None and self._open.is_cancelled()

    def set_release_flags(self, flags: int, /) -> None:
        """With RELEASE_RESCHEDULE the request is not answered now but executed again."""
        release = int_argument("set_release_flags", flags, 0, _UINT32)
        if self._open is None:
            raise TritonModelException("Release flags can be set for received requests only.")
        self._open.release = release

    @overload
    def exec(self, decoupled: Literal[False] = False) -> InferenceResponse: ...

    @overload
    def exec(self, decoupled: Literal[True]) -> ResponseIterator: ...

    def exec(self, decoupled: bool = False) -> Union[InferenceResponse, ResponseIterator]:
        """Calls the model and waits, without the GIL, for its response; with ``decoupled`` for the first of them.

        An error of the model called is in the response. Raises TritonModelException where no call can be made.
        """
        call = _call("exec", self, decoupled)
        if decoupled:
            call.wait(call.has_answer)
            return ResponseIterator(call)
        call.wait(call.is_complete)
        return call.take_only()

    @overload
    def async_exec(self, decoupled: Literal[False] = False) -> asyncio.Future[InferenceResponse]: ...

    @overload
    def async_exec(self, decoupled: Literal[True]) -> asyncio.Future[ResponseIterator]: ...

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:
        """The same for ``await``. The call is made at once, in the running event loop; as many as wanted at a time."""
        import asyncio

        loop = asyncio.get_running_loop()
        call = _call("async_exec", self, decoupled)
        task = loop.create_task(_result(call, bool(decoupled)))
        task.add_done_callback(lambda task: call.abandon() if task.cancelled() else None)
        return task


def receive(
    message: messages.Request, inputs: List[Tensor], open_request: OpenRequest, default_outputs: FrozenSet[str]
) -> InferenceRequest:
    """A request of a batch."""
    request = InferenceRequest.__new__(InferenceRequest)
    request._message = message
    request._inputs = inputs
    request._flags = message.flags
    request._open = open_request
    request._default_outputs = default_outputs
    request._sender = None
    return request


def _call(function: str, request: InferenceRequest, decoupled: object) -> Call:
    if decoupled is None or not hasattr(type(decoupled), "__bool__"):
        raise incompatible(function, "{}(decoupled: bool = False)".format(function), decoupled)
    message = request._message
    if message.flags != request._flags:
        message = message._replace(flags=request._flags)
    return Call(message, request._inputs, bool(decoupled))


async def _result(call: Call, decoupled: bool) -> Union[InferenceResponse, ResponseIterator]:
    await call.arrival(call.has_answer if decoupled else call.is_complete)
    return ResponseIterator(call) if decoupled else call.take_only()


def _check_kinds(preferred_memory: object, trace: object) -> None:
    if preferred_memory is not None and not isinstance(preferred_memory, PreferredMemory):
        raise incompatible("__init__", "InferenceRequest(preferred_memory: PreferredMemory)", preferred_memory)
    if trace is not None and not isinstance(trace, InferenceTrace):
        raise incompatible("__init__", "InferenceRequest(trace: InferenceTrace)", trace)


def _check_inputs(tensors: List[Any], request_id: str, model: str) -> None:
    for tensor in tensors:
        if tensor is None:
            raise TritonModelException(_should_not_be_empty("Input tensor", request_id, model))
        if not isinstance(tensor, Tensor):
            raise incompatible("__init__", "InferenceRequest(inputs: List[Tensor])", tensor)


def _should_not_be_empty(what: str, request_id: str, model: str) -> str:
    return "{} for request with id '{}' and model name '{}' should not be empty.".format(what, request_id, model)


def _correlation_id(value: Any) -> Union[int, str]:
    if value is None:
        raise incompatible("__init__", "InferenceRequest(correlation_id: object)", value)
    if isinstance(value, str):
        return text_argument("__init__", value)
    if not isinstance(value, int):
        raise TritonModelException("Correlation ID must be integer or string")
    if not 0 <= value <= _UINT64:
        raise not_castable()
    return int(value)
