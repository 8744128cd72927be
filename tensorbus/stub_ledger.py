"""What the stubs of a host hold, and what they have asked, told by the messages that pass. Pure.

Of each message only what is needed is decoded: tensors, parameters and texts are passed over. What stubs say counts
when it is said on to the broker, not before: a broker that is joined anew is told what one knows that has heard all of
it up to there, and then hears the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from protocol.errors import ProtocolError
from protocol.messages import (
    ANSWERED,
    CALL,
    CONTROL,
    DROP_METRICS,
    EXECUTE,
    FAILED,
    GOODBYE,
    NEW_FAMILY,
    NEW_METRIC,
    READY,
    RESULTS,
    TOLD,
    UPDATE_METRIC,
)
from protocol.services import HeldMetric, HeldStub
from tensorbus.metric_ledger import MetricLedger

_OPEN = 0  # in place of a Batch.id, which is never 0
_OF_METRICS = frozenset((NEW_FAMILY, NEW_METRIC, UPDATE_METRIC))
_ASKED = _OF_METRICS | {CONTROL}  # Told answers


class _Request(msgspec.Struct, array_like=True, gc=False):
    id: int


class _Batch(msgspec.Struct, array_like=True, gc=False):
    id: int
    requests: list[_Request]


class _Execute(msgspec.Struct, array_like=True, gc=False):
    kind: str
    batches: list[_Batch]
    released: list[int]


class _Response(msgspec.Struct, array_like=True, gc=False):
    request: int
    outputs: msgspec.Raw
    lease: int
    error: msgspec.Raw
    parameters: msgspec.Raw
    final: bool


class _Executed(msgspec.Struct, array_like=True, gc=False):
    batch: int
    input_ns: int
    infer_ns: int
    output_ns: int
    failed: bool
    responses: list[_Response]
    rescheduled: list[int]


class _Results(msgspec.Struct, array_like=True, gc=False):
    kind: str
    executed: list[_Executed]
    released: msgspec.Raw
    responses: list[_Response]
    read: list[tuple[str, int]]


class _Numbered(msgspec.Struct, array_like=True, gc=False):
    kind: str
    call: int


class _Answered(msgspec.Struct, array_like=True, gc=False):
    kind: str
    call: int
    response: _Response
    origin: str


_EXECUTE = msgspec.msgpack.Decoder(_Execute)
_RESULTS = msgspec.msgpack.Decoder(_Results)
_NUMBERED = msgspec.msgpack.Decoder(_Numbered)
_ANSWERED = msgspec.msgpack.Decoder(_Answered)


class Question(NamedTuple):
    """That a stub, or a process that its model has forked, has asked and nobody answered."""

    address: str  # routing id
    number: int
    is_call: bool  # Answered is due, else Told


class _Held:
    """Of one stub."""

    __slots__ = ("batches", "config", "lent", "reading", "ready", "requests", "start")

    def __init__(self, start: HeldStub) -> None:
        self.start = start
        self.config = ""
        self.ready = b""
        self.batches: dict[int, list[int]] = {}  # all requests of each that execute has not returned for
        self.requests: dict[int, int] = {}  # without a final response; its batch, or _OPEN
        self.lent: set[int] = set()
        self.reading: set[tuple[str, int]] = set()


class StubLedger:
    """Invariant: each request that counts as part of a batch is in that batch."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}  # by key
        self._metrics = MetricLedger()
        self._questions: dict[str, dict[int, bool]] = {}  # by routing id and number; whether it is a call

    def add(self, stub: HeldStub) -> None:
        """A stub that was just started."""
        self._held[stub.key] = _Held(stub)

    def remove(self, key: str) -> None:
        """It is dead."""
        self._held.pop(key, None)
        self._metrics.remove(key)
        for address in [address for address in self._questions if key_of(address) == key]:
            del self._questions[address]

    def loaded(self, key: str, config: str) -> None:
        held = self._held.get(key)
        if held is not None:
            held.config = config

    # --- from the broker ------------------------------------------------------------------------------------------

    def told(self, address: str, kind: str, header: bytes) -> bool:
        """Whether the stub is to have this message; False for the answer to what has been answered already. Raises
        ProtocolError."""
        if kind == EXECUTE:
            held = self._held.get(address)
            if held is not None:
                execute: _Execute = _decode(_EXECUTE, header)
                held.lent.difference_update(execute.released)
                for batch in execute.batches:
                    ids = held.batches[batch.id] = [request.id for request in batch.requests]
                    held.requests.update(dict.fromkeys(ids, batch.id))
        elif kind == ANSWERED:
            answered: _Answered = _decode(_ANSWERED, header)
            is_asked = self._answered(address, answered.call, answered.response.final)
            if is_asked and answered.response.lease and address in self._held:
                self._held[address].reading.add((answered.origin, answered.response.lease))
            return is_asked
        elif kind == TOLD:
            return self._answered(address, _decode(_NUMBERED, header).call, True)
        return True

    def _answered(self, address: str, number: int, final: bool) -> bool:
        questions = self._questions.get(address, {})
        if number not in questions:
            return False
        if final:
            del questions[number]
        return True

    # --- to the broker --------------------------------------------------------------------------------------------

    def said(self, address: str, kind: str, header: bytes | memoryview) -> list[int]:
        """The requests that this is the final response to. Raises ProtocolError."""
        if kind == RESULTS:
            held = self._held.get(address)
            if held is not None:
                return self._has_results(held, _decode(_RESULTS, header))
        elif kind == CALL or kind in _ASKED:
            number = _decode(_NUMBERED, header).call
            if number:
                self._questions.setdefault(address, {})[number] = kind == CALL
            if kind in _OF_METRICS:
                self._metrics.said(key_of(address), header)
        elif kind == DROP_METRICS:
            self._metrics.said(key_of(address), header)
        elif kind == READY:
            if address in self._held:
                self._held[address].ready = bytes(header)
        elif kind in (GOODBYE, FAILED):
            self._held.pop(address, None)  # it holds nothing, and ends
        return []

    @staticmethod
    def _has_results(held: _Held, results: _Results) -> list[int]:
        responses = list(results.responses)
        for executed in results.executed:
            responses += executed.responses
        finals = [response.request for response in responses if response.final]
        for request in finals:
            held.requests.pop(request, None)
        held.lent.update([response.lease for response in responses if response.lease])
        held.reading.difference_update(results.read)
        for executed in results.executed:
            for request in executed.rescheduled:
                held.requests.pop(request, None)
            for request in held.batches.pop(executed.batch, ()):
                if request in held.requests:
                    held.requests[request] = _OPEN
        return finals

    def loading(self) -> list[str]:
        """The keys of stubs that have still to say that they serve."""
        return [key for key, one in self._held.items() if not one.ready]

    # --- for a broker that is joined anew -------------------------------------------------------------------------

    def held(self) -> list[HeldStub]:
        return [
            one.start._replace(
                config=one.config,
                ready=one.ready,
                batches=[
                    (batch, [request for request in ids if request in one.requests])
                    for batch, ids in one.batches.items()
                ],
                open=[request for request, batch in one.requests.items() if batch == _OPEN],
                made=self._metrics.made(one.start.key),
                lent=sorted(one.lent),
                reading=sorted(one.reading),
            )
            for one in self._held.values()
        ]

    def metrics(self) -> list[HeldMetric]:
        return list(self._metrics.values())

    def take_questions(self) -> Iterable[Question]:
        """All that are not answered, which now count as answered."""
        questions, self._questions = self._questions, {}
        for address, numbers in questions.items():
            for number, is_call in numbers.items():
                yield Question(address, number, is_call)

    def check(self) -> None:
        """Raises AssertionError if the invariant is broken."""
        for held in self._held.values():
            for request, batch in held.requests.items():
                assert batch == _OPEN or request in held.batches[batch], request


def key_of(address: str) -> str:
    """Of the stub to which the socket of this routing id belongs."""
    return address.partition("/")[0]


def _decode(decoder: msgspec.msgpack.Decoder[Any], header: bytes | memoryview) -> Any:
    try:
        return decoder.decode(header)
    except msgspec.DecodeError as error:
        raise ProtocolError(str(error)) from error
