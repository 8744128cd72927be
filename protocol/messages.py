"""Every message of the bus, one NamedTuple each; ARCHITECTURE.md shows the same table and a test compares the two.

On the wire a message is a MessagePack array whose first element is its kind; inline tensors follow as further
ZeroMQ frames, small ones in the array. Standard library only (Python 3.9). Times are int nanoseconds. Never a pickle.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

VERSION = 3  # of the protocol; a peer that says another one in Hello is refused

# A tensor of fewer bytes goes with its message: to write and read it there costs less than a lease of shared memory.
SMALL_NBYTES = 512

_LEAST_NBYTES = 1024  # what even an empty response costs on its way

# ``new(Kind, (field, ...))``, with all the fields: half the time of ``Kind(field, ...)``, which is a Python function.
new = tuple.__new__

ParameterValue = Union[bool, int, float, str]
Parameters = Dict[str, ParameterValue]

SEQUENCE_START, SEQUENCE_END = 1, 2  # bits of Request.flags


class Handle(NamedTuple):
    """Where a tensor lies in shared memory: ``nbytes`` at ``offset`` of the segment of that (random) name.

    Valid until its lease ends. The lease of a request's inputs is ``Request.id``, that of a response's outputs
    ``Response.lease``; lease numbers are never used twice by one owner.
    """

    segment: str
    offset: int
    nbytes: int


TensorPlace = Union[Handle, int, bytes]


class TensorRef(NamedTuple):
    """A tensor by reference. ``place`` is a Handle, or the index of the ZeroMQ frame (after the header frame) that
    holds its bytes, or they themselves: so travel small ones. The bytes are KServe's binary form:
    little-endian row-major elements; BYTES elements are each prefixed by a 4-byte length."""

    name: str
    datatype: str
    shape: Tuple[int, ...]
    place: TensorPlace
    shared: bool = False  # others look at these bytes, too: the receiver must not write to them


def nbytes_of(tensors: Sequence[TensorRef]) -> int:
    """Of all that are not in frames."""
    total = 0
    for _, _, _, place, _ in tensors:
        if isinstance(place, Handle):
            total += place.nbytes
        elif isinstance(place, bytes):
            total += len(place)
    return total


def unread_nbytes(tensors: Sequence[TensorRef], nbytes_inline: int) -> int:
    """What a response counts for while its client has not read it; so many of its bytes are in frames."""
    return max(nbytes_of(tensors) + nbytes_inline, _LEAST_NBYTES)


class Request(NamedTuple):
    """One inference request, as the gateway (or a calling model) makes it and the stub receives it."""

    id: int  # unique for its gateway, negative if a model made it; also the lease of its input tensors
    model: str
    version: int  # in a stub never -1
    inputs: List[TensorRef]
    request_id: str = ""  # the client's
    outputs: List[str] = []  # requested output names; [] = all that the configuration names
    parameters: Parameters = {}
    correlation_id: Union[int, str] = 0
    flags: int = 0  # SEQUENCE_START, SEQUENCE_END
    priority: int = 0
    timeout_us: int = 0


class Response(NamedTuple):
    """One of the responses to a request, the last if ``final``. ``error`` is (ErrorKind number, text); with an error
    there are no outputs."""

    request: int  # Request.id
    outputs: List[TensorRef]
    lease: int = 0  # of the outputs' memory in the stub's segments; 0 = nothing to release
    error: Optional[Tuple[int, str]] = None
    parameters: Parameters = {}
    final: bool = True
    retained: bool = False  # the model still holds views of the inputs: their lease ends with Results.released
    flag_only: bool = False  # no response, only the news that a decoupled model has sent its last one before


# --- broker to stub ---------------------------------------------------------------------------------------------


class Load(NamedTuple):
    """Answer to Hello: load this model. ``mode`` is "serve", or "auto_complete" for the throw-away process that only
    runs ``auto_complete_config``. ``args`` is the dictionary for ``initialize`` (all values str)."""

    kind: str
    mode: str
    model_file: str  # path of model.py
    version_directory: str  # of the model; a Python-based backend's model_file lies elsewhere
    args: Dict[str, str]
    probe: Handle  # a nonce to read back: proof that shared memory is shared
    shm_directory: str
    max_unread: int = 0  # bytes that the responses to one client may be ahead of what it has read; 0 is no bound
    tag: str = ""  # begins the random part of the names of the stub's segments, to tell whose host they are of
    small_nbytes: int = 0  # tensors of fewer bytes go with the message


class Batch(NamedTuple):
    """The requests of one call of ``execute``."""

    id: int  # unique for the broker; the stub notes the one inside execute in its status word
    requests: List[Request]
    slots: List[int] = []  # of the instance, in which the sequence of each request runs; [] without sequences
    places: int = 0  # of the batch, if slots are places in it: those without a request get a null request


class Execute(NamedTuple):
    """Work, in order, and the leases of earlier responses that their reader has done with (either may be empty)."""

    kind: str
    batches: List[Batch]
    released: List[int]
    paced: List[Tuple[int, int]] = []  # requests that may send so many responses before there is Credit for more
    inline: List[int] = []  # requests whose asker does not share memory with the stub: outputs go into frames


class Cancel(NamedTuple):
    """The clients of these requests are gone, or no longer want them. They are still to be answered."""

    kind: str
    requests: List[int]


class Credit(NamedTuple):
    """So many more responses of a paced request are welcome."""

    kind: str
    request: int
    responses: int


class Answered(NamedTuple):
    """A response to the Call of this number. Its outputs are on lease from ``origin``, the key of another stub, until
    Results.read; with ``response.retained`` the call's inputs are in use until Returned."""

    kind: str
    call: int
    response: Response
    origin: str


