"""Models of one name in several repositories, told apart by those."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.system.conftest import Answer, Repository, Server, Start, eventually
from tests.system.ensemble_models import add_chain
from tests.system.test_model_control import NUMBER, load, unload

AMBIGUOUS = (
    "There are 2 identifiers of model 'part' in global map, model namespace must be provided to resolve ambiguity."
)


@pytest.fixture
def other(repository: Repository, tmp_path: Path) -> Repository:
    """Each repository has an ensemble, named after what it answers, of a "part" of its own; and a model for itself."""
    other = Repository(tmp_path / "other")
    other.path.mkdir()
    for place, number in ((repository, 1), (other, 2)):
        place.add("part", NUMBER % number)
        place.add(f"alone{number}", NUMBER % number)
        add_chain(place, f"gives{number}", "part")
    return other


def refused(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.error


def check(server: Server) -> None:
    for number in (1, 2):
        assert server.post(f"gives{number}", [0.0]).data == server.post(f"alone{number}", [0.0]).data == [number]
    assert refused(server.post("part", [0.0])) == (400, AMBIGUOUS)


def test_ensembles_have_the_models_beside_them(repository: Repository, other: Repository, start: Start) -> None:
    server = start(
        "--model-namespacing=true",
        f"--model-repository={other.path}",
        "--model-control-mode=explicit",
        "--load-model=gives1",
        "--load-model=alone1",
    )
    assert refused(server.post("nope", [0.0])) == (400, "Request for unknown model: 'nope' is not found")
    assert load(server, "gives2") == load(server, "alone2") == (200, "")
    check(server)
    rows = server.call("POST", "/v2/repository/index").json
    assert sorted(row["name"] for row in rows) == ["alone1", "alone2", "gives1", "gives2", "part", "part"]
    assert {row["state"] for row in rows} == {"READY"} and server.ready()
    assert server.lines(f"successfully loaded '{other.path}::gives2'")
    labels = [line for line in server.exposition() if line.startswith("nv_inference_count") and '"part"' in line]
    assert [f'namespace="{place.path}"' in "".join(labels) for place in (repository, other)] == [True, True]
    assert load(server, "nope") == (500, "failed to load 'nope', failed to poll from model repository")
    assert unload(server, "part") == (200, "")
    assert refused(server.post("part", [0.0])) == (404, "Identifier of model 'part' is not found in global map")
    assert server.post("gives1", [0.0]).status == 404
    assert load(server, "part") == (200, "")
    eventually(lambda: server.ready("gives1") and server.ready("gives2"))
    check(server)


def test_without_the_one_beside_it_the_only_other_one_will_do(
    repository: Repository, other: Repository, start: Start, tmp_path: Path
) -> None:
    server = start(
        "--model-namespacing=true",
        f"--model-repository={other.path}",
        "--model-control-mode=poll",
        "--repository-poll-secs=1",
    )
    check(server)
    shutil.move(repository.path / "part", tmp_path / "away")
    eventually(lambda: server.post("part", [0.0]).status == 200)
    eventually(lambda: server.get("/v2/models/gives1/ready").status == 200)
    assert server.post("gives1", [0.0]).data == server.post("part", [0.0]).data == [2.0]
    shutil.move(tmp_path / "away", repository.path / "part")
    eventually(lambda: server.post("gives1", [0.0]).data == [1.0])
    check(server)
