"""``tensorbus.Server``: a whole server in this very process, and what it leaves behind: nothing."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import tensorbus
from tensorbus import InferenceError, Server, ServerError, Tensor
from tests.system.conftest import SHM, Repository, eventually

X, Y = Tensor("x", np.float32), Tensor("y", np.float32)
STREAM = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for value in values(request):
            if value < 0:
                while not sender.is_cancelled():
                    time.sleep(0.001)
                open(os.path.join(os.path.dirname(__file__), "cancelled"), "w").close()
                break
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.float32([value]))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = """
backend: "python"
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }]
model_transaction_policy { decoupled: true }
"""


def left() -> tuple[Any, ...]:
    process = psutil.Process()
    segments = [name for name in os.listdir(SHM) if name.startswith(f"tensorbus-{os.getpid()}-")]
    threads = [thread.name for thread in threading.enumerate() if "tensorbus" in thread.name]
    return process.children(recursive=True), segments, threads


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield
    eventually(lambda: not any(left()), what=str(left()))
    assert not list(temporary.iterdir())


def local(**settings: Any) -> dict[str, Any]:
    return {"http_port": 0, "http_address": "127.0.0.1", **settings}


def ones(*values: float) -> dict[str, Any]:
    return {"IN": np.float32(values)}


def test_models_of_a_repository_answer_from_python(repository: Repository) -> None:
    repository.add("m", "def execute(self, requests): return [respond(r, values(r) * 2) for r in requests]")
    with Server(repository.path) as server:
        assert server.ready()
        assert server.ready("m")
        assert server.http_port is server.grpc_port is server.metrics_port is None
        assert server.infer("m", ones(1, 2))["OUT"].tolist() == [2, 4]
        assert server.infer("m", ones(3), ["OUT"], version=1, request_id="mine")["OUT"].tolist() == [6]


def test_a_refused_request_and_a_failed_one_raise_the_clients_text(repository: Repository) -> None:
    repository.add("m", "def execute(self, requests): raise ValueError('no luck')")
    with Server(str(repository.path)) as server:
        with pytest.raises(InferenceError, match="unknown model: 'none' is not found") as refused:
            server.infer("none", ones(1))
        assert refused.value.kind == "NOT_FOUND"
        with pytest.raises(InferenceError, match="data-type is 'INT8'") as refused:
            server.infer("m", {"IN": np.int8([1])})
        assert refused.value.kind == "INVALID_ARG"
        with pytest.raises(InferenceError, match="ValueError: no luck\n\nAt:\n") as failed:
            server.infer("m", ones(1))
        assert failed.value.kind == "INTERNAL"
        with pytest.raises(ServerError, match="'none'"):
            server.ready("none")


def test_fronts_serve_the_same_models(repository: Repository) -> None:
    repository.add("m")
    with Server(repository.path, **local(metrics_port=0)) as server:
        server.infer("m", ones(1))
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/v2/models/m/stats") as answer:
            (stats,) = json.load(answer)["model_stats"]
        assert stats["inference_count"] == 1
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as answer:
            assert b'nv_inference_count{model="m",version="1"} 1' in answer.read()


def test_responses_of_a_decoupled_model_come_one_by_one(repository: Repository) -> None:
    folder = repository.add("s", STREAM, config=DECOUPLED)
    with Server(repository.path) as server:
        assert [response["OUT"].tolist() for response in server.stream("s", ones(1, 2, 3))] == [[1], [2], [3]]
        assert list(server.stream("s", ones())) == []
        with pytest.raises(InferenceError, match=r"use stream\(\)"):
            server.infer("s", ones(1))
        responses = server.stream("s", ones(1, -1))
        assert next(responses)["OUT"].tolist() == [1]
        responses.close()
        eventually((folder / "cancelled").exists)


def test_a_timeout_cancels(repository: Repository) -> None:
    folder = repository.add("s", STREAM, config=DECOUPLED)
    with Server(repository.path) as server:
        responses = server.stream("s", ones(-1), timeout_s=0.1)
        with pytest.raises(TimeoutError):
            next(responses)
        eventually((folder / "cancelled").exists)


def test_models_are_loaded_and_unloaded(repository: Repository) -> None:
    folder = repository.add("m")
    with Server(repository.path, model_control_mode="explicit") as server:
        with pytest.raises(InferenceError):
            server.infer("m", ones(1))
        server.load("m")
        assert server.infer("m", ones(1))["OUT"].tolist() == [1]
        (folder / "model.py").write_text("nonsense(")
        with pytest.raises(ServerError, match="SyntaxError"):
            server.load("m")
        assert server.infer("m", ones(1))["OUT"].tolist() == [1]
        server.unload("m")
        with pytest.raises(InferenceError):
            server.infer("m", ones(1))


def test_what_cannot_start_raises_and_leaves_nothing(repository: Repository) -> None:
    repository.add("m", "def initialize(self, args): raise ValueError('no luck')")
    with pytest.raises(ServerError, match="failed to load all models"), Server(repository.path):
        pass
    with pytest.raises(ServerError, match="failed to stat"), Server(repository.path / "nowhere"):
        pass
    with Server(**local()) as server, pytest.raises(ServerError, match="failed to start HTTP service"):
        Server(**local(http_port=server.http_port)).start()
    with pytest.raises(ValueError, match=r"\"--grpc-port\"\.\nProvided option value is out of bound\. Got 70000"):
        Server(repository.path, grpc_port=70000)
    with pytest.raises(TypeError):
        Server(nonsense=1)


def test_servers_come_and_go_without_a_trace() -> None:
    counts = []
    for _ in range(3):
        with Server(**local(grpc_port=0, grpc_address="127.0.0.1")) as server:
            server.bind("f", lambda x: x, [X], [Y])
            server.infer("f", {"x": np.float32([1])})
        gc.collect()
        counts.append(psutil.Process().num_fds())
    assert counts[1] == counts[2]


# --- functions ------------------------------------------------------------------------------------------------------


def test_a_function_is_a_model_for_python_and_for_http() -> None:
    def both(x: Any, y: Any) -> tuple[Any, Any]:
        return x + y, x - y

    server = Server(**local())
    server.bind("both", both, [X, Y], [Tensor("sum", "FP32"), Tensor("difference", "FP32")])
    with server:
        results = server.infer("both", {"y": np.float32([1]), "x": np.float32([3])})
        assert {name: array.tolist() for name, array in results.items()} == {"sum": [4], "difference": [2]}
        inputs = [{"name": name, "datatype": "FP32", "shape": [1], "data": [2]} for name in "xy"]
        url = f"http://127.0.0.1:{server.http_port}/v2/models/both"
        with urllib.request.urlopen(f"{url}/infer", json.dumps({"inputs": inputs}).encode()) as answer:
            assert [output["data"] for output in json.load(answer)["outputs"]] == [[4], [0]]
        with urllib.request.urlopen(f"{url}/stats") as answer:
            assert json.load(answer)["model_stats"][0]["inference_count"] == 2


def test_a_function_is_called_with_a_batch_of_what_waits_together() -> None:
    sizes = []
    gate = threading.Event()

    def upper(text: Any) -> Any:
        gate.wait(30)
        sizes.append(len(text))
        return np.char.upper(text.astype("S")).astype(object)

    with Server() as server, ThreadPoolExecutor(8) as pool:
        server.bind("upper", upper, [Tensor("text", bytes, [1])], [Tensor("text", bytes, [1])], batch=8)
        jobs = [pool.submit(server.infer, "upper", {"text": np.array([[f"t{i}"]])}) for i in range(8)]
        gate.set()
        assert [job.result(30)["text"].tolist() for job in jobs] == [[[f"T{i}".encode()]] for i in range(8)]
        assert sum(sizes) == 8
        with pytest.raises(InferenceError, match="batch-size must be <= 8"):
            server.infer("upper", {"text": np.full((9, 1), "x")})


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: 1 / 0, "ZeroDivisionError"),
        (lambda x: x.astype(np.int8), "output 'y' of function 'f' is to be FP32, not int8"),
        (lambda x: (x, x), "returned 2 arrays, not 1"),
        (lambda x: {"z": x}, "returned no 'y'"),
    ],
)
def test_what_a_function_does_wrong_is_told(function: Any, text: str) -> None:
    with Server() as server:
        server.bind("f", function, [X], [Y])
        with pytest.raises(InferenceError, match=text):
            server.infer("f", {"x": np.float32([1])})


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"parameters": {"p": object()}}, InferenceError),
        ({"parameters": {"p": "\ud800"}}, InferenceError),
        ({"request_id": 5}, InferenceError),
        ({"outputs": [5]}, InferenceError),
        ({"model": ["f"]}, TypeError),
        ({"version": "1"}, TypeError),
    ],
)
def test_what_no_client_could_send_is_refused_and_nobody_waits(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    inputs = {"x": np.float32([1])}
    with Server() as server:
        server.bind("f", lambda x: x, [X], [Y])
        with pytest.raises(error):
            server.infer(**{"model": "f", "inputs": inputs, "timeout_s": 20, **arguments})
        with pytest.raises(TypeError):
            server.ready(["f"])  # type: ignore[arg-type]
        assert server.infer("f", inputs, parameters={"n": np.int64(3)}, timeout_s=20)["y"].tolist() == [1]


@pytest.mark.parametrize("returned", [[1, 2], (np.float32([1, 2]),), {"y": [1, 2], "more": 0}])
def test_a_function_may_return_arrays_lists_tuples_and_dicts(returned: Any) -> None:
    with Server() as server:
        server.bind("f", lambda x: returned, [X], [Y])
        assert server.infer("f", {"x": np.float32([1])})["y"].tolist() == [1, 2]


def test_a_function_may_keep_what_it_was_given() -> None:
    kept: list[Any] = []

    def keep(x: Any) -> Any:
        kept.append(x)
        return x

    with Server() as server:
        server.bind("keep", keep, [X], [Y])
        for value in range(20):
            server.infer("keep", {"x": np.full(1000, value, np.float32)})
        assert [array[0] for array in kept] == [*range(20)]
    assert [array[0] for array in kept] == [*range(20)]
    kept.clear()


def test_names_are_taken_once(repository: Repository) -> None:
    repository.add("m")
    with Server(repository.path) as server:
        with pytest.raises(ServerError, match="there is a model 'm' already") as refused:
            server.bind("m", lambda x: x, [X], [Y])
        assert refused.value.kind == "ALREADY_EXISTS"
        with pytest.raises(ServerError, match="no datatype stands for"):
            server.bind("c", lambda x: x, [Tensor("x", np.complex64)], [Y])

        async def later(x: Any) -> Any:
            return x

        with pytest.raises(ServerError, match="is async"):
            server.bind("later", later, [X], [Y])


def test_two_servers_live_side_by_side() -> None:
    with Server() as one, Server() as other:
        one.bind("f", lambda x: x + 1, [X], [Y])
        other.bind("f", lambda x: x + 2, [X], [Y])
        assert one.infer("f", {"x": np.float32([0])})["y"].tolist() == [1]
        assert other.infer("f", {"x": np.float32([0])})["y"].tolist() == [2]


def test_a_server_that_does_not_run_says_so() -> None:
    server = Server()
    for _ in range(2):
        with pytest.raises(ServerError, match="does not run"):
            server.ready()
        with pytest.raises(InferenceError, match="does not run"):
            server.infer("f", {})
        with pytest.raises(ServerError, match="does not run"):
            assert server.http_port
        if server._thread is None:
            server.start()
            server.stop()
            server.stop()
    with pytest.raises(RuntimeError, match="starts once"):
        server.start()


def test_a_function_that_never_returns_does_not_hold_up_the_end() -> None:
    gate, inside = threading.Event(), threading.Event()

    def hang(x: Any) -> Any:
        inside.set()
        gate.wait(60)
        return x

    with ThreadPoolExecutor(1) as pool:
        with Server(exit_timeout_secs=1) as server:
            server.bind("hang", hang, [X], [Y])
            for number in range(20):  # that are told to finish only when it returns
                server.bind(f"idle_{number}", lambda x: x, [X], [Y])
            job = pool.submit(server.infer, "hang", {"x": np.float32([1])})
            inside.wait(30)
            begun = time.monotonic()
        assert time.monotonic() - begun < 20
        with pytest.raises(InferenceError, match="the server has ended"):
            job.result(30)
        gate.set()


def test_nothing_is_imported_that_is_not_used() -> None:
    assert "Server" in tensorbus.__all__
    with pytest.raises(AttributeError):
        tensorbus.nothing  # noqa: B018