class Returned(NamedTuple):
    """The inputs of these calls, whose final response was ``retained``, are in use no more."""

    kind: str
    calls: List[int]


class Told(NamedTuple):
    """The answer to a message that had this number: an (ErrorKind number, text), or a value."""

    kind: str
    call: int
    error: Optional[Tuple[int, str]]
    value: float = 0.0


class AskReady(NamedTuple):
    """Call the model's ``is_ready``. Goes to the routing id "<key>/ready"."""

    kind: str
    call: int


class Finish(NamedTuple):
    """Call ``finalize``, say Goodbye, exit."""

    kind: str


# --- stub to broker ---------------------------------------------------------------------------------------------


class Hello(NamedTuple):
    """First message of a stub. Its ZeroMQ routing id is the instance's key, given by the launcher; another socket of
    the same instance (a process that the model forked) has a suffix to it, after a slash."""

    kind: str
    version: int
    pid: int


class Ready(NamedTuple):
    """The instance has initialised. ``nonce`` is what it read at Load.probe, b"" if it could not; ``segment`` is the
    one whose header carries its status word ("" without shared memory)."""

    kind: str
    nonce: bytes
    segment: str
    asks_ready: bool = False  # the model has ``is_ready``


class Configured(NamedTuple):
    """The configuration (JSON text) as ``auto_complete_config`` left it; ends an "auto_complete" process."""

    kind: str
    config: str


class Failed(NamedTuple):
    """Loading failed; the stub exits after it. ``error`` is an ErrorKind number, ``text`` the client's text."""

    kind: str
    error: int
    text: str


class Executed(NamedTuple):
    """``execute`` has returned for a Batch. Durations are the stub's: conversion of inputs, user code, conversion of
    outputs. A request that has no final response yet gets the rest of them by Results.responses."""

    batch: int
    input_ns: int
    infer_ns: int
    output_ns: int
    failed: bool  # execute raised or returned something malformed
    responses: List[Response]
    rescheduled: List[int] = []  # requests that want to be executed again
    ended_ns: int = 0  # when, in the host's monotonic clock; 0: not said


class Results(NamedTuple):
    """All that a stub has to tell of its work; any part may be empty.

    ``responses`` are those sent by response senders, in their order; they come before ``executed``."""

    kind: str
    executed: List[Executed]  # in order
    released: List[int]  # requests whose retained input lease has ended
    responses: List[Response] = []
    read: List[Tuple[str, int]] = []  # origin and lease of Answered outputs that are in use no more


class Starved(NamedTuple):
    """A response waits until others have been read: what has been is to be told at once, once."""

    kind: str


