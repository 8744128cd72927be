"""Gateway, broker and stub hosts as processes of their own: right answers, by shared memory and by frames."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.system.conftest import Background, Repository, eventually
from tests.system.scaled_stack import ScaledStack, ready, scaled_stack

COUNTING = """
def initialize(self, args):
    self.where = args["model_repository"]

def execute(self, requests):
    with open(self.where + "/executed", "a") as file:
        for request in requests:
            file.write("%d\\n" % values(request)[0])
    return [respond(request, values(request) * 2) for request in requests]
"""

SLEEPY = """
def execute(self, requests):
    time.sleep(float(values(requests[0])[0]))
    return [respond(request, values(request)) for request in requests]
"""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    models = Repository(tmp_path / "models")
    models.path.mkdir()
    models.add("identity")
    return models


@pytest.fixture
def stack(repository: Repository, tmp_path: Path) -> Iterator[ScaledStack]:
    with scaled_stack(repository, tmp_path) as stack:
        yield stack


def test_a_request_goes_through_all_three_and_comes_back(stack):
    stack.broker()
    stack.stub_host()
    gateway = ready(stack.gateway(), "identity")
    assert gateway.post("identity", [1, 2, 3]).data == [1, 2, 3]
    array = np.arange(1 << 20, dtype=np.float32)
    assert np.array_equal(gateway.post_binary("identity", array).array, array)


def test_services_may_be_started_in_any_order(stack, tmp_path):
    stack.broker().kill()  # only its address is wanted
    gateway = stack.gateway(wait=False)
    stack.stub_host(wait=False)
    gateway.wait_for_line("waiting for the broker")
    assert gateway.get("/v2/health/live").status == 200
    assert gateway.get("/v2/health/ready").status == 400
    stack.broker()
    ready(gateway, "identity")
    assert gateway.post("identity", [4]).data == [4]


def test_tensors_go_by_shared_memory_where_all_share_it_and_by_frames_where_not(stack, tmp_path):
    stack.broker()
    stack.stub_host()
    gateway = ready(stack.gateway(), "identity")
    gateway.post("identity", [1])
    eventually(lambda: 'tensorbus_gateway_requests_total{path="shm"} 1' in gateway.exposition())
    elsewhere = tmp_path / "shm"
    elsewhere.mkdir()
    subprocess.run(["true"], check=True)


def test_a_host_that_joins_takes_work_and_one_that_leaves_fails_nothing(repository, stack):
    repository.add("sleepy", SLEEPY)
    stack.broker()
    stack.stub_host()
    gateway = ready(stack.gateway(), "sleepy")
    load = Background(4, lambda: gateway.post("sleepy", [0.02]).data)
    second = stack.stub_host()
    eventually(lambda: second.stubs("sleepy"), 20)
    done = len(load.results)
    eventually(lambda: len(load.results) > done + 20)
    assert second.terminate() == 0
    done = len(load.results)
    eventually(lambda: len(load.results) > done + 20)
    load.stop()
    assert not gateway.lines("request failed")


def test_what_is_executed_is_executed_once_though_the_broker_dies(repository, stack):
    repository.add("counting", COUNTING)
    broker = stack.broker()
    stack.stub_host()
    gateway = ready(stack.gateway(), "counting")
    numbers = iter(range(1, 1_000_000))
    lock = threading.Lock()
    outcomes: dict[int, int] = {}

    def one() -> None:
        with lock:
            number = next(numbers)
        answer = gateway.post("counting", [number], timeout_s=30)
        assert answer.status != 200 or answer.data == [2 * number]
        outcomes[number] = answer.status

    load = Background(4, one)
    for _ in range(3):
        done = len(outcomes)
        eventually(lambda done=done: len(outcomes) > done + 50, 30)
        broker.kill()
        broker = stack.broker()
        since = time.monotonic()
        ready(gateway, "counting")
        assert time.monotonic() - since < 5
    load.stop()
    executed = [int(line) for line in (repository.path / "counting" / "executed").read_text().split()]
    assert len(executed) == len(set(executed)), "executed twice"
    assert {number for number, status in outcomes.items() if status == 200} <= set(executed)
    assert set(outcomes.values()) <= {200, 503}


LATE = COUNTING.replace(
    "def execute(self, requests):",
    "def execute(self, requests):\n    open(self.where + '/begun', 'w').close()\n"
    "    while not os.path.exists(self.where + '/go'): time.sleep(0.01)",
)


def test_what_was_answered_to_a_broker_that_died_with_the_answer_is_not_executed_again(repository, stack):
    """Nobody holds it any more, and nobody knows whether the gateway has it: it fails once."""
    repository.add("late", LATE)
    place = repository.path / "late"
    broker = stack.broker()
    host = stack.stub_host()
    gateway = ready(stack.gateway("--broker-timeout-secs=60"), "late")

    def said() -> str:
        return next(line for line in host.exposition() if 'direction="from_stubs"' in line)

    post = Background(1, lambda: gateway.post("late", [7], timeout_s=30), times=1)
    eventually((place / "begun").exists)
    broker.signal(signal.SIGSTOP)
    before = said()
    (place / "go").touch()
    eventually(lambda: said() != before)
    broker.kill()
    stack.broker()
    (answer,) = post.stop()
    assert (answer.status, "late" in answer.error) == (503, True)
    assert (place / "executed").read_text().split() == ["7"]
    assert ready(gateway, "late").post("late", [8], timeout_s=30).data == [16]


def test_a_broker_that_is_terminated_answers_what_it_has(repository, stack):
    repository.add("sleepy", SLEEPY)
    broker = stack.broker()
    stack.stub_host()
    gateway = ready(stack.gateway(), "sleepy")
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(gateway.post("sleepy", [1.0]).status))
    thread.start()
    eventually(lambda: gateway.get("/v2/models/sleepy/stats").status == 200)
    eventually(lambda: any("tensorbus_gateway_pending_requests 1" in line for line in gateway.exposition()))
    broker.signal(signal.SIGTERM)
    thread.join(20)
    assert answers == [200]
    assert broker.wait() == 0
