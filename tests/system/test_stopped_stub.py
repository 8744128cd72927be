"""A stub that does not run for a while (a stopped process, an overloaded machine) is busy, not dead."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.system.conftest import Background, Repository, Start, eventually
from tests.system.grpc_stream import DECOUPLED, Answer, streaming

STOPPED_S = 3.0
STREAMING = """
def execute(self, requests):
    import threading
    for request in requests:
        threading.Thread(target=self.send_all, args=[request]).start()
def send_all(self, request):
    sender = request.get_response_sender()
    for number in range(200):
        sender.send(respond(request, values(request) + number))
        time.sleep(0.002)
    sender.send(flags=1)
"""


@pytest.fixture
def stop_for_a_while():
    def stop(stub: psutil.Process) -> None:
        stub.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        stub.send_signal(signal.SIGCONT)

    return stop


def test_every_request_gets_its_own_answer_afterwards(repository: Repository, start: Start, stop_for_a_while) -> None:
    repository.add("m")
    server = start()
    numbers = iter(range(1_000_000))

    def post() -> bool:
        number = float(next(numbers))
        return server.post("m", [number]).data == [number]

    running = Background(8, post)
    stub = server.stub("m")
    stop_for_a_while(stub)
    before = len(running.results)
    eventually(lambda: len(running.results) >= before + 100)
    assert all(running.stop())
    assert server.stub("m") == stub
    assert not server.failures("m")


def test_what_comes_after_a_long_while_is_served_afterwards(repository: Repository, start: Start) -> None:
    repository.add("m")
    server = start()
    assert server.post("m", [1.0]).data == [1.0]
    stub = server.stub("m")
    stub.send_signal(signal.SIGSTOP)
    time.sleep(2 * STOPPED_S)
    with ThreadPoolExecutor() as pool:
        late = pool.submit(server.post, "m", [2.0])
        time.sleep(0.5)
        stub.send_signal(signal.SIGCONT)
        assert late.result(timeout=20).data == [2.0]
    assert server.stub("m") == stub


def test_streams_go_on_afterwards(repository: Repository, start: Start, stop_for_a_while) -> None:
    repository.add("m", STREAMING, config=DECOUPLED % 1)
    server = start()
    with streaming(server) as stream:
        for number in range(4):
            stream.send("m", [number * 1000.0], request_id=str(number))
        answers = [stream.next() for _ in range(20)]
        stop_for_a_while(server.stub("m"))
        answers += [stream.next() for _ in range(4 * 201 - 20)]
    for number in range(4):
        ours = [answer for answer in answers if answer.id == str(number)]
        assert [answer.data for answer in ours[:-1]] == [[number * 1000.0 + offset] for offset in range(200)]
        assert ours[-1] == Answer(None, final=True, id=str(number))