class Call(NamedTuple):
    """A request to another model (BLS). ``request.id`` is 0, its ``version`` may be -1. Inline inputs follow.

    Answered comes for each response. ``batch`` is the one that the call is part of, 0 if that is not known;
    ``waits`` says that this batch cannot end before the call does."""

    kind: str
    call: int  # chosen by the stub, never twice
    request: Request
    batch: int
    waits: bool
    decoupled: bool  # several responses are welcome


class CancelCall(NamedTuple):
    kind: str
    call: int


class NewFamily(NamedTuple):
    """``pb_utils.MetricFamily``. Numbers of families and metrics are chosen by the stub. Told answers."""

    kind: str
    call: int
    family: int
    name: str
    description: str
    metric_kind: str  # "counter", "gauge" or "histogram"


class NewMetric(NamedTuple):
    """Told answers."""

    kind: str
    call: int
    metric: int
    family: int
    labels: Dict[str, str]
    buckets: Optional[List[float]]


class UpdateMetric(NamedTuple):
    """``operation`` is "increment", "set", "observe" or "value". Told answers, with the value for "value"; ``call`` 0
    wants no answer."""

    kind: str
    call: int
    metric: int
    operation: str
    value: float


class DropMetrics(NamedTuple):
    """The model has let go of these objects. No answer."""

    kind: str
    families: List[int]
    metrics: List[int]


class Control(NamedTuple):
    """``operation`` is "load", "unload" or "is_ready". Told answers; for "is_ready" with 1.0 or 0.0."""

    kind: str
    call: int
    operation: str
    model: str
    version: str = ""  # for is_ready
    config: str = ""  # for load: JSON in place of config.pbtxt
    files: Optional[Dict[str, bytes]] = None  # for load: contents by "file:<version>/<name>"
    unload_dependents: bool = False


class IsReady(NamedTuple):
    """Answers AskReady. ``error`` says why not, if not by the model's own False. Number 0 is the first word on that
    socket: from now on it can be asked."""

    kind: str
    call: int
    ready: bool
    error: str = ""


class Log(NamedTuple):
    """A line for the server's log: pb_utils.Logger, or the stub's own. ``level`` is "I", "W", "E" or "V"."""

    kind: str
    level: str
    file: str
    line: int
    text: str


class Goodbye(NamedTuple):
    """``finalize`` has returned (``error`` "" or its text); the process exits now."""

    kind: str
    error: str


# The first element of each message on the wire.
LOAD, EXECUTE, FINISH = "L", "E", "F"
CANCEL, CREDIT, ANSWERED, RETURNED, TOLD, ASK_READY = "K", "W", "A", "I", "T", "Q"
HELLO, READY, CONFIGURED, FAILED, RESULTS, LOG, GOODBYE = "H", "R", "C", "X", "S", "G", "B"
CALL, CANCEL_CALL, CONTROL, IS_READY = "D", "Z", "O", "Y"
STARVED = "J"
NEW_FAMILY, NEW_METRIC, UPDATE_METRIC, DROP_METRICS = "N", "M", "U", "V"

ToStub = Union[Load, Execute, Cancel, Credit, Answered, Returned, Told, AskReady, Finish]
ToBroker = Union[
    Hello,
    Ready,
    Configured,
    Failed,
    Results,
    Starved,
    Call,
    CancelCall,
    NewFamily,
    NewMetric,
    UpdateMetric,
    DropMetrics,
    Control,
    IsReady,
    Log,
    Goodbye,
]

TO_STUB: Dict[str, Any] = {
    LOAD: Load,
    EXECUTE: Execute,
    CANCEL: Cancel,
    CREDIT: Credit,
    ANSWERED: Answered,
    RETURNED: Returned,
    TOLD: Told,
    ASK_READY: AskReady,
    FINISH: Finish,
}
TO_BROKER: Dict[str, Any] = {
    HELLO: Hello,
    READY: Ready,
    CONFIGURED: Configured,
    FAILED: Failed,
    RESULTS: Results,
    STARVED: Starved,
    CALL: Call,
    CANCEL_CALL: CancelCall,
    NEW_FAMILY: NewFamily,
    NEW_METRIC: NewMetric,
    UPDATE_METRIC: UpdateMetric,
    DROP_METRICS: DropMetrics,
    CONTROL: Control,
    IS_READY: IsReady,
    LOG: Log,
    GOODBYE: Goodbye,
}
