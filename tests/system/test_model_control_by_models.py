"""Models that load and unload other models, and ask whether they are ready."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.conftest import CONFIG, IDENTITY, Background, Repository, Server, Start, eventually

EXPLICIT = "--model-control-mode=explicit"
NOT_ALLOWED = "explicit model load / unload is not allowed if polling is enabled"

# Evaluates nothing: what it can do is in a table, and a request names one of them.
ASKING = """
def execute(self, requests):
    import json
    return [respond(request, np.array([json.dumps(self.do(text(request))).encode()], object)) for request in requests]

def do(self, order):
    import json
    name, *arguments = json.loads(order)
    operation = {"load": pb_utils.load_model, "unload": pb_utils.unload_model, "ready": pb_utils.is_model_ready}[name]
    try:
        return operation(*arguments)
    except pb_utils.TritonModelException as error:
        return str(error)
"""

TEXT = """
def text(request):
    return pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0].decode()
"""


def add_asking(repository: Repository, name: str = "asking", code: str = "", instances: int = 1) -> None:
    config = (CONFIG % instances).replace("TYPE_FP32", "TYPE_STRING")
    directory = repository.add(name, ASKING + code, config=config)
    path = directory / "model.py"
    path.write_text(path.read_text().replace("class TritonPythonModel", TEXT + "\n\nclass TritonPythonModel"))


def ask(server: Server, *order: object, model: str = "asking") -> object:
    tensor = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": [json.dumps(order)]}
    answer = server.call("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())
    assert answer.status == 200, answer
    return json.loads(answer.json["outputs"][0]["data"][0])


def refused(operation: str, text: str, instance: str = "asking_0_0") -> str:
    prefix = {"load": "Failed to load model", "unload": "Failed to unload model"}.get(
        operation, "Failed to check model readiness"
    )
    return f"{prefix}: Failed to process the request for model '{instance}', message: {text}"


def test_a_model_loads_asks_for_and_unloads_another_one(repository: Repository, start: Start) -> None:
    add_asking(repository)
    repository.add("m")
    server = start(EXPLICIT, "--load-model=asking")
    unknown = "Request for unknown model: 'm' is not found"
    assert ask(server, "ready", "m") == refused("ready", unknown)
    assert ask(server, "load", "m") is None
    assert server.post("m", [2.0]).data == [2.0]
    assert ask(server, "ready", "m") is True and ask(server, "ready", "m", "1") is True
    assert ask(server, "ready", "m", "2") == refused("ready", "Request for unknown model: 'm' version 2 is not found")
    assert str(ask(server, "ready", "m", "x")).startswith(
        refused("ready", "failed to get model version from specified version string 'x'")
    )
    assert ask(server, "unload", "m") is None
    assert ask(server, "ready", "m") is False
    assert ask(server, "unload", "nope") is None
    assert ask(server, "load", "nope") == refused("load", "failed to load 'nope', failed to poll from model repository")


def test_a_model_brings_a_configuration_and_files(repository: Repository, start: Start) -> None:
    code = """
    files = {"file:1/model.py": open(__file__, "rb").read().replace(b"self.do(text(request))", b"'brought'")}

    def initialize(self, args):
        self.config = args["model_config"]

    def do(self, order):
        config = self.config.replace('"asking"', '"new"') if order == "[0]" else "nonsense"
        try:
            pb_utils.load_model("new", config, self.files)
        except pb_utils.TritonModelException as error:
            return str(error)
    """
    add_asking(repository, code=code.replace("\n    ", "\n"))
    server = start(EXPLICIT, "--load-model=asking")
    assert ask(server, 0) is None
    assert ask(server, 0, model="new") == "brought"
    assert ask(server, 1) == refused("load", "failed to load 'new', failed to poll from model repository")
    assert server.lines("Invalid config override: ")
    assert ask(server, 0, model="new") == "brought"


def test_a_model_that_says_it_is_not_ready_is_not(repository: Repository, start: Start) -> None:
    add_asking(repository)
    repository.add("m", IDENTITY + "\ndef is_ready(self):\n    return False")
    server = start(EXPLICIT, "--load-model=*")
    assert ask(server, "ready", "m") is False and ask(server, "ready", "asking") is True


@pytest.mark.parametrize("operation", ["load", "unload"])
def test_a_model_cannot_load_or_unload_itself(repository: Repository, start: Start, operation: str) -> None:
    add_asking(repository)
    server = start(EXPLICIT, "--load-model=asking")
    assert ask(server, operation, "asking") == refused(operation, "model 'asking' cannot load or unload itself")
    assert server.ready("asking")


def test_without_explicit_mode_models_load_nothing_either(repository: Repository, start: Start) -> None:
    add_asking(repository)
    server = start()
    assert ask(server, "load", "asking2") == refused("load", NOT_ALLOWED)
    assert ask(server, "unload", "asking2") == refused("unload", NOT_ALLOWED)
    assert ask(server, "ready", "asking") is True


def in_initialize(*calls: str) -> str:
    return "\ndef initialize(self, args):\n" + "".join(f"    {call}\n" for call in calls)


def test_a_model_loads_another_one_in_initialize(repository: Repository, start: Start) -> None:
    add_asking(repository, "outer", in_initialize("pb_utils.load_model('m')", "assert pb_utils.is_model_ready('m')"))
    repository.add("m")
    server = start(EXPLICIT, "--model-load-thread-count=1")
    answer = server.call("POST", "/v2/repository/models/outer/load")
    assert answer.status == 200, answer
    assert server.post("m", [1.0]).data == [1.0] and server.ready("outer")


def test_while_the_server_starts_no_model_is_loaded_by_another(repository: Repository, start: Start) -> None:
    add_asking(repository, "outer", in_initialize("pb_utils.load_model('m')"))
    repository.add("m")
    server = start(EXPLICIT, "--load-model=outer", "--exit-on-error=false")
    reason = server.index()["outer:1"]["reason"]
    assert refused("load", "Server not ready", "outer_0_0") in reason


def test_models_that_would_wait_for_each_other_are_told(repository: Repository, start: Start) -> None:
    add_asking(repository, "a", in_initialize("pb_utils.load_model('b')"))
    add_asking(repository, "b", in_initialize("pb_utils.load_model('a')"))
    server = start(EXPLICIT)
    answer = server.call("POST", "/v2/repository/models/a/load", timeout_s=20)
    assert answer.status == 400
    assert refused("load", "the load of model 'a' would wait for itself", "b_0_0") in answer.error
    assert {row["state"] for row in server.index().values()} == {"UNAVAILABLE"}


def test_in_finalize_and_auto_complete_config_nothing_is_loaded(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    told = flag("told")
    code = f"""
    def finalize(self):
        open({str(told)!r}, "w").write(str(self.do('["load", "m"]')))

    @staticmethod
    def auto_complete_config(config):
        pb_utils.load_model("m")
    """
    add_asking(repository, code=code.replace("\n    ", "\n"))
    repository.add("m")
    server = start(EXPLICIT)
    answer = server.call("POST", "/v2/repository/models/asking/load")
    assert "Failed to load model: there is no server to ask" in answer.error
    path = repository.path / "asking" / "1" / "model.py"
    path.write_text(path.read_text().replace('pb_utils.load_model("m")', "return config"))
    assert server.call("POST", "/v2/repository/models/asking/load").status == 200
    assert server.call("POST", "/v2/repository/models/asking/unload").status == 200
    eventually(lambda: told.exists() and told.read_text())
    assert told.read_text() == refused("load", "models cannot be loaded or unloaded in finalize")
    assert "m:1" not in server.index()


def test_threads_and_instances_ask_at_once(repository: Repository, start: Start) -> None:
    add_asking(repository, instances=3)
    for number in range(3):
        repository.add(f"m{number}", IDENTITY)
    server = start(EXPLICIT, "--load-model=asking")
    orders = iter([(operation, f"m{number % 3}") for number in range(60) for operation in ("load", "ready", "unload")])

    def work() -> None:
        answer = ask(server, *next(orders))
        if isinstance(answer, str):  # somebody else has unloaded it meanwhile
            assert "unloaded" in answer or "is not found" in answer, answer

    Background(6, work, times=30).stop()
    for number in range(3):
        ask(server, "unload", f"m{number}")
    eventually(lambda: len(server.stubs()) == 3, 10)
    assert server.ready()
