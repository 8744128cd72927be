"""Requests and answers far larger than the libraries' default limits."""

from __future__ import annotations

import json
import queue
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.system.conftest import MiB, Repository, Server, Start, serving

LIMIT = 67108864
SIZES_MB = [4.8, 100]  # beyond gRPC's own limit of 4 MiB, beyond ours of 64 MiB for JSON


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("large")
    (path / "models").mkdir()
    repository = Repository(path / "models")
    repository.add("ident")
    with serving(repository, path) as start:
        yield start()


def array_of(megabytes: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(int(megabytes * 250_000), dtype=np.float32)


def grpc_input(array: np.ndarray[Any, Any]) -> tritonclient.grpc.InferInput:
    tensor = tritonclient.grpc.InferInput("IN", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


@pytest.mark.parametrize("megabytes", SIZES_MB)
def test_a_grpc_call_of_any_size(server: Server, megabytes: float) -> None:
    """gRPC failed at 4 MiB because a default limit was left on one side."""
    array = array_of(megabytes)
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        assert np.array_equal(client.infer("ident", [grpc_input(array)]).as_numpy("OUT"), array)


@pytest.mark.parametrize("megabytes", SIZES_MB)
def test_a_grpc_stream_of_messages_of_any_size(server: Server, megabytes: float) -> None:
    array = array_of(megabytes)
    results: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        for _ in range(2):
            client.async_stream_infer("ident", [grpc_input(array)])
            result, error = results.get(timeout=60)
            assert error is None, error
            assert np.array_equal(result.as_numpy("OUT"), array)


@pytest.mark.parametrize("megabytes", SIZES_MB)
def test_an_http_call_with_a_binary_tensor_of_any_size(server: Server, megabytes: float) -> None:
    array = array_of(megabytes)
    with tritonclient.http.InferenceServerClient(server.http, network_timeout=60) as client:
        tensor = tritonclient.http.InferInput("IN", list(array.shape), "FP32").set_data_from_numpy(array)
        assert np.array_equal(client.infer("ident", [tensor]).as_numpy("OUT"), array)


@pytest.mark.skipif(
    shutil.disk_usage("/dev/shm").free < 2 << 30, reason="needs 2 GiB of /dev/shm; with less, tensors are copied inline"
)
def test_a_large_tensor_is_in_memory_no_more_than_three_times(repository: Repository, start: Start) -> None:
    repository.add("ident")
    server = start()
    server.post("ident", [1.0])
    payload = 300_000_000
    before = sum(map(peak_rss, (server.process.pid, server.stub("ident").pid)))
    assert len(server.post_binary("ident", array_of(300)).array) == 75_000_000
    peaks = {who: peak_rss(pid) for who, pid in (("server", server.process.pid), ("stub", server.stub("ident").pid))}
    # What both have mapped is counted twice here: the input and the output.
    assert sum(peaks.values()) - before <= 4.2 * payload, peaks
    assert server.shm_bytes() <= 2.2 * payload


def peak_rss(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def json_of_size(nbytes: int) -> bytes:
    body = json.dumps({"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1.5]}]}).encode()
    return body + b" " * (nbytes - len(body))


def test_a_json_request_beyond_the_limit_is_refused(server: Server) -> None:
    answer = server.call("POST", "/v2/models/ident/infer", json_of_size(LIMIT + 1))
    assert answer.status == 400
    assert answer.error == (
        f"request JSON size of {LIMIT + 1} bytes exceeds the maximum allowed input size of {LIMIT} bytes. "
        "Use --http-max-input-size to increase the limit."
    )
    assert server.call("POST", "/v2/models/ident/infer", json_of_size(LIMIT)).data == [1.5]


def test_a_raw_request_beyond_the_limit_is_refused(server: Server) -> None:
    headers = {"Inference-Header-Content-Length": "0"}
    answer = server.call("POST", "/v2/models/ident/infer", bytes(LIMIT + 4), headers)
    assert answer.status == 400
    assert "exceeds the maximum allowed value of" in answer.error
    answer = server.call("POST", "/v2/models/ident/infer", bytes(LIMIT), headers)
    assert answer.status == 200
    assert len(answer.array) == LIMIT // 4


def test_refusing_a_large_request_costs_no_memory(server: Server) -> None:
    rss = psutil.Process(server.process.pid).memory_info
    server.post("ident", [1.0])
    before = rss().rss
    for _ in range(5):
        assert server.call("POST", "/v2/models/ident/infer", json_of_size(LIMIT + 1)).status == 400
    assert rss().rss - before < 1.5 * LIMIT


@pytest.mark.parametrize("limit", [1000, 2 * LIMIT])
def test_the_limit_is_a_flag(repository: Repository, start: Start, limit: int) -> None:
    repository.add("ident")
    server = start(f"--http-max-input-size={limit}")
    assert server.call("POST", "/v2/models/ident/infer", json_of_size(limit)).data == [1.5]
    answer = server.call("POST", "/v2/models/ident/infer", json_of_size(limit + 1))
    assert (answer.status, "exceeds the maximum allowed input size" in answer.error) == (400, True)


def test_binary_tensors_may_be_larger_than_the_limit(repository: Repository, start: Start) -> None:
    repository.add("ident")
    server = start("--http-max-input-size=1000")
    assert (server.post_binary("ident", np.ones(MiB, np.float32)).array == 1).all()
