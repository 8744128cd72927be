"""An operator sees what failed: one line in the log, one count in the metrics, one in the statistics."""

from __future__ import annotations

import re
import time

import pytest

from tests.system.conftest import Answer, Repository, Server, Start, eventually, together

FAILING = """
def execute(self, requests):
    what = int(values(requests[0])[0])
    if what == 1:
        raise ValueError("broken inside")
    if what == 2:
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError("broken politely")) for _ in requests]
    if what == 3:
        os._exit(9)
    return [respond(request, values(request)) for request in requests]
"""
SECRET = 4242.125


@pytest.fixture
def server(repository: Repository, start: Start) -> Server:
    repository.add("m", FAILING)
    return start()


def fail(server: Server, what: int, request_id: str) -> Answer:
    return server.post("m", [float(what), SECRET], id=request_id)


def told_once(server: Server, request_id: str, *words: str) -> str:
    (line,) = eventually(lambda: server.lines(request_id), 2, "a line in the log")
    assert re.match("[EW]", line), line
    assert [word for word in words if word not in line] == []
    assert str(SECRET) not in line
    return line


def test_an_exception_is_logged_with_its_place_in_the_model(server: Server) -> None:
    """A failed inference left no trace in the log or the metrics."""
    assert fail(server, 1, "first").status == 500
    line = told_once(server, "first", "model=m", "version=1", "ValueError: broken inside")
    assert re.search(r"model\.py\(\d+\): execute", line)
    traceback, *_ = server.lines("ValueError: broken inside")
    assert server.lines("ValueError: broken inside") == [traceback, line]
    assert 'raise ValueError(\\"broken inside\\")' in traceback
    assert server.failures("m") == {"BACKEND": 1}
    assert server.statistics("m")["fail"]["count"] == 1


def test_an_error_response_is_logged(server: Server) -> None:
    answer = fail(server, 2, "second")
    assert (answer.status, answer.error) == (500, "broken politely")
    told_once(server, "second", "model=m", "version=1", "broken politely")
    assert server.failures("m") == {"BACKEND": 1}
    assert server.statistics("m")["fail"]["count"] == 1


def test_the_death_of_a_model_is_logged_with_the_request_inside(server: Server) -> None:
    assert fail(server, 3, "third").status == 500
    told_once(server, "third", "model=m", "version=1", "is not healthy")
    (line,) = eventually(lambda: server.lines("a stub process died"))
    assert "exit code 9" in line
    assert "m_0_0" in line
    assert server.failures("m") == {"BACKEND": 1}
    assert server.statistics("m")["fail"]["count"] == 1


def test_a_refused_request_is_logged_and_is_no_failure_of_the_model(server: Server) -> None:
    body = b'{"id":"fourth","inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'
    answer = server.call("POST", "/v2/models/m/infer", body)
    assert answer.status == 400
    told_once(server, "fourth", "model=m", "data-type")
    assert server.failures("m") == {}


def test_a_request_for_an_unknown_model_is_logged(server: Server) -> None:
    answer = server.post("nobody", [1.0], id="fifth")
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'nobody' is not found")
    assert eventually(lambda: server.lines("'nobody' is not found"), 2)


def test_a_client_that_leaves_is_counted(repository: Repository, start: Start) -> None:
    repository.add(
        "slow", "def execute(self, requests):\n    time.sleep(1)\n    return [respond(r, values(r)) for r in requests]"
    )
    server = start()

    def leave() -> None:
        with pytest.raises(TimeoutError):
            server.post("slow", [1.0], timeout_s=0.2)

    together(3, [leave] * 3)
    eventually(lambda: server.failures("slow") == {"CANCELED": 2}, 5)


def test_a_flood_of_failures_is_not_a_flood_of_lines(server: Server) -> None:
    began = time.monotonic()
    answers = together(4, [lambda: fail(server, 1, "flood")] * 2000)
    assert {answer.status for answer in answers} == {500}
    seconds = time.monotonic() - began
    assert len(server.lines("broken inside")) < 20 + 10 * seconds
    assert server.failures("m") == {"BACKEND": 2000}
    assert server.statistics("m")["fail"]["count"] == 2000
    eventually(lambda: fail(server, 1, "later") and server.lines("suppressed="))


def test_what_a_model_logs_is_in_the_log_with_its_place(repository: Repository, start: Start) -> None:
    code = """
    def execute(self, requests):
        pb_utils.Logger.log_warn("low on luck")
        print("said aloud", flush=True)
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("m", code)
    server = start()
    server.post("m", [1.0])
    (line,) = eventually(lambda: server.lines("low on luck"))
    assert re.match(r"W.* model\.py:\d+\] ", line)
    eventually(lambda: server.lines("said aloud"))
