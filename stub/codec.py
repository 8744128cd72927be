"""MessagePack in a stub: bytes become a typed message or a ProtocolError here and nowhere else.

By msgspec where the interpreter has it, as in the server's own; a foreign one need only have msgpack, of which versions
before 1.0 must be told that text is text. Tests run both on the same bytes, and prove that what is written is what
protocol/codec.py writes and reads.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple, Union

import msgpack

from .shared import errors, messages

ToStub = messages.ToStub

try:
    import msgspec
except ImportError:  # an interpreter other than the server's
    msgspec = None  # type: ignore[assignment]

_pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode if msgspec else msgpack.Packer(use_bin_type=True).pack
_pack_any_text = msgpack.Packer(use_bin_type=True, unicode_errors="backslashreplace").pack
_SCALARS = {bool, int, float, str}


def encode(message: messages.ToBroker) -> bytes:
    """A message's header frame. A lone surrogate, which no encoding has, becomes its escape."""
    try:
        data: bytes = _pack(message)
    except UnicodeEncodeError:
        data = _pack_any_text(message)
    return data


def encode_anew(message: messages.ToBroker) -> bytes:
    """The same, for a finalizer: that may run in the midst of ``encode``, which is not made to be entered twice."""
    data: bytes = msgpack.packb(message)
    return data


def decode_plain(data: Union[bytes, memoryview]) -> ToStub:
    """One header frame from the broker, without msgspec. Raises ProtocolError."""
    try:
        kind, *fields = msgpack.unpackb(data, use_list=False, raw=False)
        return _DECODERS[kind](*fields)
    except KeyError:
        raise errors.ProtocolError("unknown message kind") from None
    except (ValueError, TypeError, AttributeError) as error:  # no MessagePack; fields too many, too few, of other types
        raise errors.ProtocolError("malformed message: {}".format(error)) from None


def _load(
    mode: str,
    model_file: str,
    version_directory: str,
    args: Dict[str, str],
    probe: Tuple[Any, ...],
    directory: str,
    max_unread: int,
    tag: str,
    small_nbytes: int,
) -> messages.Load:
    _expect(str, mode, model_file, version_directory, directory, tag, *args, *args.values())
    _expect(int, max_unread, small_nbytes)
    return messages.Load(
        messages.LOAD,
        mode,
        model_file,
        version_directory,
        args,
        _handle(*probe),
        directory,
        max_unread,
        tag,
        small_nbytes,
    )


def _execute(
    batches: Tuple[Any, ...],
    released: Tuple[int, ...],
    paced: Tuple[Tuple[int, int], ...],
    inline: Tuple[int, ...],
) -> messages.Execute:
    _expect(int, *released, *inline)
    pairs = [(request, responses) for request, responses in paced]
    _expect(int, *(number for pair in pairs for number in pair))
    return messages.Execute(
        messages.EXECUTE, [_batch(*batch) for batch in batches], list(released), pairs, list(inline)
    )


def _credit(request: int, responses: int) -> messages.Credit:
    _expect(int, request, responses)
    return messages.Credit(messages.CREDIT, request, responses)


def _cancel(requests: Tuple[int, ...]) -> messages.Cancel:
    _expect(int, *requests)
    return messages.Cancel(messages.CANCEL, list(requests))


def _answered(call: int, response: Tuple[Any, ...], origin: str) -> messages.Answered:
    _expect(int, call)
    _expect(str, origin)
    return messages.Answered(messages.ANSWERED, call, _response(*response), origin)


def _response(
    request: int,
    outputs: Tuple[Any, ...],
    lease: int,
    error: Optional[Tuple[int, str]],
    parameters: Dict[str, Any],
    final: bool,
    retained: bool,
    flag_only: bool,
) -> messages.Response:
    _expect(int, request, lease)
    _expect(bool, final, retained, flag_only)
    _expect_parameters(parameters)
    tensors = [_tensor(*tensor) for tensor in outputs]
    return messages.Response(request, tensors, lease, _error(error), parameters, final, retained, flag_only)


