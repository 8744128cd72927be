"""The server follows what changes in its repositories."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.system.conftest import Background, Repository, Server, Start, eventually
from tests.system.test_model_control import NOT_ALLOWED, NUMBER, change, load, unload

BROKEN = """
def initialize(self, args):
    with open({tried!r}, "a") as file:
        file.write(".")
    raise ValueError({reason!r})
"""
DUPLICATE = "model appears in two or more repositories"


def answers(server: Server, model: str, value: float) -> bool:
    answer = server.post(model, [0.0])
    return answer.status == 200 and answer.data == [value]


def test_models_versions_and_configurations_come_change_and_go(
    repository: Repository, start: Start, tmp_path: Path
) -> None:
    """All in a few polls: waiting for them is what takes the time."""
    code, versions, named = (repository.add(name, NUMBER % 1) for name in ("code", "versions", "named"))
    repository.add("twice", NUMBER % 1)
    hindrance = tmp_path / "hindrance"
    hindrance.touch()
    repository.add(
        "later", NUMBER % 1 + f"\ndef initialize(self, args):\n    assert not os.path.exists({str(hindrance)!r})"
    )
    other = Repository(tmp_path / "other")
    other.path.mkdir()
    server = start(
        "--model-control-mode=poll",
        "--repository-poll-secs=1",
        f"--model-repository={other.path}",
        "--model-config-name=small",
        "--exit-on-error=false",
    )
    hindrance.unlink()
    eventually(lambda: answers(server, "later", 1))
    assert server.lines("| model_config_name", "small") and server.lines("| model_control_mode", "MODE_POLL")
    assert load(server, "code") == unload(server, "code") == (503, NOT_ALLOWED)
    clients = Background(2, lambda: server.post("code", [0.0]).data)
    pid = server.stub("named").pid

    repository.add("new", NUMBER % 2)
    other.add("twice", NUMBER % 2)
    change(code, "nonsense")
    two = versions.with_name("2")
    two.mkdir()
    change(two, NUMBER % 2)
    custom = named.parent / "configs" / "small.pbtxt"
    custom.parent.mkdir()
    custom.write_text((named.parent / "config.pbtxt").read_text().replace("count: 1", "count: 2"))
    eventually(lambda: answers(server, "new", 2) and answers(server, "versions", 2))
    eventually(lambda: server.lines("a model was not loaded; what has served goes on serving", "model=code"))
    assert server.index()["code:1"]["state"] == "READY" and server.ready()
    eventually(lambda: not server.stubs("twice") and len(server.stubs("named")) == 2)
    assert server.index()["twice:"] == {"name": "twice", "state": "UNAVAILABLE", "reason": DUPLICATE}
    assert pid in [process.pid for process in server.stubs("named")]
    assert server.get("/v2/models/versions").json["versions"] == ["2"]

    change(code, NUMBER % 3)
    shutil.rmtree(repository.path / "new")
    shutil.rmtree(repository.path / "twice")
    shutil.rmtree(two)
    custom.unlink()
    eventually(lambda: answers(server, "code", 3) and answers(server, "versions", 1) and answers(server, "twice", 2))
    eventually(lambda: not server.stubs("new") and [process.pid for process in server.stubs("named")] == [pid])
    assert (
        set(server.index()) == {"code:1", "versions:1", "versions:2", "named:1", "twice:1", "later:1"}
        and server.ready()
    )
    assert {value for (value,) in clients.stop()} <= {1.0, 3.0}


def test_a_model_that_stays_broken_is_tried_with_each_poll_and_told_of_once(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    tried = flag("tried")
    server = start("--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false")
    repository.add("broken", BROKEN.format(tried=str(tried), reason="no such luck"))
    repository.add("sound")
    eventually(lambda: tried.exists() and len(tried.read_text()) >= 3)
    assert len(server.lines("failed to load 'broken' version 1", "no such luck")) == 1
    assert len(server.lines("\"failed to load 'broken'\"")) == 1
    assert len(server.lines("loading: broken:1")) == 1
    assert len(server.lines('"a model was not loaded"', "model=broken", "no such luck")) == 1
    assert len(server.lines("ValueError: no such luck")) == 3  # in the model's own traceback, and in two of the above
    assert len(server.lines("the model repositories have changed", 'load="broken, sound"')) <= 1
    assert not server.lines("unload=")

    change(repository.path / "broken" / "1", BROKEN.format(tried=str(tried), reason="worse luck"))
    eventually(lambda: server.lines('"a model was not loaded"', "model=broken", "worse luck"))
