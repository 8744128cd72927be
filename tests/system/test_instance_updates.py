"""A version that serves gets other instances; ``initialize`` and ``finalize`` are counted in files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import tritonclient.grpc as grpc_client

from tests.system.conftest import IDENTITY, Background, Repository, Server, Start, eventually
from tests.system.test_model_control import EXPLICIT, load, state, unload

COUNTED = (
    IDENTITY
    + """
def initialize(self, args):
    if os.path.exists(%(fails)r):
        raise ValueError("no memory")
    open(%(initialized)r, "a").write(args["model_instance_name"] + " ")

def finalize(self):
    open(%(finalized)r, "a").write("x ")
"""
)


class Counted:
    """A model "m", with what its instances write down."""

    def __init__(self, repository: Repository, flag: Callable[[str], Path]) -> None:
        self.initialized, self.finalized, self.fails = flag("initialized"), flag("finalized"), flag("fails")
        paths = {name: str(path) for name, path in vars(self).items()}
        self.directory = repository.add("m", COUNTED % paths)
        self.config = self.directory.parent / "config.pbtxt"
        self.initialized.touch()
        self.finalized.touch()

    def counts(self) -> tuple[int, int]:
        return len(self.initialized.read_text().split()), len(self.finalized.read_text().split())

    def set_groups(self, groups: str) -> None:
        head = self.config.read_text().split("instance_group")[0]
        self.config.write_text(f"{head}instance_group [{groups}]\n")


def pids(server: Server) -> set[int]:
    return {process.pid for process in server.stubs("m")}


def test_instances_that_stay_notice_nothing(repository: Repository, start: Start, flag: Callable[[str], Path]) -> None:
    model = Counted(repository, flag)
    model.set_groups("{ count: 3 kind: KIND_CPU }")
    server = start(EXPLICIT, "--load-model=m")
    clients = Background(4, lambda: server.post("m", [1.0]).data)
    served = server.post("m", [1.0])
    before = pids(server)
    for count, counts in ((4, (4, 0)), (3, (4, 1)), (1, (4, 3)), (2, (5, 3))):
        model.set_groups(f"{{ count: {count} kind: KIND_CPU }}")
        assert load(server, "m") == (200, "")
        assert (
            model.counts() == counts and server.get("/v2/models/m/config").json["instance_group"][0]["count"] == count
        )
    assert before & pids(server) and server.ready("m")

    model.set_groups('{ name: "a" count: 1 kind: KIND_CPU }, { name: "b" count: 1 kind: KIND_CPU }')
    assert load(server, "m") == (200, "") and model.counts() == (5, 3)
    model.set_groups('{ name: "a" count: 1 kind: KIND_CPU }, { name: "b" count: 2 kind: KIND_MODEL }')
    assert load(server, "m") == (200, "") and model.counts() == (7, 4)

    model.fails.touch()
    model.set_groups("{ count: 7 kind: KIND_CPU }")
    now = pids(server)
    status, text = load(server, "m")
    assert status == 400 and text.startswith(
        "load failed for model 'm': version 1 is at READY state: Internal: ValueError: no memory"
    )
    eventually(lambda: pids(server) == now)
    ready, reason = state(server, "m:1")
    assert ready == "READY" and reason.startswith("Internal: ValueError: no memory") and server.ready()
    model.set_groups("nonsense")
    assert load(server, "m")[0] == 500
    answers = clients.stop()
    assert served.data == [1.0] and server.statistics("m")["success"]["count"] == len(answers) + 1
    assert server.failures("m") == {} and unload(server, "m") == (200, "")
    eventually(lambda: model.counts() == (7, 7))


def test_a_request_may_ask_for_more_instances_of_what_it_was_told(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    model = Counted(repository, flag)
    server = start(EXPLICIT, "--load-model=m")
    client = grpc_client.InferenceServerClient(server.grpc)
    config = client.get_model_config("m", as_json=True)["config"]
    config["instance_group"][0]["count"] += 1
    client.load_model("m", config=json.dumps(config))
    client.close()
    assert model.counts() == (2, 0) and len(server.stubs("m")) == 2
    assert load(server, "m") == (200, "") and model.counts() == (2, 0)
