"""POST generate and generate_stream without HTTP: one flat JSON object becomes an InferCall, Replies become documents.

A member of the object is an input if the model has one of that name, else a request parameter; so are the members of
``parameters``. An answer is one object too, of the outputs and the response's parameters.
"""

from __future__ import annotations

from collections import deque
from math import prod

from gateway import http_json, http_tensors
from gateway.calls import InferCall, InputTensor, OutputTensor, Reply
from gateway.http_header import free_parameter
from gateway.http_json import MISSING, JsonError, Members
from gateway.http_routes import error_body
from gateway.status import HTTP_STATUS
from protocol.datatypes import ITEMSIZE
from protocol.errors import InvalidArgument, ServingError
from protocol.signature import Signature, TensorSpec

_NOT_ONE = error_body(
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


def read_generate(content_encoding: bytes, body: bytes, signature: Signature, max_input_size: int) -> InferCall:
    """Raises ServingError."""
    if content_encoding != b"identity":
        raise InvalidArgument("Unsupported content-encoding, only 'identity' is supported.")
    return _Mapping(signature, max_input_size).call(http_json.parse(body))


class _Mapping:
    """The mapping of one document."""

    def __init__(self, signature: Signature, max_input_size: int) -> None:
        self._max_batch_size = signature.max_batch_size
        self._specs = {spec.name: spec for spec in signature.inputs}
        self._max_input_size = max_input_size
        self._nbytes = 0  # of the inputs so far
        self._names: set[str] = set()
        self._call = InferCall(signature.model, signature.version, [], signature=signature)

    def call(self, document: object) -> InferCall:
        found = http_json.find(document, "id")
        if found is not MISSING:
            try:
                self._call.request_id = http_json.as_string(found)
            except JsonError as error:
                raise JsonError(f"Unable to parse 'id': {error}") from None
        if not isinstance(document, Members):
            raise JsonError("attempt to get members for non-object")
        for key, _ in document:
            if key == "parameters":
                self._map_nested(document.get(key))
            else:
                self._map(key, document.get(key))
        return self._call

    def _map_nested(self, members: object) -> None:
        if "parameters" in self._specs:
            raise InvalidArgument("Keyword 'parameters' for nested schema also given as input tensor name")
        if not isinstance(members, Members):
            raise JsonError(
                "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"
            )
        try:
            for key, _ in members:
                self._map(key, members.get(key))
        except ServingError as error:
            raise type(error)(f"Converting keyword: 'parameters': {error}") from None

    def _map(self, key: str, value: object) -> None:
        spec = self._specs.get(key)
        if spec is None:
            self._call.parameters[http_json.as_string(key)] = free_parameter(key, value)
            return
        tensor = self._tensor(spec, value if isinstance(value, list) and not isinstance(value, Members) else [value])
        if key in self._names:
            request_id = self._call.request_id or "<id_unknown>"
            raise InvalidArgument(f"[request id: {request_id}] input '{key}' already exists in request")
        self._names.add(key)
        self._call.inputs.append(tensor)

    def _tensor(self, spec: TensorSpec, values: list[object]) -> InputTensor:
        name, datatype, count = spec.name, spec.datatype, len(values)
        if datatype in ("FP16", "BF16"):
            raise InvalidArgument(
                f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input "
                f"{name}"
            )
        itemsize = ITEMSIZE[datatype]
        if itemsize is not None:
            self._take_room(name, count * itemsize)
        shape = _spread(count, [-1, *spec.dims] if self._max_batch_size > 0 else [*spec.dims])
        if shape is None:
            raise InvalidArgument(f"The schema can not convert input '{name}' to tensor with proper shape")
        data = http_tensors.from_values(datatype, count, values)
        if itemsize is None:
            self._take_room(name, len(data))
        return InputTensor(name, datatype, shape, data)

    def _take_room(self, name: str, nbytes: int) -> None:
        if self._nbytes + nbytes > self._max_input_size:
            raise InvalidArgument(
                f"request size of {self._nbytes} bytes with input '{name}' of size {nbytes} bytes exceeds the maximum "
                f"allowed input size of {self._max_input_size}. Use --http-max-input-size to increase the limit."
            )
        self._nbytes += nbytes


def _spread(count: int, dims: list[int]) -> list[int] | None:
    """The shape of so many elements: the innermost variable dimension takes what the fixed ones leave. None where they
    do not fit."""
    fixed = prod(dim for dim in dims if dim != -1)
    if fixed == 0 or count % fixed:
        return None
    left = count // fixed
    shape = []
    for dim in reversed(dims):
        if dim == -1:
            dim, left = left, 1
        shape.append(dim)
    return shape[::-1] if left == 1 else None


# --- answers ----------------------------------------------------------------------------------------------------


class Generated:
    """The answer to one request, in pieces: ``add`` replies as they come, then ``next`` while there is any ``waiting``.

    generate_stream: each response is an event. generate: the document of the one response comes with the final flag,
    since only then it is known to be the only one. The first response decides the status of either.

    Invariant: a reply is released when ``next`` has made its piece, or by ``close``.
    """

    def __init__(self, streaming: bool) -> None:
        self.status = 0  # 0: not known yet
        self.begun = False  # there was something to send, if only the end
        self.ended = False
        self._streaming = streaming
        self._replies: deque[Reply] = deque()
        self._responses = 0
        self._document = b""

    @property
    def content_type(self) -> bytes:
        return b"text/event-stream; charset=utf-8" if self._streaming else b"application/json"

    @property
    def waiting(self) -> bool:
        return bool(self._replies)

    def add(self, reply: Reply) -> None:
        self._replies.append(reply)

    def next(self) -> bytes:
        """What may be sent now; nothing if b""."""
        reply = self._replies.popleft()
        try:
            status, document = (200, b"") if reply.flag_only else _document(reply)
        finally:
            reply.release()
        self.status = self.status or status
        self.ended = reply.final
        self.begun = self.ended or self._streaming
        if self._streaming:
            return b"data: %b\n\n" % document if document else b""
        if document:
            self._responses += 1
            self._document = document
        if not self.ended:
            return b""
        return self._document if self._responses == 1 else _NOT_ONE

    def close(self) -> None:
        while self._replies:
            self._replies.popleft().release()


def _document(reply: Reply) -> tuple[int, bytes]:
    """Status and JSON of one response."""
    try:
        if reply.error is not None:
            raise reply.error
        return 200, _object(reply)
    except ServingError as error:
        return HTTP_STATUS[error.kind], error_body(str(error))


def _object(reply: Reply) -> bytes:
    """Where names clash the first counts: what we say of the response, then its parameters, then its outputs."""
    signature = reply.signature
    members = {"id": http_json.string(reply.request_id)} if reply.request_id else {}
    members["model_name"] = http_json.string(signature.model)
    members["model_version"] = http_json.string(str(signature.version))
    for name, value in reply.parameters.items():
        members.setdefault(name, http_json.scalar(value))
    for output in reply.outputs:
        members.setdefault(output.name, _values(output))
    return http_json.members(sorted(members.items()))


def _values(output: OutputTensor) -> bytes:
    """A flat array, or the only element."""
    text = http_tensors.to_json(output.datatype, output.data)
    return text[1:-1] if prod(output.shape) == 1 else text
