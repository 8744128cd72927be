"""SIGTERM and SIGINT: the door closes first, what is inside is answered, nothing stays behind."""

from __future__ import annotations

import http.client
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tests.system.conftest import Answer, Background, Repository, Server, Start, eventually, json_request

STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"
GRPC_STOPPING = "GRPC server is shutting down and has stopped accepting new requests."

SLOW = """
def execute(self, requests):
    time.sleep({seconds})
    return [respond(request, values(request)) for request in requests]
"""

GATED = """
def execute(self, requests):
    open({inside!r}, "w").close()
    wait_for({gate!r})
    return [respond(request, values(request)) for request in requests]

def finalize(self):
    with open({finalized!r}, "a") as file:
        file.write("x")
"""


class Gate:
    """A model "gated", whose execute does not return before ``open`` is called."""

    def __init__(self, repository: Repository, folder: Path) -> None:
        paths = {name: folder / name for name in ("inside", "gate", "finalized")}
        self._inside, self._gate, self._finalized = paths.values()
        repository.add("gated", GATED.format(**{name: str(path) for name, path in paths.items()}))

    def wait_for_a_request(self) -> None:
        eventually(self._inside.exists)

    def open(self) -> None:
        self._gate.touch()

    @property
    def finalized(self) -> int:
        """How many instances were."""
        return len(self._finalized.read_text())


@pytest.fixture
def gate(repository: Repository, tmp_path: Path) -> Gate:
    return Gate(repository, tmp_path)


