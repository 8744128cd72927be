"""A model that does not keep up, or does not move at all: every client gets an answer, nobody else is held up."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest

from tests.system.conftest import Repository, Start, eventually, together

CLIENTS = 64


@pytest.mark.parametrize("instances", [1, 2])
def test_no_request_is_lost_on_a_model_that_was_stopped_for_a_while(
    repository: Repository, start: Start, instances: int
) -> None:
    """Messages to a peer whose queue was full vanished, and their clients waited for ever."""
    repository.add("ident", instances=instances)
    repository.add("other")
    server = start()
    array = np.ones(25_000, np.float32)
    stubs = server.stubs("ident")
    for stub in stubs:
        stub.send_signal(signal.SIGSTOP)

    def watch_then_continue() -> int:
        try:
            eventually(lambda: server.pending("ident") >= CLIENTS - instances)
            until = time.monotonic() + 2
            while time.monotonic() < until:
                assert server.post("other", [1.0], timeout_s=2).data == [1.0]
            return server.get("/v2/health/live").status
        finally:
            for stub in stubs:
                stub.send_signal(signal.SIGCONT)

    posts = [lambda: server.post_binary("ident", array).status] * 1000
    statuses = together(CLIENTS + 1, [watch_then_continue, *posts])
    assert set(statuses) <= {200, 503}
    succeeded = server.metric("nv_inference_request_success", "ident")
    assert statuses.count(200) == succeeded + 1
    assert succeeded + sum(server.failures("ident").values()) + statuses.count(503) == 1000
    assert server.pending("ident") == 0
    assert server.stubs("ident") == stubs


def test_a_model_killed_while_it_does_not_read_loses_nothing_either(repository: Repository, start: Start) -> None:
    repository.add("ident")
    server = start()
    stub = server.stub("ident")
    stub.send_signal(signal.SIGSTOP)

    def kill() -> int:
        eventually(lambda: server.pending("ident") >= CLIENTS - 1)
        stub.kill()
        return 0

    jobs = [kill, *[lambda: server.post("ident", [1.0]).status] * 500]
    statuses = together(CLIENTS + 1, jobs)[1:]
    assert statuses.count(200) + statuses.count(500) == 500
    assert statuses.count(500) <= 1  # the one that it may have been inside of
    assert server.pending("ident") == 0


def test_a_slow_model_is_given_as_many_requests_as_it_has_instances(repository: Repository, start: Start) -> None:
    """The rest waits where it can still be cancelled or go to another instance."""
    code = """
    def execute(self, requests):
        time.sleep(0.2)
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("slow", code, instances=2)
    server = start()
    together(4, [lambda: server.post("slow", [1.0])] * 8)

    def watch() -> int:
        eventually(lambda: server.pending("slow") == 14)
        return 200

    statuses = together(17, [watch, *[lambda: server.post("slow", [1.0]).status] * 16])
    assert set(statuses) == {200}


def test_clients_that_leave_take_their_waiting_requests_with_them(repository: Repository, start: Start) -> None:
    code = """
    def execute(self, requests):
        time.sleep(0.5)
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("slow", code)
    server = start()

    def leave() -> str:
        try:
            server.post("slow", [1.0], timeout_s=0.3)
        except TimeoutError:
            return "left"
        return "answered"

    assert together(10, [leave] * 10) == ["left"] * 10
    eventually(lambda: server.pending("slow") == 0)
    eventually(lambda: server.metric("nv_inference_request_success", "slow") == 1)
    assert server.failures("slow") == {"CANCELED": 9}
    assert server.metric("nv_inference_exec_count", "slow") == 1
