"""Every message of the bus, one NamedTuple each; ARCHITECTURE.md shows the same table and a test compares the two.

On the wire a message is a MessagePack array whose first element is its kind; inline tensors follow as further
ZeroMQ frames. Standard library only (Python 3.9). Times are int nanoseconds. Never a tensor's bytes, never a pickle.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

VERSION = 1  # of the protocol; a peer that says another one in Hello is refused

ParameterValue = Union[bool, int, float, str]
Parameters = Dict[str, ParameterValue]


class Handle(NamedTuple):
    """Where a tensor lies in shared memory: ``nbytes`` at ``offset`` of the segment of that (random) name.

    Valid until its lease ends. The lease of a request's inputs is ``Request.id``, that of a response's outputs
    ``Response.lease``; lease numbers are never used twice by one owner.
    """

    segment: str
    offset: int
    nbytes: int


class TensorRef(NamedTuple):
    """A tensor by reference. ``place`` is a Handle, or the index of the ZeroMQ frame (after the header frame) that
    holds its bytes. The bytes are KServe's binary form: little-endian row-major elements; BYTES elements are each
    prefixed by a 4-byte length."""

    name: str
    datatype: str
    shape: Tuple[int, ...]
    place: Union[Handle, int]


class Request(NamedTuple):
    """One inference request, as the gateway makes it and the stub receives it."""

    id: int  # unique for its gateway; also the lease of its input tensors
    model: str
    version: int  # resolved, never -1
    inputs: List[TensorRef]
    request_id: str = ""  # the client's
    outputs: List[str] = []  # requested output names; [] = all that the configuration names
    parameters: Parameters = {}
    correlation_id: Union[int, str] = 0
    flags: int = 0  # 1 = sequence start, 2 = sequence end
    priority: int = 0
    timeout_us: int = 0


class Response(NamedTuple):
    """One response to a request. ``error`` is (ErrorKind number, text); with an error there are no outputs."""

    request: int  # Request.id
    outputs: List[TensorRef]
    lease: int = 0  # of the outputs' memory in the stub's segments; 0 = nothing to release
    error: Optional[Tuple[int, str]] = None
    parameters: Parameters = {}
    final: bool = True
    retained: bool = False  # the model still holds views of the inputs: their lease ends with Results.released


# --- broker to stub ---------------------------------------------------------------------------------------------


class Load(NamedTuple):
    """Answer to Hello: load this model. ``mode`` is "serve", or "auto_complete" for the throw-away process that only
    runs ``auto_complete_config``. ``args`` is the dictionary for ``initialize`` (all values str)."""

    kind: str
    mode: str
    model_file: str  # path of model.py
    args: Dict[str, str]
    probe: Handle  # a nonce to read back: proof that shared memory is shared
    shm_directory: str


class Batch(NamedTuple):
    """The requests of one call of ``execute``."""

    id: int  # unique for the broker; the stub notes the one inside execute in its status word
    requests: List[Request]


class Execute(NamedTuple):
    """Work, in order, and the leases of earlier responses that their reader has done with (either may be empty)."""

    kind: str
    batches: List[Batch]
    released: List[int]


class Finish(NamedTuple):
    """Call ``finalize``, say Goodbye, exit."""

    kind: str


# --- stub to broker ---------------------------------------------------------------------------------------------


class Hello(NamedTuple):
    """First message of a stub. Its ZeroMQ routing id is the instance's key, given by the launcher."""

    kind: str
    version: int
    pid: int


class Ready(NamedTuple):
    """The instance has initialised. ``nonce`` is what it read at Load.probe, b"" if it could not; ``segment`` is the
    one whose header carries its status word ("" without shared memory)."""

    kind: str
    nonce: bytes
    segment: str


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
    """What one Batch came to. Durations are the stub's: conversion of inputs, user code, conversion of outputs."""

    batch: int
    input_ns: int
    infer_ns: int
    output_ns: int
    failed: bool  # execute raised or returned something malformed
    responses: List[Response]


class Results(NamedTuple):
    """Executed batches in order, and requests whose retained input lease has ended (either may be empty)."""

    kind: str
    executed: List[Executed]
    released: List[int]


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
HELLO, READY, CONFIGURED, FAILED, RESULTS, LOG, GOODBYE = "H", "R", "C", "X", "S", "G", "B"

ToStub = Union[Load, Execute, Finish]
ToBroker = Union[Hello, Ready, Configured, Failed, Results, Log, Goodbye]

TO_STUB: Dict[str, Any] = {LOAD: Load, EXECUTE: Execute, FINISH: Finish}
TO_BROKER: Dict[str, Any] = {
    HELLO: Hello,
    READY: Ready,
    CONFIGURED: Configured,
    FAILED: Failed,
    RESULTS: Results,
    LOG: Log,
    GOODBYE: Goodbye,
}
