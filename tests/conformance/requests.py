"""What a case of the corpus is made of: one step is one request, described as data.

Builders take what varies and fill in the rest; nothing here opens a socket.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import Message
from tritonclient.grpc import service_pb2

JSON_LENGTH = "Inference-Header-Content-Length"


class Http(NamedTuple):
    """A request to the HTTP port, ``head`` and ``body`` exactly as sent."""

    head: str
    body: bytes = b""


class Rpc(NamedTuple):
    """A unary call of GRPCInferenceService."""

    method: str
    request: Message
    metadata: tuple[tuple[str, str], ...] = ()


class Stream(NamedTuple):
    """One ModelStreamInfer call: all requests are sent, then the client half-closes."""

    requests: tuple[Message, ...]
    metadata: tuple[tuple[str, str], ...] = ()


class Scrape(NamedTuple):
    """The metrics port; of a success only the counters of one model are compared."""

    path: str
    model: str = ""
    method: str = "GET"


class Burst(NamedTuple):
    """Requests to ``model`` at the same time, each sent when those before it wait.

    The first ``executing`` of them do not wait: they keep the instances busy meanwhile. Where ``ordered`` it is
    compared which of them are answered before one that was sent ahead of them.
    """

    model: str
    requests: tuple[Http, ...]
    executing: int = 0
    ordered: bool = False


Step = Http | Rpc | Stream | Scrape | Burst


class Case(NamedTuple):
    """Steps sent one after the other to a server of ``repository`` (a folder of tests/models)."""

    name: str
    steps: tuple[Step, ...]
    repository: str = "conformance"


def case(name: str, *steps: Step, repository: str = "conformance") -> Case:
    return Case(name, steps, repository)


# --- HTTP -------------------------------------------------------------------------------------------------------


def http(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}, version: str = "1.1") -> Http:
    """``Content-Length`` is added for a POST unless ``headers`` say how the body's end is found."""
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if method == "POST" and not {"Content-Length", "Transfer-Encoding"} & headers.keys():
        lines.append(f"Content-Length: {len(body)}")
    return Http("\r\n".join(lines) + "\r\n\r\n", body)


def tensor(name: str, datatype: str, shape: Sequence[int], data: Any = None, **parameters: Any) -> dict[str, Any]:
    """An input of an HTTP request; without ``data`` it has none, which may be what is tested."""
    result: dict[str, Any] = {"name": name, "shape": list(shape), "datatype": datatype}
    if data is not None:
        result["data"] = data
    if parameters:
        result["parameters"] = parameters
    return result


def output(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters} if parameters else {"name": name}


def infer_path(model: str, version: str = "") -> str:
    return f"/v2/models/{model}" + (f"/versions/{version}" if version else "") + "/infer"


def infer(model: str, inputs: Any, outputs: Any = None, version: str = "", **members: Any) -> Http:
    """A JSON inference request; ``members`` are further members of its document."""
    document = {**members, "inputs": inputs}
    if outputs is not None:
        document["outputs"] = outputs
    return http("POST", infer_path(model, version), json.dumps(document).encode())


def infer_text(model: str, document: str | bytes, headers: Mapping[str, str] = {}) -> Http:
    """An inference request whose body is given word for word."""
    body = document.encode() if isinstance(document, str) else document
    return http("POST", infer_path(model), body, headers)


def infer_binary(
    model: str, inputs: Any, data: bytes, outputs: Any = None, header_length: int | str | None = None, **members: Any
) -> Http:
    """JSON header, then ``data``. ``header_length`` replaces the true length of the header."""
    document = {**members, "inputs": inputs}
    if outputs is not None:
        document["outputs"] = outputs
    header = json.dumps(document).encode()
    length = len(header) if header_length is None else header_length
    return http("POST", infer_path(model), header + data, {JSON_LENGTH: str(length)})


def infer_raw(model: str, data: bytes) -> Http:
    """A raw binary request: no JSON at all."""
    return http("POST", infer_path(model), data, {JSON_LENGTH: "0"})


def length_prefixed(*elements: bytes) -> bytes:
    """BYTES elements in binary form."""
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


# --- gRPC -------------------------------------------------------------------------------------------------------


def parameter(value: Any) -> service_pb2.InferParameter:
    """bool, int, str and float by their own kind; ``("uint64_param", 3)`` names a kind."""
    if isinstance(value, tuple):
        return service_pb2.InferParameter(**{value[0]: value[1]})
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return service_pb2.InferParameter(**{kinds[type(value)]: value})


def parameters(values: Mapping[str, Any]) -> dict[str, service_pb2.InferParameter]:
    return {name: parameter(value) for name, value in values.items()}


class Contents(NamedTuple):
    """Typed contents of a gRPC input, by field: ``Contents({"int_contents": [1]})``."""

    fields: Mapping[str, Sequence[Any]]


def grpc_input(
    name: str, datatype: str, shape: Sequence[int], contents: Contents | None = None, **values: Any
) -> service_pb2.ModelInferRequest.InferInputTensor:
    result = service_pb2.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    if contents:
        result.contents.CopyFrom(service_pb2.InferTensorContents(**contents.fields))
    for key, value in parameters(values).items():
        result.parameters[key].CopyFrom(value)
    return result


def grpc_output(name: str, **values: Any) -> service_pb2.ModelInferRequest.InferRequestedOutputTensor:
    return service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=parameters(values))


def infer_request(
    model: str,
    inputs: Sequence[Any],
    raw: Sequence[bytes] = (),
    outputs: Sequence[Any] = (),
    version: str = "",
    id: str = "",
    values: Mapping[str, Any] = {},
) -> service_pb2.ModelInferRequest:
    return service_pb2.ModelInferRequest(
        model_name=model,
        model_version=version,
        id=id,
        parameters=parameters(values),
        inputs=inputs,
        outputs=outputs,
        raw_input_contents=raw,
    )


def rpc_infer(model: str, inputs: Sequence[Any], raw: Sequence[bytes] = (), **more: Any) -> Rpc:
    return Rpc("ModelInfer", infer_request(model, inputs, raw, **more))
