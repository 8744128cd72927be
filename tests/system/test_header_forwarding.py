"""Headers of clients as parameters of their requests, over HTTP and gRPC."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.system.conftest import Repository, Server

TELLING = """
def execute(self, requests):
    output = pb_utils.Tensor("OUT", np.array([1], np.float32))
    return [pb_utils.InferenceResponse([output], parameters={"seen": one.parameters()}) for one in requests]
"""
BODY = {
    "inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1]}],
    "parameters": {"own": 1, "x-b": "own"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("forwarding")
    repository = Repository(folder / "models")
    repository.add("m", TELLING)
    flags = ["--http-header-forward-pattern=^x-|triton|^PRIORITY$", "--grpc-header-forward-pattern=^X-|agent|priority"]
    server = Server(repository.path, folder / "log", *flags).wait_ready()
    yield server
    assert server.terminate() == 0


def post(server: Server, headers: list[tuple[str, str]], body: bytes = json.dumps(BODY).encode()) -> tuple[int, Any]:
    connection = HTTPConnection(server.http)
    connection.putrequest("POST", "/v2/models/m/infer")
    for name, value in [*headers, ("Content-Length", str(len(body)))]:
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    header_nbytes = answer.getheader("Inference-Header-Content-Length")
    return answer.status, json.loads(answer.read()[: header_nbytes and int(header_nbytes)])


def test_headers_keep_their_names_and_win_over_parameters_of_the_body(server: Server) -> None:
    for _ in range(2):
        status, answer = post(server, [("X-A", "1"), ("x-b", "two, 2"), ("Y-X-", "no")])
        assert status == 200
        assert json.loads(answer["parameters"]["seen"]) == {"own": 1, "x-b": "two, 2", "X-A": "1"}
    assert json.loads(post(server, [])[1]["parameters"]["seen"]) == {"own": 1, "x-b": "own"}


def test_a_raw_request_has_headers_too(server: Server) -> None:
    headers = [("X-A", "1"), ("Inference-Header-Content-Length", "0")]
    status, answer = post(server, headers, np.float32([1]).tobytes())
    assert (status, json.loads(answer["parameters"]["seen"])) == (200, {"X-A": "1"})


@pytest.mark.parametrize("name", ["triton_x", "priority"])
def test_reserved_names_are_refused(server: Server, name: str) -> None:
    text = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
    assert post(server, [(name, "1")]) == (400, {"error": text})
    assert post(server, [("X-TRITON-x", "1")])[0] == 200


def grpc_input() -> list[Any]:
    tensor = grpc_client.InferInput("IN", [1], "FP32")
    return [tensor.set_data_from_numpy(np.float32([1]))]


def seen(result: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.get_response().parameters["seen"].string_param)
    return found


def test_metadata_of_calls_and_streams_is_forwarded(server: Server) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with grpc_client.InferenceServerClient(server.grpc) as client:
        headers = {"x-a": "1", "y": "2"}
        parameters = seen(client.infer("m", grpc_input(), headers=headers, parameters={"own": 1}))
        assert parameters.pop("user-agent").startswith("grpc-python")
        assert parameters == {"own": 1, "x-a": "1"}
        with pytest.raises(grpc_client.InferenceServerException, match="Header 'priority' is reserved"):
            client.infer("m", grpc_input(), headers={"priority": "1"})
        client.start_stream(lambda result, error: answers.put((result, error)), headers=headers)
        for _ in range(2):
            client.async_stream_infer("m", grpc_input())
            result, error = answers.get(timeout=20)
            assert error is None and seen(result)["x-a"] == "1"
        client.stop_stream()
        client.start_stream(lambda result, error: answers.put((result, error)), headers={"priority": "1"})
        client.async_stream_infer("m", grpc_input())
        assert "Header 'priority' is reserved" in str(answers.get(timeout=20)[1])
