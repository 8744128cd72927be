"""What the server makes of a model repository: versions, missing and minimal configurations, several places."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.system.conftest import CONFIG, Repository, Start, eventually, title_of
from tests.system.test_model_control import EXPLICIT, load

VERSION = """
def initialize(self, args):
    self.version = float(args["model_version"])

def execute(self, requests):
    return [respond(request, np.array([self.version], np.float32)) for request in requests]
"""

AUTO_COMPLETE = """
@staticmethod
def auto_complete_config(config):
    config.set_max_batch_size(0)
    config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
    config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
    return config

def execute(self, requests):
    return [respond(request, values(request) * 2) for request in requests]
"""

POLICIES = {  # which of the versions 1, 2 and 10 it serves
    "": [10],
    "version_policy: { latest: { num_versions: 2 } }": [2, 10],
    "version_policy: { all: {} }": [1, 2, 10],
    "version_policy: { specific: { versions: [1, 2] } }": [1, 2],
}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_version_policy_chooses_what_is_served(repository: Repository, start: Start, policy: str) -> None:
    for version in (1, 2, 10):
        directory = repository.path / "m" / str(version)
        if version == 1:
            repository.add("m", VERSION, config=CONFIG % 1 + policy)
        else:
            directory.mkdir()
            (directory / "model.py").write_text((repository.path / "m" / "1" / "model.py").read_text())
    (repository.path / "m" / "old").mkdir()
    (repository.path / "m" / "notes.txt").write_text("not a version")
    server = start()

    served = POLICIES[policy]
    assert server.get("/v2/models/m").json["versions"] == [str(version) for version in served]
    assert server.post("m", [0.0]).data == [max(served)]
    for version in (1, 2, 10):
        answer = server.call("POST", f"/v2/models/m/versions/{version}/infer", b"")
        assert answer.status == (200 if version in served else 404), answer
    assert server.get("/v2/models/m/versions/9/ready").status == 404
    assert server.ready()


@pytest.mark.parametrize("config", ["", 'backend: "python"', 'name: "twice"\nbackend: "python"\nmax_batch_size: 0'])
def test_a_model_may_complete_its_own_configuration(repository: Repository, start: Start, config: str) -> None:
    repository.add("twice", AUTO_COMPLETE, config=config)
    server = start()
    assert server.post("twice", [1.0, 2.0]).data == [2.0, 4.0]
    answer = server.get("/v2/models/twice/config").json
    assert [(tensor["name"], tensor["data_type"]) for tensor in answer["input"]] == [("IN", "TYPE_FP32")]
    assert server.get("/v2/models/twice").json["outputs"] == [{"name": "OUT", "datatype": "FP32", "shape": [-1]}]
    eventually(lambda: len(server.processes()) == 3, 5, "server, fork server and instance are left")


def test_without_auto_completion_an_absent_configuration_is_an_error(repository: Repository, start: Start) -> None:
    repository.add("twice", AUTO_COMPLETE, config="")
    server = start("--disable-auto-complete-config", wait=False)
    assert server.wait() == 1
    assert server.lines("Poll failed for model directory 'twice': failed to open text file for read")
    # The model, which would take no batches, is not asked.
    (repository.path / "twice" / "config.pbtxt").write_text((CONFIG % 1).replace("size: 0", "size: 4"))
    server = start("--disable-auto-complete-config")
    assert server.get("/v2/models/twice/config").json["max_batch_size"] == 4


def test_instances_are_as_many_and_named_as_configured(repository: Repository, start: Start) -> None:
    code = """
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        text = np.array([self.args["model_instance_name"].encode()], dtype=object)
        time.sleep(0.02)
        return [respond(request, text) for request in requests]
    """
    config = CONFIG.replace(
        'output [{ name: "OUT" data_type: TYPE_FP32', 'output [{ name: "OUT" data_type: TYPE_STRING'
    )
    repository.add("m", code, config=config % 2 + 'instance_group [{ name: "extra" kind: KIND_CPU count: 1 }]')
    server = start()
    assert len(server.stubs("m")) == 3
    titles = " ".join(map(title_of, server.stubs("m")))
    names = ["m_0_0", "m_0_1", "extra_0"]
    assert [name for name in names if name not in titles] == []


def test_a_model_is_told_where_it_is_and_what_it_is(repository: Repository, start: Start) -> None:
    code = """
    def initialize(self, args):
        self.args = args

    def execute(self, requests):
        import json
        told = {**self.args, "file": __file__, "cwd": os.getcwd()}
        return [respond(request, np.array([json.dumps(told).encode()], dtype=object)) for request in requests]
    """
    repository.add("m", code, config=(CONFIG % 1).replace('"OUT" data_type: TYPE_FP32', '"OUT" data_type: TYPE_STRING'))
    server = start()
    told = json.loads(server.post("m", [0.0]).json["outputs"][0]["data"][0])
    assert told["model_name"] == "m"
    assert told["model_version"] == "1"
    assert told["model_instance_name"] == "m_0_0"
    assert told["model_instance_kind"] == "CPU"
    assert told["model_instance_device_id"] == "0"
    assert told["model_repository"] == str(repository.path / "m")
    assert told["file"] == str(repository.path / "m" / "1" / "model.py")
    assert json.loads(told["model_config"])["name"] == "m"


def test_a_repository_path_may_end_with_a_slash_or_be_a_link(repository: Repository, start: Start) -> None:
    repository.add("m", VERSION)
    link = repository.path.parent / "link"
    link.symlink_to(repository.path)
    for path in (f"{repository.path}/", str(link), f"{link}//"):
        server = start(path=path)
        assert server.post("m", [0.0]).data == [1.0]
        server.terminate()


def test_models_of_several_repositories_are_served(repository: Repository, start: Start) -> None:
    repository.add("one", VERSION)
    other = Repository(repository.path.parent / "others")
    other.add("two", VERSION)
    server = start(f"--model-repository={other.path}", EXPLICIT, "--load-model=*")
    assert server.post("one", [0.0]).data == [1.0]
    assert server.post("two", [0.0]).data == [1.0]

    other.add("one", VERSION)  # and now there are two of them: what serves goes on
    assert load(server, "one") == (500, "failed to load 'one', failed to poll from model repository")
    assert server.lines("failed to poll model 'one': not unique across all model repositories")
    reason = "model appears in two or more repositories"
    assert server.index()["one:"] == {"name": "one", "state": "UNAVAILABLE", "reason": reason}
    assert server.post("one", [0.0]).data == [1.0]
    shutil.rmtree(other.path / "one")
    assert load(server, "one") == (200, "") and server.index()["one:1"]["state"] == "READY"


def test_an_empty_repository_is_served(start: Start) -> None:
    server = start()
    assert server.ready()
    assert server.index() == {}
    assert server.get("/v2/models/m").status == 404


def test_a_configuration_is_given_back_with_all_defaults(repository: Repository, start: Start) -> None:
    repository.add("m", config=CONFIG % 2 + 'parameters { key: "k" value { string_value: "v" } }')
    server = start()
    config = server.get("/v2/models/m/config").json
    assert config["name"] == "m"
    assert config["backend"] == "python"
    assert config["default_model_filename"] == "model.py"
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["instance_group"][0]["count"] == 2
    assert config["instance_group"][0]["name"] == "m_0"
    assert config["parameters"] == {"k": {"string_value": "v"}}


def test_another_file_name_for_the_model_is_honoured(repository: Repository, start: Start) -> None:
    directory = repository.add("m", config=CONFIG % 1 + 'default_model_filename: "served.py"')
    (directory / "model.py").rename(directory / "served.py")
    server = start()
    assert server.post("m", [4.0]).data == [4.0]


def test_names_that_are_no_identifiers_are_served(repository: Repository, start: Start) -> None:
    names = ["model.version1", "...", "a-b", "1", "..my_model"]
    for name in names:
        repository.add(name, VERSION)
    server = start()
    for name in names:
        assert server.post(name, [0.0]).data == [1.0], name
