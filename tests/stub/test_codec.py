"""What a stub reads and writes: the counterpart of tests/protocol/test_codec.py."""

import msgpack
import pytest

from protocol.codec import decode_from_stub, encode
from protocol.errors import ProtocolError
from protocol.messages import (
    ANSWERED,
    ASK_READY,
    CANCEL,
    EXECUTE,
    FINISH,
    LOAD,
    LOG,
    RESULTS,
    RETURNED,
    TOLD,
    Answered,
    AskReady,
    Batch,
    Cancel,
    Execute,
    Executed,
    Finish,
    Handle,
    Load,
    Log,
    Request,
    Response,
    Results,
    Returned,
    TensorRef,
    Told,
)
from stub import codec

SHARED = TensorRef("IN", "FP32", (2, 3), Handle("tensorbus-1-aa", 128, 24))
INLINE = TensorRef("NAMES", "BYTES", (), 0)
SMALL = TensorRef("S", "UINT8", (3,), b"\0\x80\xff")
REQUEST = Request(
    2**63, "m", 3, [SHARED, INLINE, SMALL], "id", ["OUT"], {"a": 1, "b": "x", "c": True, "d": 0.5}, 2**64 - 1, 1, 2, 3
)
TO_STUB = [
    Load(LOAD, "serve", "/m/1/model.py", "/m/1", {"model_name": "m"}, Handle("tensorbus-1-bb", 128, 16), "/dev/shm"),
    Execute(EXECUTE, [Batch(1, [REQUEST, Request(5, "m", 3, [], correlation_id="text")]), Batch(2, [])], [7, 8]),
    Cancel(CANCEL, [1, -2]),
    Answered(ANSWERED, 5, Response(-3, [SHARED, INLINE, SMALL], 4, None, {"p": 1.5}, False, True), "2.1"),
    Answered(ANSWERED, 5, Response(-3, [], error=(3, "no")), "2.1"),
    Returned(RETURNED, [5]),
    Told(TOLD, 6, None, 1.5),
    Told(TOLD, 6, (3, "no")),
    AskReady(ASK_READY, 7),
    Finish(FINISH),
    Load(LOAD, "serve", "/m/1/model.py", "/m/1", {}, Handle("", 0, 0), "/dev/shm", 1 << 40, "0123abcd"),
    Execute(EXECUTE, [], [], [(2**63, 4)], [5, 2**63]),
]
RESPONSE = Response(2**63, [SHARED, INLINE, SMALL], 4, None, {"p": 1.5}, False, True)
RESULT = Results(RESULTS, [Executed(1, 2, 3, 4, True, [RESPONSE, Response(5, [], error=(3, "no"))])], [9])


@pytest.fixture(params=[codec.decode_plain, codec.decode_typed], ids=["msgpack", "msgspec"])
def decode(request):
    """Both ways of reading."""
    return request.param


@pytest.mark.parametrize("message", TO_STUB, ids=lambda message: type(message).__name__)
def test_reads_what_the_broker_writes(message, decode):
    decoded = decode(encode(message))
    assert decoded == message
    assert type(decoded) is type(message)


def test_the_values_inside_are_typed_too(decode):
    request = decode(encode(TO_STUB[1])).batches[0].requests[0]
    assert type(request) is Request
    assert type(request.inputs[0]) is TensorRef
    assert type(request.inputs[0].place) is Handle
    assert request.inputs[1].place == 0


def test_writes_what_the_broker_reads():
    assert codec.encode(RESULT) == encode(RESULT)
    assert decode_from_stub(codec.encode(RESULT)) == RESULT


def test_text_that_has_no_encoding_arrives_escaped():
    log = decode_from_stub(codec.encode(Log(LOG, "E", "model.py", 1, "caf\u00e9 \udc80")))
    assert log.text == "caf\u00e9 \\udc80"


def fields(message):
    """The message as nested lists, to be spoilt."""
    return msgpack.unpackb(encode(message))


def spoilt(path, value):
    """The Execute above with one of its fields replaced."""
    whole = fields(TO_STUB[1])
    *way, last = path
    inner = whole
    for step in way:
        inner = inner[step]
    inner[last] = value
    return msgpack.packb(whole)


A_REQUEST = (1, 0, 1, 0)
A_TENSOR = (*A_REQUEST, 3, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x05",
        b"\x90",
        msgpack.packb(["?"]),
        msgpack.packb([{}]),
        msgpack.packb(["E", [], []])[:-1],
        msgpack.packb(["E", [], []]) + b"\x00",
        msgpack.packb(["E", []]),
        msgpack.packb(["E", [], [], 1]),
        msgpack.packb(["F", 1]),
        msgpack.packb(["E", [], ["1"]]),
        msgpack.packb(["E", 5, []]),
        msgpack.packb(["L", "serve", "f", {"a": 1}, ["s", 0, 0], "d"]),
        msgpack.packb(["L", "serve", "f", [], ["s", 0, 0], "d"]),
        msgpack.packb(["L", "serve", "f", {}, 0, "d"]),
        b"\x93\xa1E\x90\x91\xa1\xff",
        spoilt((*A_REQUEST, 0), True),
        spoilt((*A_REQUEST, 2), "1"),
        spoilt((*A_REQUEST, 5), [1]),
        spoilt((*A_REQUEST, 6), {"a": [1]}),
        spoilt((*A_REQUEST, 6), 1),
        spoilt((*A_REQUEST, 7), 1.5),
        spoilt((*A_TENSOR, 1), 11),
        spoilt((*A_TENSOR, 2), [2, None]),
        spoilt((*A_TENSOR, 2), 2),
        spoilt((*A_TENSOR, 3), ["s", 1]),
        spoilt((*A_TENSOR, 3), ["s", 1.0, 2]),
        spoilt((*A_TENSOR, 3), None),
    ],
)
def test_anything_else_is_a_protocol_error(data, decode):
    with pytest.raises(ProtocolError):
        decode(data)
