"""Requests whose clients have gone, or whose deadline has passed, while they waited for an instance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.system.conftest import Repository, Server, Start, eventually, json_request, together

CLIENTS = 5

SLOW = """
def execute(self, requests):
    for request in requests:
        with open({ran!r}, "a") as ran:
            ran.write("x")
    wait_for({go_on!r})
    return [respond(request, values(request)) for request in requests]
"""


@pytest.fixture
def slow(repository: Repository, start: Start, flag: Callable[[str], Path]) -> Server:
    repository.add("slow", SLOW.format(ran=str(flag("ran")), go_on=str(flag("go on"))))
    return start()


def only_the_first_has_run(server: Server, flag: Callable[[str], Path]) -> None:
    eventually(lambda: server.failures("slow") == {"CANCELED": CLIENTS - 1})
    assert server.pending("slow") == 0
    flag("go on").touch()
    assert server.post("slow", [1.0]).data == [1.0]  # after all that was still to run
    assert flag("ran").read_text() == "xx"
    assert server.failures("slow") == {"CANCELED": CLIENTS - 1}


def test_a_request_whose_deadline_has_passed_never_runs(slow: Server, flag: Callable[[str], Path]) -> None:
    def ask() -> str:
        tensor = tritonclient.grpc.InferInput("IN", [1], "FP32")
        tensor.set_data_from_numpy(np.ones(1, np.float32))
        with tritonclient.grpc.InferenceServerClient(slow.grpc) as client:
            with pytest.raises(InferenceServerException) as raised:
                client.infer("slow", [tensor], client_timeout=0.5)
            return str(raised.value.status())

    assert together(CLIENTS, [ask] * CLIENTS) == ["StatusCode.DEADLINE_EXCEEDED"] * CLIENTS
    only_the_first_has_run(slow, flag)


@pytest.mark.parametrize("endpoint", ["infer", "generate", "generate_stream"])
def test_a_request_whose_client_has_gone_never_runs(slow: Server, flag: Callable[[str], Path], endpoint: str) -> None:
    body = json_request([1.0]) if endpoint == "infer" else b'{"IN":1.0}'
    head = f"POST /v2/models/slow/{endpoint} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    sockets = [slow.connect() for _ in range(CLIENTS)]
    for each in sockets:
        each.sendall(head.encode() + body)
    eventually(lambda: flag("ran").exists() and slow.pending("slow") == CLIENTS - 1)
    for each in sockets:
        each.close()
    only_the_first_has_run(slow, flag)
