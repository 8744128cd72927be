"""The load generators: wrk for HTTP, h2load for gRPC, tritonclient for both. Each sends one request over and over."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from benchmarks.server import Ports

LUA = Path(__file__).with_name("post.lua")
RPC = "/inference.GRPCInferenceService/ModelInfer"
STREAM_RPC = "/inference.GRPCInferenceService/ModelStreamInfer"
Arrays = dict[str, npt.NDArray[Any]]


class Load(NamedTuple):
    """What came of sending requests for a while; no request failed."""

    requests: int
    duration_s: float
    p50_ms: float
    p99_ms: float


class Call(NamedTuple):
    """The request that is sent, and what must come back."""

    model: str
    inputs: Arrays
    outputs: Arrays


def missing_tools() -> list[str]:
    packages = {"wrk": "wrk", "h2load": "nghttp2-client"}
    return [f"{tool} (Debian package {name})" for tool, name in packages.items() if not shutil.which(tool)]


# --- wrk --------------------------------------------------------------------------------------------------------


def wrk(ports: Ports, call: Call, clients: int, seconds: float) -> Load:
    body, header_length = _http_body(call)
    with tempfile.NamedTemporaryFile() as file:
        file.write(body)
        file.flush()
        environment = {**os.environ, "WRK_BODY": file.name, "WRK_HEADERS": _http_headers(header_length)}
        command = ["wrk", "-t1", f"-c{clients}", f"-d{max(1, round(seconds))}s", "--timeout=30s", f"-s{LUA}"]
        url = f"http://127.0.0.1:{ports.http}/v2/models/{call.model}/infer"
        out = subprocess.run([*command, url], env=environment, check=True, capture_output=True, text=True).stdout
    told = json.loads(out.splitlines()[-1])
    if told["errors"] or not told["requests"]:
        raise RuntimeError(f"wrk: {told['errors']} of {told['requests']} requests failed:\n{out}")
    return Load(told["requests"], told["duration_us"] / 1e6, told["p50_us"] / 1e3, told["p99_us"] / 1e3)


def _http_body(call: Call) -> tuple[bytes, int]:
    inputs, outputs = _tensors(http_client, call)
    body, header_length = http_client.InferenceServerClient.generate_request_body(inputs, outputs=outputs)
    return bytes(body), header_length


def _http_headers(header_length: int) -> str:
    return f"Content-Type: application/octet-stream\nInference-Header-Content-Length: {header_length}"


# --- h2load -----------------------------------------------------------------------------------------------------


def h2load(ports: Ports, call: Call, clients: int, seconds: float) -> Load:
    """gRPC's status is in the trailers, which h2load does not show: the size of the replies tells that all are good."""
    url = f"http://127.0.0.1:{ports.grpc}{RPC}"
    headers = ("content-type: application/grpc", "te: trailers")
    flags = [f"-D{max(1, round(seconds))}", "--warm-up-time=0"]
    out, times_us, duration_s = run_h2load(url, grpc_body(call), headers, clients, flags)
    succeeded, data = _h2load_totals(out)
    if data < (succeeded - clients) * sum(array.nbytes for array in call.outputs.values()):
        raise RuntimeError(f"h2load: replies too short to hold the outputs:\n{out}")
    times_us.sort()
    cuts = statistics.quantiles(times_us, n=100)
    return Load(succeeded, duration_s, cuts[49] / 1e3, cuts[98] / 1e3)


def run_h2load(
    url: str, body: bytes, headers: tuple[str, ...], clients: int, flags: list[str]
) -> tuple[str, list[int], float]:
    """What it prints, the time of each request in microseconds, and the time from first to last."""
    with tempfile.TemporaryDirectory() as directory:
        file, log = Path(directory, "body"), Path(directory, "log")
        file.write_bytes(body)
        command = ["h2load", "-t1", f"-c{clients}", "-m1", "-w30", "-W30", f"-d{file}", f"--log-file={log}", *flags]
        command += [f"-H{header}" for header in headers]
        out = subprocess.run([*command, url], check=True, capture_output=True, text=True).stdout
        rows = [line.split("\t") for line in log.read_text().splitlines()]
    good = [(int(row[0]), int(row[2])) for row in rows if row[1] == "200"]
    if len(good) < 2:
        raise RuntimeError(f"h2load: no request succeeded:\n{out}")
    duration_us = max(start + took for start, took in good) - min(start for start, _ in good)
    return out, [took for _, took in good], duration_us / 1e6


def _h2load_totals(out: str) -> tuple[int, int]:
    """How many requests succeeded, and the bytes of their DATA frames."""
    counts = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", out)
    codes = re.search(r"status codes: \d+ 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", out)
    data = re.search(r"\((\d+)\) data", out)
    assert counts and codes and data, out
    # With a duration, each client's last request is cut off and counts as errored.
    if int(counts[2]) > int(counts[3]) or any(int(codes[i]) for i in (1, 2, 3)):
        raise RuntimeError(f"h2load: requests failed:\n{out}")
    return int(counts[1]), int(data[1])


