"""What models rely on that no other test shows; docs/model-surface.md lists all of it."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

from tests.system.conftest import CONFIG, IDENTITY, ROOT, Repository, Start

TELLS_ITS_SURROUNDINGS = """
def execute(self, requests):
    raise ValueError(f"in {os.getcwd()} with {os.environ['OF_THE_SERVER']}")
"""

PLAIN = """
def __init__(self):
    self.number = 7

def execute(self, requests):
    return [respond(request, np.array([self.number], np.float32)) for request in requests]
"""

COUNTS_IMPORTS = """
with open(%r, "a") as file:
    file.write("imported\\n")

@staticmethod
def auto_complete_config(config):
    return config
"""

CRASHES = """
@staticmethod
def auto_complete_config(config):
    os._exit(3)
"""

SELF_MADE = """
def execute(self, requests):
    made = pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="m")
    assert made.is_cancelled() is False
    try:
        made.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    except pb_utils.TritonModelException:
        pass
    return [respond(request, values(request)) for request in requests]
"""


def test_a_model_runs_where_the_server_was_started_and_in_its_environment(repository: Repository, start: Start) -> None:
    repository.add("m", TELLS_ITS_SURROUNDINGS)
    server = start(environ={"OF_THE_SERVER": "a value"})
    assert f"in {ROOT} with a value" in server.post("m", [1.0]).error


def test_a_class_may_have_an_init_and_no_initialize(repository: Repository, start: Start) -> None:
    repository.add("m", PLAIN)
    assert start().post("m", [1.0]).data == [7.0]


def test_a_module_is_imported_once_for_each_instance_and_once_to_complete_it(
    repository: Repository, start: Start, tmp_path: Path
) -> None:
    imports = tmp_path / "imports"
    repository.add("m", COUNTS_IMPORTS % str(imports) + IDENTITY, instances=2)
    assert start().post("m", [1.0]).data == [1.0]
    assert len(imports.read_text().splitlines()) == 3


def test_a_crash_while_a_configuration_is_completed_is_told_at_once(repository: Repository, start: Start) -> None:
    """The original would load for ever."""
    repository.add("crashes", CRASHES + IDENTITY)
    repository.add("m")
    begin = time.monotonic()
    server = start("--exit-on-error=false")
    assert time.monotonic() - begin < 10
    assert server.index()["crashes:1"]["state"] == "UNAVAILABLE"
    assert "is not healthy" in server.index()["crashes:1"]["reason"]
    assert server.post("m", [1.0]).data == [1.0]


def test_a_small_model_is_loaded_and_unloaded_within_a_second(repository: Repository, start: Start) -> None:
    """The original takes one and a half at least."""
    repository.add("m")
    server = start("--model-control-mode=explicit")
    took = []
    for _ in range(5):
        begin = time.monotonic()
        assert server.call("POST", "/v2/repository/models/m/load").status == 200
        assert server.call("POST", "/v2/repository/models/m/unload").status == 200
        took.append(time.monotonic() - begin)
    assert statistics.median(took) < 1


def test_what_only_received_requests_can_do_harms_no_model(repository: Repository, start: Start) -> None:
    """In the original either of the two ends the process."""
    repository.add("m", SELF_MADE)
    assert start().post("m", [1.0]).data == [1.0]


def test_a_batch_of_nothing_is_answered(repository: Repository, start: Start) -> None:
    """The original drops it."""
    config = CONFIG % 1
    repository.add("m", config=config.replace("max_batch_size: 0", "max_batch_size: 4"))
    document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [0, 2], "data": []}]}
    answer = start().call("POST", "/v2/models/m/infer", json.dumps(document).encode(), timeout_s=10)
    assert answer.status in (200, 400), answer
