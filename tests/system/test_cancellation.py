"""That a client has gone, or has cancelled, is known to its model within 100 ms."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from tests.system.conftest import Repository, Server, Start, eventually, json_request, serving
from tests.system.grpc_stream import DECOUPLED, Answer, streaming

WITHIN_S = 0.1
# IN is a number for the log. The model asks as fast as it can, or ten times in a second.
POLLING = """
def execute(self, requests):
    import json
    pauses = json.loads(requests[0].parameters()).get("case") == "pauses"
    request, number = requests[0], int(values(requests[0])[0])
    asked = request.get_response_sender() if number % 2 else request
    pb_utils.Logger.log_info(f"running {number}")
    deadline = time.monotonic() + 20
    while not asked.is_cancelled() and time.monotonic() < deadline:
        if pauses:
            time.sleep(0.01)
    pb_utils.Logger.log_info(f"cancelled {number} at {time.time():.4f}" if asked.is_cancelled() else "in vain")
    assert request.is_cancelled() and request.get_response_sender().is_cancelled()
    ANSWER
"""
DEFAULT_ANSWER = (
    'return [pb_utils.InferenceResponse(error=pb_utils.TritonError("gone", pb_utils.TritonError.CANCELLED))]'
)
DECOUPLED_ANSWER = "request.get_response_sender().send(flags=1)"
IN_THREAD = """
def execute(self, requests):
    import threading
    for request in requests:
        threading.Thread(target=self.run, args=[request]).start()
def run(self, request):
    number, sender = int(values(request)[0]), request.get_response_sender()
    pb_utils.Logger.log_info(f"running {number}")
    while not sender.is_cancelled():
        time.sleep(0.005)
    pb_utils.Logger.log_info(f"cancelled {number} at {time.time():.4f}")
    sender.send(flags=1)
"""
COROUTINE = """
async def execute(self, requests):
    import asyncio
    for request in requests:
        number, sender = int(values(request)[0]), request.get_response_sender()
        pb_utils.Logger.log_info(f"running {number}")
        while not request.is_cancelled():
            await asyncio.sleep(0.005)
        pb_utils.Logger.log_info(f"cancelled {number} at {time.time():.4f}")
        sender.send(flags=1)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = Repository(tmp_path_factory.mktemp("models"))
    repository.add("default", POLLING.replace("ANSWER", DEFAULT_ANSWER))
    repository.add("decoupled", POLLING.replace("ANSWER", DECOUPLED_ANSWER), config=DECOUPLED % 1)
    repository.add("thread", IN_THREAD, config=DECOUPLED % 1)
    repository.add("coroutine", COROUTINE, config=DECOUPLED % 1)
    with serving(repository, tmp_path_factory.mktemp("logs")) as start:
        yield start()


def tensor(number: int) -> Any:
    found = tritonclient.grpc.InferInput("IN", [1], "FP32")
    found.set_data_from_numpy(np.array([number], np.float32))
    return found


def wait_running(server: Server, number: int) -> None:
    eventually(lambda: server.lines(f"running {number}"))


def check_told_in_time(server: Server, number: int, cancelled_s: float) -> None:
    line = f"cancelled {number} at "
    (found,) = eventually(lambda: server.lines(line))
    told_s = float(found.split(line)[1].split('"')[0])
    assert told_s - cancelled_s < WITHIN_S


@pytest.mark.parametrize("case", ["loops", "pauses"])
@pytest.mark.parametrize("parity", [0, 1])
def test_a_cancelled_grpc_call_is_known_to_request_and_sender(server: Server, case: str, parity: int) -> None:
    number = {"loops": 10, "pauses": 12}[case] + parity
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        call = client.async_infer("default", [tensor(number)], lambda *_: None, parameters={"case": case})
        wait_running(server, number)
        call.cancel()
        check_told_in_time(server, number, time.time())


def test_an_http_client_that_disconnects_is_known(server: Server) -> None:
    connection = HTTPConnection(server.http)
    connection.request("POST", "/v2/models/default/infer", json_request([20.0]))
    wait_running(server, 20)
    connection.close()
    check_told_in_time(server, 20, time.time())


@pytest.mark.parametrize(("model", "number"), [("decoupled", 30), ("thread", 31), ("coroutine", 32)])
def test_a_cancelled_stream_is_known(server: Server, model: str, number: int) -> None:
    with streaming(server) as stream:
        stream.send(model, [float(number)])
        wait_running(server, number)
        cancelled_s = time.time()
        stream.cancel()
        check_told_in_time(server, number, cancelled_s)


def test_several_are_cancelled_at_once(server: Server) -> None:
    with streaming(server) as stream:
        for number in range(40, 45):
            stream.send("coroutine", [float(number)])
        for number in range(40, 45):
            wait_running(server, number)
        cancelled_s = time.time()
        stream.cancel()
        for number in range(40, 45):
            check_told_in_time(server, number, cancelled_s)


def test_one_that_nobody_cancels_is_not_cancelled(server: Server) -> None:
    with streaming(server) as one, streaming(server) as other:
        one.send("coroutine", [50.0])
        other.send("coroutine", [51.0])
        for number in (50, 51):
            wait_running(server, number)
        one.cancel()
        eventually(lambda: server.lines("cancelled 50"))
        assert other.is_silent(0.2)
        assert not server.lines("cancelled 51")
        other.cancel()
        eventually(lambda: server.lines("cancelled 51"))


def test_a_model_that_goes_on_regardless_does_no_harm(repository: Repository, start: Start) -> None:
    code = """
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sender.send(respond(request, values(request)))
            deadline = time.monotonic() + 20
            while values(request)[0] and not sender.is_cancelled() and time.monotonic() < deadline:
                time.sleep(0.005)
            for _ in range(10):
                sender.send(respond(request, np.zeros(1 << 16, np.float32)))
            sender.send(flags=1)
    """
    repository.add("m", code, config=DECOUPLED % 1)
    server = start()
    with streaming(server) as stream:
        stream.send("m", [1.0])
        assert stream.next() == Answer([1.0])
        stream.cancel()
    with streaming(server) as stream:
        stream.send("m", [0.0])
        assert len(stream.until_final()) == 12
