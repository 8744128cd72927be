"""Clients that read the responses of decoupled models slowly, or not at all."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system import several_hosts
from tests.system.conftest import MiB, Repository, Server, Start, eventually
from tests.system.ensemble_models import add_ensemble, step
from tests.system.grpc_stream import DECOUPLED, streaming
from tests.system.scaled_stack import ready, scaled_stack
from tests.system.test_scaled_stack import with_its_own_shm

pytestmark = pytest.mark.usefixtures("all_in_shared_memory")

# IN is how many responses of 64 KiB to send.
FAST = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for number in range(int(values(request)[0])):
            if sender.is_cancelled():
                break
            sender.send(respond(request, np.full(16384, number, np.float32)))
            with open({path!r}, "a") as file:
                file.write("x")
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def ask(server: Server, count: int, model: str = "fast") -> socket.socket:
    """A stream that nobody reads yet, with as little room for it as there can be."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = server.http.split(":")
    connection.settimeout(30)
    connection.connect((host, int(port)))
    body = json.dumps({"IN": count}).encode()
    head = f"POST /v2/models/{model}/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def read(connection: socket.socket, count: int) -> None:
    with connection.makefile("rb") as stream:
        while count:
            count -= stream.readline().startswith(b"data:")


def test_a_model_does_not_run_far_ahead_of_a_client_that_does_not_read(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    sent = flag("sent")
    repository.add("fast", FAST.format(path=str(sent)), config=DECOUPLED.replace("count: %d", "count: 1"))
    server = start("--max-unread-bytes=1048576")
    connection = ask(server, 400)
    eventually(lambda: sent.exists() and sent.stat().st_size > 16)
    ahead = eventually(lambda: _unchanged(sent))
    assert ahead < 16 + 60, "what the sockets take, too"
    assert server.shm_bytes() < 8 * MiB
    with connection:
        read(connection, 400)
    assert sent.stat().st_size == 400


def test_a_client_that_goes_wakes_the_model(repository: Repository, start: Start, flag: Callable[[str], Path]) -> None:
    sent = flag("sent")
    repository.add("fast", FAST.format(path=str(sent)), config=DECOUPLED.replace("count: %d", "count: 1"))
    server = start("--max-unread-bytes=1048576")
    connection = ask(server, 100_000)
    eventually(lambda: sent.exists() and sent.stat().st_size > 16 and _unchanged(sent))
    connection.close()
    eventually(
        lambda: sum(server.failures("fast").values()) + server.metric("nv_inference_request_success", "fast") == 1
    )
    with ask(server, 3) as other:
        read(other, 3)


def _unchanged(path: Path) -> int:
    """The file's size once it has not grown for a while."""
    size = path.stat().st_size
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        if path.stat().st_size != size:
            return 0
        time.sleep(0.02)
    return size


GATED = """
def execute(self, requests):
    wait_for({path!r})
    return [respond(request, values(request)) for request in requests]
"""


def pipeline(repository: Repository, flag: Callable[[str], Path]) -> Path:
    """ "pipe" streams from "fast" through "gated", which does nothing before the file "go" is there."""
    repository.add("fast", FAST.format(path=str(flag("sent"))), config=DECOUPLED.replace("count: %d", "count: 1"))
    repository.add("gated", GATED.format(path=str(flag("go"))))
    steps = (step("fast", {"IN": "IN"}, {"OUT": "t"}), step("gated", {"IN": "t"}, {"OUT": "OUT"}))
    add_ensemble(repository, "pipe", *steps, settings="max_inflight_requests: 3")
    return flag("sent")


def test_a_model_that_streams_into_an_ensemble_waits_for_the_step_behind_it(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    sent = pipeline(repository, flag)
    server = start()
    with streaming(server) as stream:
        stream.send("pipe", [40])
        eventually(lambda: sent.exists() and _unchanged(sent))
        assert sent.stat().st_size <= 6, "three run, three wait"
        assert server.pending("gated") <= 2
        flag("go").touch()
        answers = [one for one in stream.until_final() if one.data is not None]
    assert [answer.data[0] for answer in answers if answer.data] == list(range(40))


@pytest.mark.skipif(bool(several_hosts.why_not()), reason=several_hosts.why_not())
def test_an_ensemble_does_not_run_far_ahead_of_a_client_of_a_gateway_that_shares_no_memory(
    repository: Repository, tmp_path: Path, flag: Callable[[str], Path]
) -> None:
    sent = pipeline(repository, flag)
    flag("go").touch()
    with scaled_stack(repository, tmp_path) as stack:
        stack.broker("--max-unread-bytes=1048576")
        stack.stub_host()
        gateway = ready(stack.gateway(place=with_its_own_shm), "pipe")
        with ask(gateway, 400, "pipe") as connection:
            eventually(lambda: sent.exists() and sent.stat().st_size > 16)
            assert eventually(lambda: _unchanged(sent)) < 16 + 60, "what the sockets take, too"
            read(connection, 400)


def test_a_client_that_goes_wakes_what_streams_for_it(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    sent = pipeline(repository, flag)
    server = start()
    with streaming(server) as stream:
        stream.send("pipe", [10_000])
        eventually(lambda: sent.exists() and _unchanged(sent))
        stream.client.stop_stream(cancel_requests=True)
    eventually(lambda: server.failures("fast") or server.metric("nv_inference_request_success", "fast"))
    flag("go").touch()
    with streaming(server) as stream:
        stream.send("pipe", [5])
        assert sum(one.data is not None for one in stream.until_final()) == 5