class Client(http.client.HTTPConnection):
    """A connection that was open before the server was told to stop."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.http, timeout=30)
        self.connect()

    def send_request(self, path: str, body: bytes = b"") -> None:
        self.request("POST" if body else "GET", path, body)

    def begin_request(self, path: str, body: bytes = b"") -> None:
        """All but the end of the header."""
        self.putrequest("POST" if body else "GET", path)
        self.putheader("Content-Length", str(len(body)))
        self._late_body = body
        assert self.sock is not None
        self.sock.sendall(b"\r\n".join(self._buffer) + b"\r\n")  # type: ignore[attr-defined]
        self._buffer.clear()  # type: ignore[attr-defined]

    def end_request(self) -> None:
        self.endheaders(self._late_body)

    def answer(self) -> Answer:
        response = self.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def grpc_infer(client: Any, value: float) -> float:
    tensor = tritonclient.grpc.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.array([value], np.float32))
    return float(client.infer("gated", [tensor]).as_numpy("OUT")[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_in_flight_and_in_the_queue_is_answered(
    repository: Repository, start: Start, gate: Gate, number: signal.Signals
) -> None:
    server = start()
    clients = [Client(server) for _ in range(8)]
    for value, client in enumerate(clients):
        client.send_request("/v2/models/gated/infer", json_request([float(value)]))
    eventually(lambda: server.pending("gated") == 7)

    server.signal(number)
    eventually(lambda: server.lines(f"Signal ({int(number)}) received."))
    assert server.process.poll() is None
    gate.open()
    for value, client in enumerate(clients):
        assert client.answer().data == [value]
    assert server.wait() == 0
    assert gate.finalized == 1
    told = ["Waiting for in-flight requests to complete.", "Found 1 model versions that have in-flight inferences"]
    told += ["Model 'gated' (version 1) has 8 in-flight inferences", "All models are stopped, unloading models"]
    told += ["live models and 0 in-flight non-inference requests"]
    assert [line for line in told if not server.lines(line)] == []


def test_the_door_closes_before_the_models_go(repository: Repository, start: Start, gate: Gate) -> None:
    """Requests got 'unknown model' for seconds while the port was open, and load balancers kept sending."""
    repository.add("idle")
    server = start()
    inside, probe, to_gated, to_idle = (Client(server) for _ in range(4))
    inside.send_request("/v2/models/gated/infer", json_request([1.0]))
    gate.wait_for_a_request()
    probe.begin_request("/v2/health/ready")
    to_gated.begin_request("/v2/models/gated/infer", json_request([2.0]))
    to_idle.begin_request("/v2/models/idle/infer", json_request([3.0]))
    assert server.ready()

    server.signal(signal.SIGTERM)
    eventually(lambda: server.lines("Waiting for in-flight requests to complete."))
    assert ready_status(server) in (None, 503)
    for late in (probe, to_gated, to_idle):
        late.end_request()
    answer = probe.answer()
    assert (answer.status, answer.error) == (503, "Server exiting")
    for late in (to_gated, to_idle):
        answer = late.answer()
        assert (answer.status, answer.error) == (503, STOPPING)
    gate.open()
    assert inside.answer().data == [1.0]
    assert server.wait() == 0


def ready_status(server: Server) -> int | None:
    """What a new connection is told; None if it is refused."""
    probe = http.client.HTTPConnection(server.http, timeout=5)
    try:
        probe.request("GET", "/v2/health/ready")
        return probe.getresponse().status
    except OSError:
        return None


def test_clients_in_a_loop_see_no_unknown_model(repository: Repository, start: Start) -> None:
    repository.add("slow", SLOW.format(seconds=0.2), instances=2)
    server = start()

    def ask() -> str:
        try:
            answer = server.post("slow", [1.0])
        except OSError as error:
            stopped.wait(0.01)
            return type(error).__name__
        return f"{answer.status} {'' if answer.status == 200 else answer.error}"

    stopped = threading.Event()
    background = Background(8, ask)
    eventually(lambda: background.results.count("200 ") >= 8)
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    results = background.stop()
    allowed = {"200 ", f"503 {STOPPING}", "ConnectionRefusedError", "ConnectionResetError", "RemoteDisconnected"}
    assert set(results) <= allowed
    begun = results.index(next(result for result in results if result != "200 "))
    assert results[:begun].count("200 ") == begun


def test_over_grpc_the_running_call_is_answered_and_a_new_one_is_refused(start: Start, gate: Gate) -> None:
    server = start()
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        running = Background(1, lambda: grpc_infer(client, 1.0), times=1)
        gate.wait_for_a_request()
        server.signal(signal.SIGTERM)
        eventually(lambda: not client.is_server_ready())
        with pytest.raises(InferenceServerException) as caught:
            grpc_infer(client, 2.0)
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
        assert caught.value.message() == GRPC_STOPPING
        gate.open()
        assert running.stop() == [1.0]
    assert server.wait() == 0


def test_idle_connections_do_not_hold_up_the_exit(repository: Repository, start: Start) -> None:
    repository.add("ident")
    server = start()
    idle = [Client(server) for _ in range(5)]
    used = Client(server)
    used.send_request("/v2/health/live")
    assert used.answer().status == 200
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        assert client.is_server_live()
        client.start_stream(lambda result, error: None)
        began = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - began < 5
    for connection in (*idle, used):
        connection.close()


def test_a_client_that_never_ends_its_request_does_not_hold_up_the_exit_for_ever(
    repository: Repository, start: Start
) -> None:
    repository.add("ident")
    server = start("--exit-timeout-secs=2")
    half = Client(server)
    half.putrequest("POST", "/v2/models/ident/infer")
    half.putheader("Content-Length", "1000")
    half.endheaders(b"{")
    began = time.monotonic()
    assert server.terminate() in (0, 1)
    assert time.monotonic() - began < 5
    half.close()


def test_when_the_time_is_over_it_exits_with_1(start: Start, gate: Gate) -> None:
    server = start("--exit-timeout-secs=2")
    client = Client(server)
    client.send_request("/v2/models/gated/infer", json_request([1.0]))
    gate.wait_for_a_request()
    began = time.monotonic()
    assert server.terminate() == 1
    assert 1.5 < time.monotonic() - began < 5
    assert server.lines("failed to stop server: Internal - Exit timeout expired. Exiting immediately.")
    assert server.lines("Found 1 model versions that have in-flight inferences")
    assert server.lines("Model 'gated' (version 1) has 1 in-flight inferences")
    client.close()


def test_a_finalize_that_hangs_is_cut_off(repository: Repository, start: Start) -> None:
    repository.add("hangs", "def finalize(self):\n    time.sleep(60)")
    server = start("--exit-timeout-secs=1")
    began = time.monotonic()
    assert server.terminate() == 1
    assert time.monotonic() - began < 5


def test_a_finalize_that_raises_is_logged_and_no_reason_to_fail(repository: Repository, start: Start) -> None:
    repository.add("raises", "def finalize(self):\n    raise ValueError('not now')")
    server = start()
    assert server.terminate() == 0
    assert server.lines("raises_0_0", "ValueError: not now")


def test_every_instance_is_finalized(repository: Repository, start: Start, flag: Callable[[str], Path]) -> None:
    code = f"def finalize(self):\n    open({str(flag('finalized'))!r}, 'a').write('x')"
    repository.add("one", code, instances=3)
    repository.add("two", code)
    server = start()
    assert server.terminate() == 0
    assert flag("finalized").read_text() == "xxxx"


def test_a_second_signal_ends_it_at_once(start: Start, gate: Gate) -> None:
    server = start()
    client = Client(server)
    client.send_request("/v2/models/gated/infer", json_request([1.0]))
    gate.wait_for_a_request()
    server.signal(signal.SIGTERM)
    eventually(lambda: server.lines("Signal (15) received."))
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait(5) == 1
    assert time.monotonic() - began < 2
    client.close()


def test_a_signal_while_models_load_ends_it(repository: Repository, start: Start, flag: Callable[[str], Path]) -> None:
    repository.add("ident")
    repository.add("slow", f"def initialize(self, args):\n    wait_for({str(flag('never'))!r})")
    server = start(wait=False)
    eventually(lambda: server.lines("successfully loaded 'ident'"))
    began = time.monotonic()
    assert server.terminate() == 0
    assert time.monotonic() - began < 5


def test_metrics_answer_while_it_drains(start: Start, gate: Gate) -> None:
    server = start()
    client = Client(server)
    client.send_request("/v2/models/gated/infer", json_request([1.0]))
    gate.wait_for_a_request()
    server.signal(signal.SIGTERM)
    eventually(lambda: server.lines("Waiting for in-flight requests to complete."))
    assert server.pending("gated") == 0
    gate.open()
    assert client.answer().data == [1.0]
    assert server.wait() == 0


def test_the_port_can_be_used_again_at_once(repository: Repository, start: Start) -> None:
    repository.add("ident")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for _ in range(2):
        server = start(f"--http-port={port}")
        assert server.post("ident", [1.0]).data == [1.0]
        assert server.terminate() == 0