def grpc_body(call: Call) -> bytes:
    """A ModelInferRequest as gRPC frames it: not compressed, then its length."""
    request = grpc_client.service_pb2.ModelInferRequest(model_name=call.model)
    for name, array in call.inputs.items():
        request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    message: bytes = request.SerializeToString()
    return struct.pack(">BI", 0, len(message)) + message


def send_exactly(ports: Ports, call: Call, front: str, requests: int, clients: int) -> None:
    """So many requests over "http" or "grpc" by h2load, which speaks both and counts; all must succeed."""
    flags = [f"-n{requests}"]
    if front == "grpc":
        url, body = f"http://127.0.0.1:{ports.grpc}{RPC}", grpc_body(call)
        headers: tuple[str, ...] = ("content-type: application/grpc", "te: trailers")
    else:
        url, flags = f"http://127.0.0.1:{ports.http}/v2/models/{call.model}/infer", [*flags, "--h1"]
        body, header_length = _http_body(call)
        headers = tuple(_http_headers(header_length).splitlines())
    out, _, _ = run_h2load(url, body, headers, clients, flags)
    succeeded, _ = _h2load_totals(out)
    if succeeded != requests:
        raise RuntimeError(f"h2load: {succeeded} of {requests} requests succeeded:\n{out}")


# --- tritonclient -----------------------------------------------------------------------------------------------


def tritonclient_http(ports: Ports, call: Call, clients: int, seconds: float) -> Load:
    with http_client.InferenceServerClient(f"127.0.0.1:{ports.http}", network_timeout=60) as client:
        return _in_turn(http_client, client, call, seconds)


def tritonclient_grpc(ports: Ports, call: Call, clients: int, seconds: float) -> Load:
    with grpc_client.InferenceServerClient(f"127.0.0.1:{ports.grpc}") as client:
        return _in_turn(grpc_client, client, call, seconds)


def _in_turn(module: Any, client: Any, call: Call, seconds: float) -> Load:
    """One request after the other: these clients block."""
    inputs, outputs = _tensors(module, call)
    times_ms: list[float] = []
    start = time.perf_counter()
    while (before := time.perf_counter()) - start < seconds:
        client.infer(call.model, inputs, outputs=outputs)
        times_ms.append((time.perf_counter() - before) * 1e3)
    duration_s = time.perf_counter() - start
    cuts = statistics.quantiles([*times_ms, times_ms[-1]], n=100)
    return Load(len(times_ms), duration_s, cuts[49], cuts[98])


# --- a stream of responses ----------------------------------------------------------------------------------------


def stream(ports: Ports, call: Call, clients: int, seconds: float) -> Load:
    """Requests one after the other on one stream, each answered by as many responses as its input says. Responses are
    counted as requests are elsewhere, and only the first and the last of each request are looked into."""
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    body, count = grpc_body(call)[5:], int(next(iter(call.inputs.values()))[0])
    times_ms: list[float] = []
    with grpc.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
        responses = channel.stream_stream(STREAM_RPC)(iter(requests.get, None))
        start = time.perf_counter()
        while (before := time.perf_counter()) - start < seconds:
            requests.put(body)
            received = [next(responses) for _ in range(count)]
            times_ms.append((time.perf_counter() - before) * 1e3)
            for number in (0, count - 1):
                _check_response(received[number], number)
        duration_s = time.perf_counter() - start
        requests.put(None)
    cuts = statistics.quantiles([*times_ms, times_ms[-1]], n=100)
    return Load(len(times_ms) * count, duration_s, cuts[49], cuts[98])


def _check_response(data: bytes, number: int) -> None:
    message = grpc_client.service_pb2.ModelStreamInferResponse.FromString(data)
    if message.error_message or np.frombuffer(message.infer_response.raw_output_contents[0], np.float32) != number:
        raise RuntimeError(f"response {number} of a stream: {message}")


def check_answers(ports: Ports, call: Call) -> None:
    """Both fronts answer the call rightly. A server that returns nothing is fast."""
    for module, port in ((http_client, ports.http), (grpc_client, ports.grpc)):
        with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
            inputs, outputs = _tensors(module, call)
            result = client.infer(call.model, inputs, outputs=outputs)
            for name, wanted in call.outputs.items():
                if not np.array_equal(result.as_numpy(name), wanted):
                    raise RuntimeError(f"{call.model}: wrong {name} by {module.__name__}")


def _tensors(module: Any, call: Call) -> tuple[list[Any], list[Any]]:
    inputs = []
    for name, array in call.inputs.items():
        inputs.append(module.InferInput(name, array.shape, "FP32"))
        inputs[-1].set_data_from_numpy(array)
    return inputs, [module.InferRequestedOutput(name) for name in call.outputs]


Generator = Callable[[Ports, Call, int, float], Load]
