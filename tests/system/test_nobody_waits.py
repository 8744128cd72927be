"""Requests whose clients have gone, or whose deadline has passed, while they waited for an instance."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.system.conftest import Background, Repository, Server, Start, eventually, json_request, together

WAITING = 4
Flag = Callable[[str], Path]

SLOW = """
def execute(self, requests):
    for request in requests:
        with open({ran!r}, "a") as ran:
            ran.write("x")
        while not (os.path.exists({fast!r}) or request.is_cancelled()):
            time.sleep(0.002)
    return [respond(request, values(request)) for request in requests]
"""


@pytest.fixture(params=["new", "fast so far"])
def slow(request: pytest.FixtureRequest, repository: Repository, start: Start, flag: Flag) -> Server:
    """A model that was fast so far is sent work ahead: then its stub holds what would wait in the queue."""
    repository.add("slow", SLOW.format(ran=str(flag("ran")), fast=str(flag("fast"))))
    server = start()
    if request.param == "fast so far":
        flag("fast").touch()
        for _ in range(100):
            server.post("slow", [1.0])
        flag("fast").unlink()
        flag("ran").unlink()
    return server


def only_the_first_has_run(server: Server, flag: Flag) -> None:
    """It ends by itself once nobody waits for it."""
    eventually(lambda: server.failures("slow") == {"CANCELED": WAITING})
    assert server.pending("slow") == 0
    flag("fast").touch()
    assert server.post("slow", [1.0]).data == [1.0]
    assert flag("ran").read_text() == "xx"


def test_a_request_whose_deadline_has_passed_never_runs(slow: Server, flag: Flag) -> None:
    def ask(timeout_s: float) -> str:
        tensor = tritonclient.grpc.InferInput("IN", [1], "FP32")
        tensor.set_data_from_numpy(np.ones(1, np.float32))
        client = tritonclient.grpc.InferenceServerClient(slow.grpc)
        with client, pytest.raises(InferenceServerException) as raised:
            client.infer("slow", [tensor], client_timeout=timeout_s)
        return str(raised.value.status())

    first = Background(1, lambda: ask(3.0), times=1)
    eventually(flag("ran").exists)
    assert together(WAITING, [lambda: ask(0.5)] * WAITING) == ["StatusCode.DEADLINE_EXCEEDED"] * WAITING
    assert first.stop() == ["StatusCode.DEADLINE_EXCEEDED"]
    only_the_first_has_run(slow, flag)


@pytest.mark.parametrize("endpoint", ["infer", "generate", "generate_stream"])
def test_a_request_whose_client_has_gone_never_runs(slow: Server, flag: Flag, endpoint: str) -> None:
    body = json_request([1.0]) if endpoint == "infer" else b'{"IN":1.0}'
    head = f"POST /v2/models/slow/{endpoint} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"

    def ask() -> socket.socket:
        client = slow.connect()
        client.sendall(head.encode() + body)
        return client

    first = ask()
    eventually(flag("ran").exists)
    others = [ask() for _ in range(WAITING)]
    with slow.connect() as last:  # its answer comes after all of those have been read
        last.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert last.recv(100).startswith(b"HTTP/1.1 200 ")
    for client in (*others, first):
        client.close()
    only_the_first_has_run(slow, flag)
