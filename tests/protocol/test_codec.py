"""Gateway and broker speak by msgspec, stubs by msgpack: both must write the same bytes and read each other's."""

import contextlib
import typing

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import messages
from protocol.codec import decode_from_stub, encode
from protocol.errors import ProtocolError
from protocol.messages import (
    EXECUTE,
    TO_BROKER,
    TO_STUB,
    Batch,
    Execute,
    Executed,
    Handle,
    Hello,
    Request,
    Response,
    Results,
    TensorRef,
)

SCALARS = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**64 - 1),  # what MessagePack can hold
    float: st.floats(allow_nan=False),
    str: st.text(),
    bytes: st.binary(max_size=64),
    type(None): st.none(),
}


def values_of(annotation):
    """A strategy for any annotation in protocol/messages.py."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in SCALARS:
        return SCALARS[annotation]
    if origin is typing.Union:
        return st.one_of([values_of(argument) for argument in arguments])
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*[values_of(argument) for argument in arguments])
    hints = typing.get_type_hints(annotation)
    return st.builds(annotation, **{name: values_of(hint) for name, hint in hints.items()})


def messages_of(table):
    return st.one_of([values_of(kind).map(lambda m, letter=letter: m._replace(kind=letter)) for letter, kind in table])


def as_lists(value):
    """What plain MessagePack makes of a message: tuples of all kinds become lists."""
    if isinstance(value, (list, tuple)):
        return [as_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return value


@given(messages_of([*TO_STUB.items(), *TO_BROKER.items()]))
def test_both_encoders_write_the_same_bytes(message):
    assert encode(message) == msgpack.packb(message)


@given(messages_of(TO_STUB.items()))
def test_plain_msgpack_reads_what_the_broker_wrote(message):
    assert msgpack.unpackb(encode(message)) == as_lists(message)


@given(messages_of(TO_BROKER.items()))
def test_the_broker_reads_what_plain_msgpack_wrote(message):
    decoded = decode_from_stub(msgpack.packb(message))
    assert decoded == message
    assert type(decoded) is type(message)


@given(messages_of(TO_BROKER.items()))
def test_values_inside_a_message_come_back_typed(message):
    decoded = decode_from_stub(memoryview(msgpack.packb(message)))
    for executed in getattr(decoded, "executed", []):
        assert type(executed) is Executed
        for response in executed.responses:
            assert type(response) is Response
            assert all(type(tensor) is TensorRef for tensor in response.outputs)
            assert all(type(tensor.place) in (Handle, int, bytes) for tensor in response.outputs)


@given(messages_of(TO_BROKER.items()), st.data())
def test_a_message_cut_short_is_a_protocol_error(message, data):
    whole = msgpack.packb(message)
    with pytest.raises(ProtocolError):
        decode_from_stub(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.binary())
def test_any_bytes_are_a_message_or_a_protocol_error(data):
    with contextlib.suppress(ProtocolError):
        assert decode_from_stub(data).kind in TO_BROKER


@pytest.mark.parametrize(
    "value",
    [
        ["?", 1, 2],
        ["H", "one", 2],
        ["H", 1],
        ["Hx", 1, 2],
        [["H"], 1, 2],
        ["S", [[1, 2, 3, 4, False, [[1, [["x", "FP32", [1], "a place"]]]]]], []],
        ["E", [], []],  # a message to stubs
        {"kind": "H"},
        "H",
        7,
        None,
    ],
)
def test_what_is_well_formed_but_no_message_is_a_protocol_error(value):
    with pytest.raises(ProtocolError):
        decode_from_stub(msgpack.packb(value))


def test_the_kind_is_the_third_byte_of_every_message():
    assert encode(Hello(messages.HELLO, 1, 2))[2:3] == b"H"
    assert encode(Results(messages.RESULTS, [], []))[2:3] == b"S"


def test_every_kind_has_a_letter_of_its_own():
    letters = [*TO_STUB, *TO_BROKER]
    assert len(set(letters)) == len(letters)
    assert all(len(letter) == 1 and letter.isascii() for letter in letters)


def test_what_messagepack_cannot_hold_is_written_as_text():
    """Else all that leaves in the same turn would be lost with it."""
    request = Request(1, "m", 1, [], "\ud800", [], {"large": 2**70, "small": -(2**70), "usual": 2**63})
    data = encode(Execute(EXECUTE, [Batch(1, [request])], []))
    (_, ((_, ((_, _, _, _, request_id, _, parameters, *_),), *_),), *_) = msgpack.unpackb(data, use_list=False)
    assert request_id == "\\ud800"
    assert parameters == {"large": str(2**70), "small": str(-(2**70)), "usual": 2**63}
