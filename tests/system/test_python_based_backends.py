"""Python-based backends: one model.py for many models, beside models that have their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.system.conftest import CONFIG, PREAMBLE, Repository, Start, eventually

ADD_SUB = '''
import json

import numpy as np
import triton_python_backend_utils as pb_utils
from arithmetic import OPERATIONS


class TritonPythonModel:
    """Adds or subtracts, as its model's parameter "operation" says; "offset" is data of the version directory."""

    @staticmethod
    def auto_complete_config(config):
        for name in ("INPUT0", "INPUT1"):
            config.add_input({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUTPUT", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "TOLD", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.told = {**args, "directory": pb_utils.get_model_dir(), "module": __name__}

    def execute(self, requests):
        responses = []
        for request in requests:
            one, other = (pb_utils.get_input_tensor_by_name(request, f"INPUT{i}").as_numpy() for i in range(2))
            told = np.array([json.dumps(self.told)], dtype=object)
            result = OPERATIONS[self.parameters["operation"]](one, other)
            tensors = [pb_utils.Tensor("OUTPUT", result), pb_utils.Tensor("TOLD", told)]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
'''

ARITHMETIC = """
import operator

OPERATIONS = {"add": operator.add, "sub": operator.sub}
"""


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    folder = tmp_path / "backends" / "add_sub"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(ADD_SUB)
    (folder / "arithmetic.py").write_text(ARITHMETIC)
    return folder.parent


def add(repository: Repository, name: str, config: str) -> Path:
    directory = repository.path / name / "1"
    directory.mkdir(parents=True)
    (repository.path / name / "config.pbtxt").write_text(config)
    return directory


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def calculated(answer) -> dict:
    assert answer.status == 200, answer
    return {output["name"]: output["data"] for output in answer.json["outputs"]}


BODY = json.dumps(
    {
        "inputs": [
            {"name": f"INPUT{i}", "datatype": "FP32", "shape": [4], "data": [float(4 * i + n) for n in range(4)]}
            for i in range(2)
        ]
    }
).encode()


def test_one_backend_serves_many_models_beside_a_plain_one(
    repository: Repository, backends: Path, start: Start
) -> None:
    for operation in ("add", "sub"):
        add(repository, operation, 'backend: "add_sub"\n' + parameter("operation", operation))
    repository.add("plain")
    server = start(f"--backend-directory={backends}")

    answers = {name: calculated(server.call("POST", f"/v2/models/{name}/infer", BODY)) for name in ("add", "sub")}
    assert answers["add"]["OUTPUT"] == [4, 6, 8, 10]
    assert answers["sub"]["OUTPUT"] == [-4] * 4
    assert server.post("plain", [1.0]).data == [1.0]
    assert server.lines("| add_sub |", str(backends / "add_sub" / "model.py"))
    assert server.lines("| python ")


def test_a_backend_is_told_of_the_model_and_never_of_itself(
    repository: Repository, backends: Path, start: Start
) -> None:
    directory = add(repository, "add", 'backend: "add_sub"\n' + parameter("operation", "add"))
    server = start(f"--backend-directory={backends}")
    (told,) = calculated(server.call("POST", "/v2/models/add/infer", BODY))["TOLD"]
    told = json.loads(told)
    assert told.pop("module") == "model"
    assert told.pop("directory") == str(directory)
    assert json.loads(told.pop("model_config"))["name"] == "add"
    assert told == {
        "model_instance_kind": "CPU",
        "model_instance_name": "add_0",
        "model_instance_device_id": "0",
        "model_repository": str(directory.parent),
        "model_version": "1",
        "model_name": "add",
    }


def test_settings_of_a_backend_are_defaults_of_its_models_parameters(
    repository: Repository, backends: Path, start: Start
) -> None:
    add(repository, "add", 'backend: "add_sub"\n' + parameter("operation", "add"))
    add(repository, "either", 'backend: "add_sub"\nruntime: "model.py"\n')
    server = start(f"--backend-directory={backends}", "--backend-config=add_sub,operation=sub")
    assert calculated(server.call("POST", "/v2/models/add/infer", BODY))["OUTPUT"] == [4, 6, 8, 10]
    assert calculated(server.call("POST", "/v2/models/either/infer", BODY))["OUTPUT"] == [-4] * 4
    shown = server.get("/v2/models/either/config").json
    assert (shown["runtime"], shown["parameters"]) == ("model.py", {})


def test_a_backend_of_the_users_comes_before_ours_of_that_name(
    repository: Repository, tmp_path: Path, start: Start
) -> None:
    folder = tmp_path / "backends" / "onnxruntime"
    folder.mkdir(parents=True)
    code = "    def execute(self, requests):\n        return [respond(r, values(r) + 1) for r in requests]\n"
    (folder / "model.py").write_text(PREAMBLE + code)
    add(repository, "m", (CONFIG % 1).replace('"python"', '"onnxruntime"'))
    server = start(f"--backend-directory={folder.parent}")
    assert server.post("m", [1.0]).data == [2.0]


def test_models_of_a_backend_come_and_go_one_by_one(repository: Repository, backends: Path, start: Start) -> None:
    for operation in ("add", "sub"):
        add(repository, operation, 'backend: "add_sub"\n' + parameter("operation", operation))
    server = start(f"--backend-directory={backends}", "--model-control-mode=explicit", "--load-model=add")
    assert server.call("POST", "/v2/models/sub/infer", BODY).status == 404
    assert server.call("POST", "/v2/repository/models/sub/load").status == 200
    assert calculated(server.call("POST", "/v2/models/sub/infer", BODY))["OUTPUT"] == [-4] * 4
    assert server.call("POST", "/v2/repository/models/add/unload").status == 200
    eventually(lambda: not server.ready("add") and not server.stubs("add"))
    assert calculated(server.call("POST", "/v2/models/sub/infer", BODY))["OUTPUT"] == [-4] * 4


def test_without_its_backend_a_model_does_not_load_and_says_so(repository: Repository, start: Start) -> None:
    add(repository, "add", 'backend: "add_sub"\n')
    server = start("--exit-on-error=false")
    assert server.index()["add:1"]["reason"] == (
        "Invalid argument: unable to find backend library for backend 'add_sub', try specifying runtime on the model "
        "configuration."
    )


def test_an_error_of_a_backend_shows_its_lines(repository: Repository, backends: Path, start: Start) -> None:
    add(repository, "mul", 'backend: "add_sub"\n' + parameter("operation", "mul"))
    server = start(f"--backend-directory={backends}")
    text = server.call("POST", "/v2/models/mul/infer", BODY).error
    assert text.startswith("Failed to process the request(s) for model 'mul_0', message: KeyError: 'mul'\n\nAt:\n")
    assert f"{backends / 'add_sub' / 'model.py'}(" in text
