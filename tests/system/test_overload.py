"""More work than a server can do: what it does not take is refused at once, and its memory stays as it is."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.system.conftest import Answer, Background, MiB, Repository, Server, Start, binary_request, eventually

pytestmark = pytest.mark.usefixtures("all_in_shared_memory")

SLOW = """
def execute(self, requests):
    time.sleep(0.02)
    return [respond(request, values(request)[:1]) for request in requests]
"""
BLOCKED = """
def execute(self, requests):
    wait_for({path!r})
    return [respond(request, values(request)[:1]) for request in requests]
"""
CALLS = """
def execute(self, requests):
    wait_for({path!r})
    answers = []
    for request in requests:
        call = pb_utils.InferenceRequest(
            model_name="slow", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", values(request))]
        )
        response = call.exec()
        assert not response.has_error(), response.error().message()
        answers.append(respond(request, pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()))
    return answers
"""


def refused(server: Server, reason: str) -> float:
    start = f'tensorbus_refused_requests_total{{reason="{reason}"}} '
    return float(next(line for line in server.exposition() if line.startswith(start)).removeprefix(start))


def held(server: Server) -> float:
    return float(next(line for line in server.exposition() if line.startswith("tensorbus_queued_bytes")).split()[1])


def test_clients_that_push_far_more_than_can_be_served_are_refused_and_memory_stays_flat(
    repository: Repository, start: Start
) -> None:
    repository.add("slow", SLOW)
    server = start("--max-queued-requests=16", "--max-queued-bytes=8388608", "--log-warning=false")
    body, headers = binary_request(np.ones(MiB // 4, np.float32))
    push = Background(64, lambda: server.call("POST", "/v2/models/slow/infer", body, headers).status)
    most_memory = most_shared = 0
    try:
        eventually(lambda: len(push.results) > 200)
        at_first = server._tree.memory_info().rss
        until = time.monotonic() + 2
        while time.monotonic() < until:
            most_memory = max(most_memory, server._tree.memory_info().rss)
            most_shared = max(most_shared, server.shm_bytes())
            time.sleep(0.02)
    finally:
        statuses = Counter(push.stop())
    assert set(statuses) == {200, 503}
    assert statuses[503] > 3 * statuses[200], "else it was no overload"
    assert most_memory - at_first < 48 * MiB
    assert most_shared < 64 * MiB
    assert refused(server, "bytes") + refused(server, "requests") == statuses[503]
    assert refused(server, "bytes") > 0
    before = refused(server, "requests")
    small = Background(64, lambda: server.post("slow", [1.0]).status)
    eventually(lambda: refused(server, "requests") > before, what="many small ones are refused, too")
    assert set(small.stop()) == {200, 503}
    assert server.failures("slow") == {} and server.pending("slow") == 0
    eventually(lambda: held(server) == 0)


def test_a_client_that_asks_first_need_not_send_what_is_refused(repository: Repository, start: Start, flag) -> None:
    repository.add("blocked", BLOCKED.format(path=str(flag("go"))))
    server = start("--max-queued-bytes=4096")
    waiting = Background(1, lambda: server.post_binary("blocked", np.ones(1000, np.float32)), times=1)
    eventually(lambda: held(server) == 4000)
    head = "POST /v2/models/blocked/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
    with server.connect() as connection:
        connection.sendall(
            (head + f"Inference-Header-Content-Length: 10\r\nContent-Length: {64 * MiB}\r\n\r\n").encode()
        )
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n") and b"Connection: close\r\n" in answer
    assert b"Exceeds maximum queue size" in answer and b"'blocked'" in answer
    flag("go").touch()
    (done,) = waiting.stop()
    assert done.status == 200


def test_a_large_grpc_request_is_refused_without_memory_for_it(repository: Repository, start: Start, flag) -> None:
    repository.add("blocked", BLOCKED.format(path=str(flag("go"))))
    server = start("--max-queued-bytes=4096")
    waiting = Background(1, lambda: server.post_binary("blocked", np.ones(1000, np.float32)), times=1)
    eventually(lambda: held(server) == 4000)
    large = triton.InferInput("IN", [16 * MiB], "FP32")
    large.set_data_from_numpy(np.ones(16 * MiB, np.float32))
    with triton.InferenceServerClient(server.grpc) as client:
        before = server._tree.memory_info().rss
        with pytest.raises(InferenceServerException) as refusal:
            client.infer("blocked", [large])
        assert refusal.value.status() == "StatusCode.UNAVAILABLE"
        assert "for model 'blocked' beyond --max-queued-bytes=4096" in refusal.value.message()
        assert server._tree.memory_info().rss - before < 16 * MiB
    flag("go").touch()
    waiting.stop()


def test_what_was_taken_is_finished_though_its_calls_exceed_the_bounds(
    repository: Repository, start: Start, flag
) -> None:
    repository.add("slow", SLOW)
    repository.add("caller", CALLS.format(path=str(flag("go"))), instances=2)
    server = start("--max-queued-requests=1", "--max-queued-bytes=4")
    answers: list[Answer] = []
    callers = Background(2, lambda: answers.append(server.post("caller", [1.0])), times=1)
    eventually(lambda: server.metric("nv_inference_pending_request_count", "caller") == 0)
    flood = Background(4, lambda: server.post("slow", [2.0]).status)
    flag("go").touch()
    callers.stop()
    assert {200, 503} == set(flood.stop())
    accepted = [answer for answer in answers if answer.status == 200]
    assert accepted and all(answer.data == [1.0] for answer in accepted)
    assert all("Exceeds maximum queue size" in answer.error for answer in answers if answer not in accepted)
