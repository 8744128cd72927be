"""Models with any number of responses: where there is room for one only, and where there is room for all."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.system.conftest import CONFIG, MiB, Repository, Server, Start, eventually

Flag = Callable[[str], Path]

DECOUPLED = CONFIG % 1 + "model_transaction_policy { decoupled: true }\n"

# IN is how many responses to send; each is its number.
COUNTING = """
def execute(self, requests):
    for request in requests:
        open({ran!r}, "a").write("x")
        sender = request.get_response_sender()
        for number in range(int(values(request)[0])):
            sender.send(respond(request, np.array([number], np.float32)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture
def counting(repository: Repository, start: Start, flag: Flag) -> Server:
    repository.add("counting", COUNTING.format(ran=str(flag("ran"))), config=DECOUPLED)
    return start()


@contextmanager
def generate_stream(server: Server, model: str, document: Any) -> Iterator[HTTPResponse]:
    connection = HTTPConnection(server.http, timeout=20)
    connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(document))
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def event(response: HTTPResponse) -> Any:
    line, end = response.readline(), response.readline()
    assert line.startswith(b"data: ") and end == b"\n"
    return json.loads(line.removeprefix(b"data: "))


def tensor(*values: float) -> Any:
    found = tritonclient.grpc.InferInput("IN", [len(values)], "FP32")
    found.set_data_from_numpy(np.array(values, np.float32))
    return found


def test_where_one_response_is_expected_the_model_is_refused_and_never_runs(counting: Server, flag: Flag) -> None:
    answer = counting.post("counting", [1.0])
    assert answer.status == 501
    assert answer.error == "HTTP end point doesn't support models with decoupled transaction policy"
    client = tritonclient.grpc.InferenceServerClient(counting.grpc)
    with client, pytest.raises(InferenceServerException) as raised:
        client.infer("counting", [tensor(1)])
    assert raised.value.status() == "StatusCode.UNIMPLEMENTED"
    assert raised.value.message() == "ModelInfer RPC doesn't support models with decoupled transaction policy"
    assert counting.post("counting", [1.0] * (1 << 20)).status == 501  # a body that is not even received
    assert not flag("ran").exists()


def test_a_grpc_stream_has_every_response(counting: Server) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(counting.grpc) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        client.async_stream_infer("counting", [tensor(3)], enable_empty_final_response=True)
        results = [answers.get(timeout=20) for _ in range(4)]
        client.stop_stream()
    assert [result.as_numpy("OUT").tolist() for result in results[:3]] == [[0.0], [1.0], [2.0]]
    assert (
        results[3].get_response().parameters["triton_final_response"].bool_param
        and not results[3].get_response().outputs
    )


def test_generate_has_the_one_response_or_says_that_there_were_others(counting: Server) -> None:
    path = "/v2/models/counting/generate"
    assert counting.call("POST", path, b'{"IN":1}').json == {"OUT": 0.0, "model_name": "counting", "model_version": "1"}
    for number in (0, 2, 5):
        answer = counting.call("POST", path, b'{"IN":%d}' % number)
        assert answer.status == 200 and answer.json["error"].startswith("generate expects model to produce exactly 1 ")


def test_generate_stream_has_every_response(counting: Server) -> None:
    for number in (0, 1, 5):
        with generate_stream(counting, "counting", {"IN": number}) as response:
            assert response.status == 200
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert [event(response)["OUT"] for _ in range(number)] == list(range(number))
            assert response.read() == b""


def test_an_event_leaves_as_soon_as_its_response_is_sent(repository: Repository, start: Start, flag: Flag) -> None:
    code = f"""
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        sender.send(respond(requests[0], np.array([1], np.float32)))
        wait_for({str(flag("go on"))!r})
        sender.send(respond(requests[0], np.array([2], np.float32)), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    repository.add("m", code, config=DECOUPLED)
    with generate_stream(start(), "m", {"IN": 1, "id": "a"}) as response:
        assert event(response) == {"OUT": 1.0, "id": "a", "model_name": "m", "model_version": "1"}
        flag("go on").touch()
        assert event(response)["OUT"] == 2.0
        assert response.read() == b""


LARGE = """
def execute(self, requests):
    sender = requests[0].get_response_sender()
    for number in range(96):
        sender.send(respond(requests[0], np.full(1 << 16, number, np.float32)))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    open({done!r}, "w").close()
"""


def test_what_a_client_does_not_read_waits_in_the_models_memory(
    repository: Repository, start: Start, flag: Flag
) -> None:
    """24 MiB of responses; the text that they become is larger still, and none of it is made ahead of time."""
    repository.add("m", LARGE.format(done=str(flag("done"))), config=DECOUPLED)
    server = start()
    memory = psutil.Process(server.process.pid).memory_full_info
    before = memory().uss
    with generate_stream(server, "m", {"IN": 1}) as response:
        eventually(flag("done").exists)
        assert server.get("/v2/health/live").status == 200
        assert server.shm_bytes() > 12 * MiB and memory().uss - before < 12 * MiB
        for number in range(96):
            values = event(response)["OUT"]
            assert len(values) == 1 << 16 and values[0] == values[-1] == number
        assert response.read() == b""
