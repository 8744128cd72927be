"""Models that say themselves whether they are ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path

import pytest
import tritonclient.grpc

from tests.system.conftest import IDENTITY, Background, Repository, Server, Start, eventually

Flag = Callable[[str], Path]

NOT_READY = {"error": "Model version not ready"}


def model(body: str, kind: str = "def") -> str:
    return f"{IDENTITY}\n{kind} is_ready(self):\n    {body}\n"


def why(server: Server, model: str) -> list[str]:
    start = f"Model '{model}' version 1 is not ready: "
    return [line.split(start)[1].rstrip('"') for line in server.lines(start)]


def grpc_ready(server: Server, model: str = "") -> bool:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        return bool(client.is_model_ready(model) if model else client.is_server_ready())


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_ready_model_is_ready(repository: Repository, start: Start, kind: str) -> None:
    repository.add("asked", model("return True", kind))
    repository.add("never_asked")
    server = start()
    for name in ("asked", "never_asked", ""):
        for _ in range(3):
            assert server.ready(name) and grpc_ready(server, name)
    assert server.post("asked", [1.0]).data == [1.0]


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("return False", "Model 'm_0_0' is not ready (user-defined check failed)."),
        ("return 1", "is_ready() must return a boolean value"),
        ("return np.bool_(True)", "is_ready() must return a boolean value"),
        ("raise ValueError('no weights')", "ValueError: no weights"),
    ],
)
def test_any_other_model_is_not_but_serves(repository: Repository, start: Start, body: str, cause: str) -> None:
    repository.add("m", model(body))
    server = start()
    answer = server.get("/v2/models/m/ready")
    assert (answer.status, answer.json) == (400, NOT_READY)
    assert server.get("/v2/models/m/versions/1/ready").status == 400
    assert not grpc_ready(server, "m")
    assert server.get("/v2/health/ready").status == 400 and not grpc_ready(server)
    causes = why(server, "m")
    assert len(causes) == 5 and all(text.startswith(cause) for text in causes)
    assert server.post("m", [1.0]).data == [1.0]


def test_without_strict_readiness_the_server_does_not_ask(repository: Repository, start: Start) -> None:
    repository.add("m", model("return False"))
    server = start("--strict-readiness=false")
    assert server.ready() and grpc_ready(server)
    assert why(server, "m") == []


def test_a_model_may_become_ready(repository: Repository, start: Start, flag: Flag) -> None:
    repository.add("m", model(f"return os.path.exists({str(flag('warm'))!r})"))
    server = start()
    assert not server.ready("m")
    flag("warm").touch()
    assert server.ready("m") and server.ready()


def test_a_busy_model_is_asked_all_the_same(repository: Repository, start: Start, flag: Flag) -> None:
    code = f"""
    def execute(self, requests):
        open({str(flag("busy"))!r}, "w").close()
        wait_for({str(flag("go on"))!r})
        return [respond(request, values(request)) for request in requests]

    def is_ready(self):
        return True
    """
    repository.add("m", code)
    server = start()
    work = Background(1, lambda: server.post("m", [1.0]).data, times=1)
    eventually(flag("busy").exists)
    assert server.ready("m") and grpc_ready(server, "m") and server.ready()
    flag("go on").touch()
    assert work.stop() == [[1.0]]


def test_who_asks_meanwhile_shares_the_answer(repository: Repository, start: Start, flag: Flag) -> None:
    body = f"open({str(flag('calls'))!r}, 'a').write('x'); wait_for({str(flag('go on'))!r}); return True"
    repository.add("m", model(body), instances=2)
    server = start()
    sockets = [server.connect() for _ in range(16)]
    for each in sockets:
        each.sendall(b"GET /v2/models/m/ready HTTP/1.1\r\nHost: x\r\n\r\n")
    with server.connect() as last:  # its answer comes after all of those have been read
        last.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert last.recv(100).startswith(b"HTTP/1.1 200 ")
    eventually(flag("calls").exists)
    flag("go on").touch()
    for each in sockets:
        with each:
            response = HTTPResponse(each)
            response.begin()
            assert response.status == 200
    assert flag("calls").read_text() == "xx"  # once for each instance


def test_nobody_waits_longer_than_five_seconds(repository: Repository, start: Start, flag: Flag) -> None:
    repository.add("m", model(f"wait_for({str(flag('go on'))!r}); return True"))
    server = start()
    begun = time.monotonic()
    assert not server.ready("m")
    assert 4.9 < time.monotonic() - begun < 7
    assert why(server, "m") == ["Timed out waiting for user-defined is_ready() response"]
    assert server.post("m", [1.0]).data == [1.0]
    late = Background(1, lambda: server.ready("m"), times=1)
    flag("go on").touch()
    assert late.stop() == [True]
    assert server.ready("m")


def test_a_model_that_dies_while_it_is_asked_is_not_ready_until_it_is_back(
    repository: Repository, start: Start, flag: Flag
) -> None:
    body = f"open({str(flag('asked'))!r}, 'a').close(); wait_for({str(flag('go on'))!r}); return True"
    repository.add("m", model(body))
    server = start()
    asking = Background(1, lambda: server.ready("m"), times=1)
    eventually(flag("asked").exists)
    server.stub("m").kill()
    assert asking.stop() == [False]
    assert "Stub process 'm_0_0' is not healthy." in why(server, "m")
    flag("go on").touch()
    eventually(lambda: server.ready("m"))


def test_a_server_ends_while_a_model_thinks_about_it(repository: Repository, start: Start, flag: Flag) -> None:
    repository.add("m", model(f"open({str(flag('asked'))!r}, 'a').close(); wait_for('/never'); return True"))
    server = start()
    with server.connect() as client:
        client.sendall(b"GET /v2/models/m/ready HTTP/1.1\r\nHost: x\r\n\r\n")
        eventually(flag("asked").exists)
        assert server.terminate(15) == 0


CALLER = """
def execute(self, requests):
    responses = []
    for request in requests:
        call = pb_utils.InferenceRequest(model_name="m", requested_output_names=["OUT"], inputs=request.inputs())
        answer = call.exec()
        if answer.has_error():
            text = f"{answer.error().message()} | {pb_utils.is_model_ready('m')}"
            responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(text)))
        else:
            responses.append(respond(request, answer.output_tensors()[0].as_numpy()))
    return responses
"""


def test_a_model_that_is_not_ready_cannot_be_called_by_others(repository: Repository, start: Start, flag: Flag) -> None:
    repository.add("m", model(f"return os.path.exists({str(flag('warm'))!r})"))
    repository.add("caller", CALLER)
    server = start()
    assert server.post("caller", [1.0]).error == (
        "Model m - Error when running inference: Failed for execute the inference request. Model 'm' is not ready. "
        "| False"
    )
    flag("warm").touch()
    assert server.post("caller", [1.0]).data == [1.0]
