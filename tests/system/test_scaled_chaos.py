"""Whatever of a scaled stack is killed, in whatever order: no answer is wrong, nobody hangs, and all comes back."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.conftest import Background, Repository, eventually
from tests.system.scaled_stack import ScaledStack, ready, scaled_stack

BACK_S = 5.0
TIMEOUT_S = 15.0

DOUBLE = """
def execute(self, requests):
    time.sleep(0.002)
    return [respond(request, values(request) * 2) for request in requests]
"""


class Chaos:
    """A stack of which each part is started again as soon as it is dead, as an orchestrator does."""

    def __init__(self, stack: ScaledStack) -> None:
        self.stack = stack
        self.broker = stack.broker()
        self.hosts = [stack.stub_host(), stack.stub_host()]
        self.gateways = [ready(stack.gateway(), "double") for _ in range(2)]
        self.slowest_s = 0.0
        self.retries = 0
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def kill_broker(self) -> None:
        self.broker.kill()
        self.broker = self.stack.broker()

    def kill_gateway(self, which: int) -> None:
        """Its successor is a new process at another port."""
        self.gateways[which].kill()
        self.gateways[which] = self.stack.gateway()

    def kill_host(self, which: int) -> None:
        self.hosts[which].kill()
        self.hosts[which] = self.stack.stub_host()

    def kill_stub(self, which: int) -> None:
        for stub in self.hosts[which].stubs("double")[:1]:
            stub.kill()

    def is_whole(self) -> bool:
        return all(len(host.stubs("double")) == 2 for host in self.hosts) and all(
            gateway.call("GET", "/v2/models/double/ready", timeout_s=TIMEOUT_S).status == 200
            for gateway in self.gateways
        )

    def request(self) -> int:
        """Idempotent: it is tried at one gateway after the other until it is answered. Returns how often it was."""
        with self._lock:
            number = next(self._numbers)
        for attempt in itertools.count(1):
            begun = time.monotonic()
            try:
                answer = self.gateways[(number + attempt) % 2].post("double", [number % 1000], timeout_s=TIMEOUT_S)
            except OSError:  # its gateway was killed
                answer = None
            self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            if answer is not None and answer.status == 200:
                assert answer.data == [2 * (number % 1000)], "a wrong answer"
                return attempt
            assert answer is None or answer.status in (500, 503, 404, 400), answer
            assert attempt < 200, "no end of it"
            time.sleep(0.05)
        raise AssertionError


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[Chaos]:
    repository = Repository(tmp_path / "models")
    repository.path.mkdir()
    repository.add("double", DOUBLE, instances=2)
    with scaled_stack(repository, tmp_path) as stack:
        yield Chaos(stack)


@pytest.mark.timeout(900)
def test_everything_comes_back_whatever_is_killed(chaos):
    each = int(os.environ.get("TENSORBUS_KILLS_OF_EACH", "2"))
    kills = [chaos.kill_broker] * each
    kills += [lambda n=n: chaos.kill_gateway(n % 2) for n in range(each)]
    kills += [lambda n=n: chaos.kill_host(n % 2) for n in range(each)]
    kills += [lambda n=n: chaos.kill_stub(n % 2) for n in range(each)]
    random.Random(7).shuffle(kills)
    load = Background(4, chaos.request)
    back: list[float] = []
    for kill in kills:
        done = len(load.results)
        eventually(lambda done=done: len(load.results) > done + 20, 20)
        kill()
        begun = time.monotonic()
        eventually(chaos.is_whole, 60)
        back.append(time.monotonic() - begun)
    attempts = Counter(load.stop())
    assert attempts[1] > 20 * len(kills)
    assert chaos.slowest_s < TIMEOUT_S
    assert max(back) < BACK_S, back
