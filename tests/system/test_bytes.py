"""BYTES elements come through as they are, over every path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.system.conftest import CONFIG, Repository, Server, serving

ELEMENTS = [b"a\x00", b"", b"\x00", b"abc\x00def", "é漢".encode(), bytes(range(256)), b"x" * 70_000, b"\x00" * 5]
TEXTS = ["a\x00", "", "\x00", "abc\x00def", "é漢", 'quote " and \\ and \n', "\U0001f600", "x" * 70_000]

ECHO = """
def execute(self, requests):
    responses = []
    for request in requests:
        array = values(request)
        if array.dtype != object or not all(type(element) is bytes for element in array.flat):
            raise TypeError(f"{array.dtype} {[type(element) for element in array.flat]}")
        responses.append(respond(request, array))
    return responses
"""

SURROGATE = """
def execute(self, requests):
    return [respond(request, np.array(["a" + chr(0xD800)], dtype=object)) for request in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("bytes")
    (path / "models").mkdir()
    repository = Repository(path / "models")
    config = CONFIG.replace("TYPE_FP32", "TYPE_STRING") % 1
    repository.add("echo", ECHO, config=config)
    repository.add("surrogate", SURROGATE, config=config)
    with serving(repository, path) as start:
        yield start()


def array_of(elements: list[bytes]) -> np.ndarray[Any, Any]:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def by_client(client: Any, elements: list[bytes], **options: Any) -> list[bytes]:
    module = tritonclient.grpc if isinstance(client, tritonclient.grpc.InferenceServerClient) else tritonclient.http
    tensor = module.InferInput("IN", [len(elements)], "BYTES")
    tensor.set_data_from_numpy(array_of(elements), **options)
    result = client.infer("echo", [tensor]).as_numpy("OUT")
    return [element if isinstance(element, bytes) else element.encode() for element in result.tolist()]


def test_over_grpc(server: Server) -> None:
    """Elements lost trailing NULs, or were cut at the first."""
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        assert by_client(client, ELEMENTS) == ELEMENTS


def test_over_http_as_binary_tensors(server: Server) -> None:
    with tritonclient.http.InferenceServerClient(server.http) as client:
        assert by_client(client, ELEMENTS) == ELEMENTS


def test_an_array_of_no_elements(server: Server) -> None:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        assert by_client(client, []) == []


@pytest.mark.parametrize("ascii", [True, False], ids=["escaped", "utf-8"])
def test_texts_over_json(server: Server, ascii: bool) -> None:
    inputs = [{"name": "IN", "datatype": "BYTES", "shape": [len(TEXTS)], "data": TEXTS}]
    body = json.dumps({"inputs": inputs}, ensure_ascii=ascii).encode()
    answer = server.call("POST", "/v2/models/echo/infer", body)
    assert answer.json["outputs"][0]["data"] == TEXTS


def test_bytes_that_are_no_text_go_through_json_as_they_are(server: Server) -> None:
    """As Triton does it, so the body need not be UTF-8."""
    element = b"\xff\xfe\x80"
    inputs = b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"data":["' + element + b'"]}]}'
    answer = server.call("POST", "/v2/models/echo/infer", inputs)
    assert answer.status == 200
    assert b'"data":["' + element + b'"]' in answer.body


def test_a_text_that_has_no_bytes_is_an_error_that_names_the_tensor(server: Server) -> None:
    inputs = [{"name": "IN", "datatype": "BYTES", "shape": [1], "data": ["a"]}]
    answer = server.call("POST", "/v2/models/surrogate/infer", json.dumps({"inputs": inputs}).encode())
    assert answer.status == 500
    assert "OUT" in answer.error
    assert "surrogate" in answer.error


def test_a_length_beyond_the_tensor_is_refused(server: Server) -> None:
    data = b"\xff\xff\xff\xffabc"
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(data)}}
    header = json.dumps({"inputs": [tensor]}).encode()
    answer = server.call(
        "POST", "/v2/models/echo/infer", header + data, {"Inference-Header-Content-Length": str(len(header))}
    )
    assert answer.status == 400
    assert "IN" in answer.error
