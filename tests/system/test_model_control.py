"""Models loaded and unloaded at run time, by tritonclient and by plain HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio_client
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio_client
from tritonclient.utils import InferenceServerException

from tests.system.conftest import IDENTITY, PREAMBLE, Background, Repository, Server, Start, eventually

EXPLICIT = "--model-control-mode=explicit"
NOT_ALLOWED = "explicit model load / unload is not allowed if polling is enabled"

NUMBER = """
def execute(self, requests):
    return [respond(request, np.array([%s], np.float32)) for request in requests]
"""

SLOW = """
def execute(self, requests):
    open(%r, "w").close()
    wait_for(%r)
    return [respond(request, values(request)) for request in requests]
"""

CONFIG_JSON: dict[str, Any] = {
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}],
}


def code_of(methods: str) -> bytes:
    return (PREAMBLE + "\n".join("    " + line for line in methods.splitlines())).encode()


def change(directory: Path, methods: str) -> None:
    (directory / "model.py").write_bytes(code_of(methods))


def control(server: Server, what: str, model: str, **parameters: object) -> tuple[int, str]:
    """Status and error text, "" for none."""
    body = json.dumps({"parameters": parameters}).encode() if parameters else b""
    answer = server.call("POST", f"/v2/repository/models/{model}/{what}", body)
    return answer.status, "" if answer.status == 200 else answer.error


def load(server: Server, model: str, **parameters: object) -> tuple[int, str]:
    return control(server, "load", model, **parameters)


def unload(server: Server, model: str) -> tuple[int, str]:
    return control(server, "unload", model)


def state(server: Server, row: str) -> tuple[str, str]:
    found = server.index()[row]
    return found["state"], found.get("reason", "")


def unloaded(server: Server, row: str) -> bool:
    return state(server, row) == ("UNAVAILABLE", "unloaded")


# --- clients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [http_client, grpc_client])
def test_a_client_loads_and_unloads(repository: Repository, start: Start, kind: Any) -> None:
    repository.add("m")
    repository.add("other")
    server = start(EXPLICIT)
    client = kind.InferenceServerClient(server.http if kind is http_client else server.grpc)
    assert set(server.index()) == {"m:", "other:"} and server.ready()
    client.load_model("m")
    assert client.is_model_ready("m") and client.is_server_ready()
    assert server.post("m", [3.0]).data == [3.0]
    assert state(server, "m:1") == ("READY", "")
    client.unload_model("m")
    eventually(lambda: unloaded(server, "m:1"))
    assert client.is_server_ready() and not client.is_model_ready("m")
    with pytest.raises(InferenceServerException, match=r"failed to load 'nope', failed to poll from model repository"):
        client.load_model("nope")
    client.unload_model("nope")
    client.close()


@pytest.mark.parametrize("kind", [http_aio_client, grpc_aio_client])
def test_an_asynchronous_client_loads_and_unloads(repository: Repository, start: Start, kind: Any) -> None:
    repository.add("m", NUMBER % 1)
    server = start(EXPLICIT)

    async def talk() -> None:
        async with kind.InferenceServerClient(server.http if kind is http_aio_client else server.grpc) as client:
            await client.load_model("m")
            assert server.post("m", [0.0]).data == [1.0]
            await client.load_model("m", config=json.dumps(CONFIG_JSON), files={"file:2/model.py": code_of(NUMBER % 2)})
            assert server.post("m", [0.0]).data == [2.0]
            await client.unload_model("m", unload_dependents=True)

    asyncio.run(talk())
    eventually(lambda: unloaded(server, "m:2") and unloaded(server, "m:1"))


# --- which models there are -----------------------------------------------------------------------------------------


def test_only_the_models_named_are_loaded_at_the_start(repository: Repository, start: Start) -> None:
    for name in "abc":
        repository.add(name)
    server = start(EXPLICIT, "--load-model=a", "--load-model=c")
    assert set(server.index()) == {"a:1", "b:", "c:1"} and server.ready()
    assert server.lines("| startup_models_0", "| a ") and server.lines("| startup_models_1", "| c ")
    server = start(EXPLICIT, "--load-model=*")
    assert set(server.index()) == {"a:1", "b:1", "c:1"}


def test_a_model_named_that_is_not_there_fails_the_start(repository: Repository, start: Start) -> None:
    server = start(EXPLICIT, "--load-model=nope", wait=False)
    assert server.wait() == 1
    assert server.lines("failed to poll model 'nope': model not found in any model repository.")
    assert "error: creating server: Internal - failed to load all models" in server.text()
    server = start(EXPLICIT, "--load-model=nope", "--exit-on-error=false")
    assert not server.ready()
    repository.add("nope")
    assert load(server, "nope") == (200, "") and server.ready()


def test_the_log_tells_of_loads_and_unloads_in_the_words_of_the_original(repository: Repository, start: Start) -> None:
    repository.add("m")
    repository.add("bad", "def initialize(self, args):\n    raise ValueError('no weights')")
    server = start(EXPLICIT)
    assert [load(server, name)[0] for name in ("m", "bad", "nope")] == [200, 400, 500]
    assert unload(server, "m") == (200, "")
    eventually(lambda: server.lines("successfully unloaded"))
    words = re.compile(r'([IE])\d{4} .*\] "((?:loading|successfully|failed).*?)(?:\\n.*)?"')
    lines = [words.fullmatch(line) for line in server.text().splitlines()]
    assert [line.groups() for line in lines if line] == [
        ("I", "loading: m:1"),
        ("I", "successfully loaded 'm'"),
        ("I", "loading: bad:1"),
        ("E", "failed to load 'bad' version 1: Internal: ValueError: no weights"),
        ("E", "failed to load 'bad'"),
        ("E", "failed to poll model 'nope': model not found in any model repository."),
        ("I", "successfully unloaded 'm' version 1"),
    ]


def test_without_explicit_mode_nothing_is_loaded_on_request(repository: Repository, start: Start) -> None:
    repository.add("m")
    server = start()
    assert load(server, "m") == unload(server, "m") == (503, NOT_ALLOWED)
    client = grpc_client.InferenceServerClient(server.grpc)
    for call in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match=NOT_ALLOWED) as caught:
            call("m")
        assert caught.value.status() == "StatusCode.UNAVAILABLE"
    client.close()
    assert server.post("m", [1.0]).data == [1.0]


def test_the_index_follows_the_repository(repository: Repository, start: Start) -> None:
    server = start(EXPLICIT)
    assert server.index() == {}
    repository.add("m")
    assert set(server.index()) == {"m:"}
    assert load(server, "m") == (200, "")
    shutil.rmtree(repository.path / "m")
    assert load(server, "m") == (500, "failed to load 'm', failed to poll from model repository")
    assert server.post("m", [1.0]).data == [1.0] and set(server.index()) == {"m:1"}


# --- reload ---------------------------------------------------------------------------------------------------------


def test_a_changed_model_is_loaded_again_and_an_unchanged_one_is_not(repository: Repository, start: Start) -> None:
    directory = repository.add("m", NUMBER % 1)
    server = start(EXPLICIT, "--load-model=m")
    pid = server.stub("m").pid
    assert server.post("m", [0.0]).data == [1.0] and server.statistics("m")["success"]["count"] == 1
    assert load(server, "m") == (200, "") and server.stub("m").pid == pid
    change(directory, NUMBER % 2)
    assert load(server, "m") == (200, "")
    assert server.post("m", [0.0]).data == [2.0] and server.statistics("m")["success"]["count"] == 1
    assert server.metric("nv_inference_request_success", "m") == 1
    eventually(lambda: pid not in [process.pid for process in server.stubs("m")], 5, "the old stub has gone")


def test_a_reload_that_fails_leaves_the_old_serving(repository: Repository, start: Start) -> None:
    directory = repository.add("m", NUMBER % 1)
    server = start(EXPLICIT, "--load-model=m")
    change(directory, "def initialize(self, args):\n    raise ValueError('no weights')")
    for _ in range(2):  # what has failed is tried again
        status, text = load(server, "m")
        assert status == 400 and text.startswith(
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: ValueError: no weights\n\nAt:\n"
        )
        assert text.endswith(";\n")
    assert server.post("m", [0.0]).data == [1.0] and state(server, "m:1") == ("READY", "") and server.ready()
    (repository.path / "m" / "config.pbtxt").write_text("nonsense")
    assert load(server, "m") == (500, "failed to load 'm', failed to poll from model repository")
    assert server.post("m", [0.0]).data == [1.0]
    eventually(lambda: len(server.stubs()) == 1, 5, "the one that failed has gone")


def test_a_new_version_takes_over(repository: Repository, start: Start) -> None:
    one = repository.add("m", NUMBER % 1)
    server = start(EXPLICIT, "--load-model=m")
    two = one.parent / "2"
    two.mkdir()
    change(two, NUMBER % 2)
    assert load(server, "m") == (200, "")
    assert server.post("m", [0.0]).data == [2.0]
    eventually(lambda: unloaded(server, "m:1"))
    assert server.get("/v2/models/m/versions/1").status == 503
    assert server.get("/v2/models/m").json["versions"] == ["2"]


@pytest.mark.parametrize("versions", ["same", "new"])
def test_fifty_reloads_under_load_fail_no_request(repository: Repository, start: Start, versions: str) -> None:
    directory = repository.add("m", NUMBER % 0)
    server = start(EXPLICIT, "--load-model=m")
    clients = Background(8, lambda: server.post("m", [0.0]).data)
    for number in range(1, 51):
        if versions == "same":
            change(directory, NUMBER % number)
        else:
            old, directory = directory, directory.with_name(str(number + 1))
            directory.mkdir()
            change(directory, NUMBER % number)
            shutil.rmtree(old)
        assert load(server, "m") == (200, "")
        assert server.post("m", [0.0]).data == [number]
    results = clients.stop()  # raises for any that failed
    assert len(results) > 50 and {value for (value,) in results} <= set(range(51))
    eventually(lambda: len(server.stubs("m")) == 1, 10, "one stub is left")
    assert server.failures("m") == {} if versions == "same" else True


# --- unload ---------------------------------------------------------------------------------------------------------


def test_an_unload_waits_for_nobody_and_nobody_loses_an_answer(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    begun, go = flag("begun"), flag("go")
    repository.add("m", SLOW % (str(begun), str(go)))
    server = start(EXPLICIT, "--load-model=m")
    running = Background(1, lambda: server.post("m", [5.0]), times=1)
    eventually(begun.exists)
    assert unload(server, "m") == (200, "")
    assert state(server, "m:1") == ("UNLOADING", "")
    assert server.post("m", [1.0]).error == "Request for unknown model: 'm' has no available versions"
    answer = server.call("POST", "/v2/models/m/versions/1/infer")
    assert (answer.status, answer.error) == (503, "Request for unknown model: 'm' version 1 is not at ready state")
    assert server.get("/v2/models/m/stats").status == 400
    assert not [line for line in server.exposition() if 'model="m"' in line]
    # A hung execute holds up no other load, either.
    assert load(server, "m") == (200, "") and server.ready("m")
    go.touch()
    (answer,) = running.stop()
    assert answer.data == [5.0]
    eventually(lambda: len(server.stubs("m")) == 1, 5)
    eventually(lambda: server.lines("successfully unloaded 'm' version 1"))


def test_a_model_finalizes_when_it_is_unloaded(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    done = flag("finalized")
    repository.add("m", IDENTITY + f"\ndef finalize(self):\n    open({str(done)!r}, 'a').write('x')")
    server = start(EXPLICIT, "--load-model=m")
    assert unload(server, "m") == (200, "")
    eventually(lambda: unloaded(server, "m:1") and not server.stubs())
    assert done.read_text() == "x"


def test_a_crashed_model_can_be_unloaded_and_loaded(repository: Repository, start: Start) -> None:
    repository.add("m", "def execute(self, requests):\n    os.kill(os.getpid(), signal.SIGKILL)")
    server = start(EXPLICIT, "--load-model=m")
    assert "is not healthy" in server.post("m", [1.0]).error
    change(repository.path / "m" / "1", IDENTITY)
    assert unload(server, "m") == (200, "")
    assert load(server, "m") == (200, "")
    assert server.post("m", [1.0]).data == [1.0]


def test_a_model_that_never_comes_up_can_be_given_up(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    repository.add("m", IDENTITY + f"\ndef initialize(self, args):\n    wait_for({str(flag('never'))!r})")
    server = start(EXPLICIT)
    loading = Background(1, lambda: load(server, "m"), times=1)
    eventually(lambda: server.stubs("m"))
    assert unload(server, "m") == (200, "")
    assert loading.stop() == [(400, "load failed for model 'm': version 1 is at UNAVAILABLE state: unloaded;\n")]
    eventually(lambda: not server.stubs("m"))


def test_a_load_is_answered_when_the_server_stops(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    repository.add("m", IDENTITY + f"\ndef initialize(self, args):\n    wait_for({str(flag('never'))!r})")
    server = start(EXPLICIT)
    loading = Background(1, lambda: load(server, "m"), times=1)
    eventually(lambda: server.stubs("m"))
    assert server.terminate() == 0
    assert loading.stop() == [(503, "Server not ready")]


# --- what a request brings ------------------------------------------------------------------------------------------


def test_a_configuration_comes_with_the_request_and_stays(repository: Repository, start: Start) -> None:
    directory = repository.add("m")
    server = start(EXPLICIT, "--load-model=m")
    config = {**CONFIG_JSON, "parameters": {"k": {"string_value": "v"}}, "instanceGroup": [{"count": 2}]}
    assert load(server, "m", config=json.dumps(config)) == (200, "")
    assert server.get("/v2/models/m/config").json["parameters"] == {"k": {"string_value": "v"}}
    eventually(lambda: len(server.stubs("m")) == 2, 5)
    assert load(server, "m") == (200, "")
    assert server.get("/v2/models/m/config").json["parameters"] == {"k": {"string_value": "v"}}
    change(directory, NUMBER % 7)
    assert load(server, "m") == (200, "")
    assert server.get("/v2/models/m/config").json["parameters"] == {}
    assert server.post("m", [0.0]).data == [7.0]


@pytest.mark.parametrize(
    "config", ["", "nonsense", "[]", '{"nope": 1}', '{"max_batch_size": "x"}', '{"name": "other"}']
)
def test_a_malformed_configuration_keeps_the_old(repository: Repository, start: Start, config: str) -> None:
    repository.add("m", NUMBER % 1)
    server = start(EXPLICIT, "--load-model=m")
    pid = server.stub("m").pid
    assert load(server, "m", config=config) == (500, "failed to load 'm', failed to poll from model repository")
    assert server.post("m", [0.0]).data == [1.0] and server.stub("m").pid == pid


def test_files_come_with_the_request_and_go_with_the_model(repository: Repository, start: Start) -> None:
    repository.add("m", NUMBER % 1)
    server = start(EXPLICIT, "--load-model=m")
    client = grpc_client.InferenceServerClient(server.grpc)
    config = json.dumps(CONFIG_JSON)
    code = b"import helper\n" + code_of(NUMBER % "helper.number")
    for model in ("m", "new"):
        client.load_model(model, config=config, files={"file:7/model.py": code, "file:7/helper.py": b"number = 7"})
        assert server.post(model, [0.0]).data == [7.0]
    client.close()
    assert private(server) and all(stat.S_IMODE(os.stat(path).st_mode) == 0o700 for path in private(server))
    assert set(server.index()) == {"m:1", "m:7", "new:7"}
    # A plain load goes back to what the repository holds; of what it does not hold there is nothing to go back to.
    assert load(server, "m") == (200, "") and server.post("m", [0.0]).data == [1.0]
    assert load(server, "new")[0] == 500 and server.post("new", [0.0]).data == [7.0]
    assert unload(server, "new") == (200, "")
    eventually(lambda: not private(server), 5, "no directory of a request is left")
    assert load(server, "new")[0] == 500


def private(server: Server) -> list[Path]:
    """Directories made for loads."""
    return [path for path in server.temporary.glob("tensorbus-*/*") if path.is_dir() and path.name.startswith("tmp")]


def test_files_need_a_configuration(repository: Repository, start: Start) -> None:
    server = start(EXPLICIT)
    status, text = load(server, "new", **{"file:1/model.py": ""})
    assert (status, text) == (500, "failed to load 'new', failed to poll from model repository")
    assert server.lines("Load parameter 'config' must be specified for model file override")
    eventually(lambda: not private(server))


@pytest.mark.parametrize(
    ("path", "normalised"),
    [
        ("../../x/model.py", "../../x/model.py"),
        ("1/../../x", "../x"),
        ("/../../x/model.py", "../../x/model.py"),
        ("//tmp/../../x", "../x"),
        ("..", ".."),
        ("1/..", "."),
        ("", "."),
    ],
)
def test_no_file_leaves_the_model_directory(repository: Repository, start: Start, path: str, normalised: str) -> None:
    server = start(EXPLICIT)
    parameters = {f"file:{path}": "AAAA", "file:1/model.py": "AAAA"}
    assert load(server, "new", config=json.dumps(CONFIG_JSON), **parameters) == (
        500,
        "failed to load 'new', failed to poll from model repository",
    )
    assert server.lines(
        f"Invalid file parameter 'file:{path}' with normalized path '{normalised}' must stay within model directory."
    )
    eventually(lambda: not private(server))
    assert not list(server.temporary.rglob("x"))


@pytest.mark.parametrize("path", ["1/a\0b", "1/" + "x" * 300, "1/model.py/x"])
def test_odd_paths_are_refused(repository: Repository, start: Start, path: str) -> None:
    server = start(EXPLICIT)
    parameters = {"file:1/model.py": "AAAA", f"file:{path}": "AAAA"}
    assert load(server, "new", config=json.dumps(CONFIG_JSON), **parameters) == (
        500,
        "failed to load 'new', failed to poll from model repository",
    )
    eventually(lambda: not private(server))


# --- many -----------------------------------------------------------------------------------------------------------


def test_two_hundred_loads_and_unloads_leave_nothing(repository: Repository, start: Start) -> None:
    repository.add("m")
    server = start(EXPLICIT)
    brought = {"config": json.dumps(CONFIG_JSON), "files": {"file:1/model.py": code_of(IDENTITY)}}
    client = http_client.InferenceServerClient(server.http)

    def cycle(number: int) -> None:
        client.load_model("m", **(brought if number % 4 == 0 else {}))
        assert server.post("m", [1.0]).data == [1.0]
        client.unload_model("m")

    for number in range(20):
        cycle(number)
    eventually(lambda: unloaded(server, "m:1") and not server.stubs("m"), 10)
    before = held(server)
    for number in range(200):
        cycle(number)
    eventually(lambda: unloaded(server, "m:1") and not server.stubs("m") and not private(server), 10)
    eventually(lambda: held(server) == before, 10, f"{before} is {held(server)}")
    client.close()
    memory = psutil.Process(server.process.pid).memory_info().rss
    assert memory < 400 << 20
    assert [line for line in server.exposition() if 'model="m"' in line] == []


def held(server: Server) -> tuple[int, int, int, int]:
    """Processes, segments, descriptors, and what is in the temporary directory."""
    processes = server.processes()
    return len(processes), len(server.shm()), server.descriptors(), len(os.listdir(server.temporary))


def test_many_at_once_come_to_their_end(repository: Repository, start: Start) -> None:
    names = [f"m{number}" for number in range(4)]
    for name in names:
        repository.add(name)
    server = start(EXPLICIT)
    rounds = iter(range(1000))

    def work() -> None:
        number = next(rounds)
        name = names[number % len(names)]
        status, text = (load, unload)[number // len(names) % 2](server, name)
        assert status == 200 or "unloaded" in text, text

    Background(8, work, times=10).stop()
    for name in names:
        assert load(server, name) == (200, "")
        assert server.post(name, [1.0]).data == [1.0]
        assert unload(server, name) == (200, "")
    eventually(lambda: not server.stubs(), 10)
    assert server.ready()


def test_a_load_does_not_hold_up_others(repository: Repository, start: Start, flag: Callable[[str], Path]) -> None:
    repository.add("slow", IDENTITY + f"\ndef initialize(self, args):\n    wait_for({str(flag('go'))!r})")
    repository.add("quick")
    server = start(EXPLICIT)
    loading = Background(1, lambda: load(server, "slow"), times=1)
    eventually(lambda: server.stubs("slow"))
    began = time.monotonic()
    assert load(server, "quick") == (200, "") and server.post("quick", [1.0]).data == [1.0]
    assert time.monotonic() - began < 10
    assert state(server, "slow:1") == ("LOADING", "")
    flag("go").touch()
    assert loading.stop() == [(200, "")]
    assert server.post("slow", [1.0]).data == [1.0]
