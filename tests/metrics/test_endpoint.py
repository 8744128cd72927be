import http.client
import shutil
import socket
import subprocess
from collections.abc import Iterator

import pytest

from metrics.endpoint import Health, MetricsEndpoint
from metrics.recorder import ModelRecorder, Recorder


@pytest.fixture
def recorder() -> Recorder:
    recorder = Recorder()
    recorder.add(ModelRecorder("m", 1))
    return recorder


@pytest.fixture
def endpoint(recorder: Recorder) -> Iterator[MetricsEndpoint]:
    endpoint = MetricsEndpoint(recorder, "127.0.0.1", 0, pinned_pool_bytes=7)
    endpoint.start()
    yield endpoint
    endpoint.close()


def ask(endpoint: MetricsEndpoint, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers["Content-Type"], body


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/metrics?name=x"])
def test_metrics_are_plain_text_with_and_without_a_slash(endpoint: MetricsEndpoint, path: str) -> None:
    status, content_type, body = ask(endpoint, path)
    assert (status, content_type) == (200, "text/plain; charset=utf-8")
    assert 'nv_inference_request_success{model="m",version="1"} 0\n' in body
    assert "nv_pinned_memory_pool_total_bytes 7\n" in body
    assert "nv_cpu_utilization " in body


def test_any_other_path_is_an_empty_200(endpoint: MetricsEndpoint) -> None:
    assert ask(endpoint, "/metric")[::2] == (200, "")


def test_health_is_what_the_service_says_of_itself(recorder: Recorder) -> None:
    said = {"live": True, "ready": False}
    endpoint = MetricsEndpoint(recorder, "127.0.0.1", 0, health=Health(lambda: said["live"], lambda: said["ready"]))
    endpoint.start()
    assert (ask(endpoint, "/health/live")[::2], ask(endpoint, "/health/ready")[::2]) == ((200, ""), (503, ""))
    said.update(live=False, ready=True)
    assert (ask(endpoint, "/health/live")[0], ask(endpoint, "/health/ready")[0]) == (503, 200)
    endpoint.close()


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE"])
def test_only_get_is_allowed(endpoint: MetricsEndpoint, method: str) -> None:
    assert ask(endpoint, "/metrics", method)[0] == 405


def test_a_scrape_sees_what_was_recorded_since_the_last(endpoint: MetricsEndpoint, recorder: Recorder) -> None:
    (model,) = recorder
    model.queued()
    assert 'nv_inference_pending_request_count{model="m",version="1"} 1\n' in ask(endpoint, "/metrics")[2]
    recorder.remove("m", 1)
    assert "nv_inference_" not in ask(endpoint, "/metrics")[2]


def test_silent_clients_do_not_keep_others_waiting(endpoint: MetricsEndpoint) -> None:
    silent = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(8)]
    assert ask(endpoint, "/metrics")[0] == 200
    for client in silent:
        client.close()


def test_a_flood_of_connections_is_cut_off(endpoint: MetricsEndpoint) -> None:
    flood = [socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) for _ in range(17)]
    assert flood[-1].recv(1) == b""
    for client in flood:
        client.close()


def test_cpu_metrics_can_be_left_out(recorder: Recorder) -> None:
    endpoint = MetricsEndpoint(recorder, "127.0.0.1", 0, cpu_metrics=False)
    endpoint.start()
    assert "nv_cpu_" not in ask(endpoint, "/metrics")[2]
    endpoint.close()


def test_a_port_in_use_is_an_os_error(endpoint: MetricsEndpoint, recorder: Recorder) -> None:
    with pytest.raises(OSError):
        MetricsEndpoint(recorder, "127.0.0.1", endpoint.port).start()


def test_the_port_is_free_after_close(recorder: Recorder) -> None:
    endpoint = MetricsEndpoint(recorder, "127.0.0.1", 0)
    endpoint.start()
    port = endpoint.port
    endpoint.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_parses_the_exposition(endpoint: MetricsEndpoint) -> None:
    body = ask(endpoint, "/metrics")[2]
    check = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, text=True, timeout=60)
    # 3: parsed, but names are not to its taste (counters without _total); they are Triton's.
    assert check.returncode in (0, 3), check.stderr
    assert "error while linting" not in check.stderr