def _error(error: Optional[Tuple[int, str]]) -> Optional[Tuple[int, str]]:
    if error is None:
        return None
    kind, text = error
    _expect(int, kind)
    _expect(str, text)
    return kind, text


def _returned(calls: Tuple[int, ...]) -> messages.Returned:
    _expect(int, *calls)
    return messages.Returned(messages.RETURNED, list(calls))


def _told(call: int, error: Optional[Tuple[int, str]], value: float) -> messages.Told:
    _expect(int, call)
    return messages.Told(messages.TOLD, call, _error(error), float(value))


def _ask_ready(call: int) -> messages.AskReady:
    _expect(int, call)
    return messages.AskReady(messages.ASK_READY, call)


def _finish() -> messages.Finish:
    return messages.Finish(messages.FINISH)


def _batch(batch_id: int, requests: Tuple[Any, ...], slots: Tuple[int, ...], places: int) -> messages.Batch:
    _expect(int, batch_id, places, *slots)
    return messages.Batch(batch_id, [_request(*request) for request in requests], list(slots), places)


def _request(
    lease: int,
    model: str,
    version: int,
    inputs: Tuple[Any, ...],
    request_id: str,
    outputs: Tuple[str, ...],
    parameters: Dict[str, Any],
    correlation_id: Union[int, str],
    flags: int,
    priority: int,
    timeout_us: int,
) -> messages.Request:
    _expect(int, lease, version, flags, priority, timeout_us)
    _expect(str, model, request_id, *outputs)
    _expect_parameters(parameters)
    if type(correlation_id) is not int and type(correlation_id) is not str:
        raise TypeError("a correlation id is neither a number nor text")
    tensors = [_tensor(*tensor) for tensor in inputs]
    return messages.Request(
        lease,
        model,
        version,
        tensors,
        request_id,
        list(outputs),
        parameters,
        correlation_id,
        flags,
        priority,
        timeout_us,
    )


def _tensor(name: str, datatype: str, shape: Tuple[int, ...], place: Any, shared: bool) -> messages.TensorRef:
    _expect(str, name, datatype)
    _expect(int, *shape)
    _expect(bool, shared)
    if type(place) is not int and type(place) is not bytes:
        place = _handle(*place)
    return messages.TensorRef(name, datatype, shape, place, shared)


def _handle(segment: str, offset: int, nbytes: int) -> messages.Handle:
    _expect(str, segment)
    _expect(int, offset, nbytes)
    return messages.Handle(segment, offset, nbytes)


def _expect_parameters(parameters: Dict[str, Any]) -> None:
    _expect(str, *parameters)
    if not _SCALARS.issuperset(map(type, parameters.values())):
        raise TypeError("a parameter is no scalar")


def _expect(kind: type, *values: object) -> None:
    for value in values:
        if type(value) is not kind:
            raise TypeError("a {} where {} is due".format(type(value).__name__, kind.__name__))


_DECODERS: Dict[object, Callable[..., ToStub]] = {
    messages.LOAD: _load,
    messages.EXECUTE: _execute,
    messages.CANCEL: _cancel,
    messages.CREDIT: _credit,
    messages.ANSWERED: _answered,
    messages.RETURNED: _returned,
    messages.TOLD: _told,
    messages.ASK_READY: _ask_ready,
    messages.FINISH: _finish,
}


def decode_typed(data: Union[bytes, memoryview]) -> ToStub:
    """The same by msgspec."""
    # [array, string of length 1, kind, ...]: the kind is the third byte of every message.
    decoder = _TYPED.get(data[2]) if len(data) > 2 else None
    if decoder is None:
        raise errors.ProtocolError("unknown message kind")
    try:
        message: ToStub = decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.ProtocolError("malformed message: {}".format(error)) from None
    return message


_TYPED: Dict[int, Any] = {}
if msgspec:
    _TYPED = {ord(kind): msgspec.msgpack.Decoder(message) for kind, message in messages.TO_STUB.items()}
decode = decode_typed if msgspec else decode_plain
