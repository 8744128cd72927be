"""Models of a scaled stack come and go: by polls, and by other models."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.conftest import IDENTITY, Background, Repository, eventually
from tests.system.ensemble_models import add_chain
from tests.system.scaled_stack import ScaledStack, ready, scaled_stack
from tests.system.test_custom_metrics import custom
from tests.system.test_model_control import CONFIG_JSON, NUMBER, code_of, load

LOADER = """
def execute(self, requests):
    pb_utils.load_model("other")
    return [respond(request, values(request)) for request in requests]
"""


@pytest.fixture
def stack(repository: Repository, tmp_path: Path) -> Iterator[ScaledStack]:
    with scaled_stack(repository, tmp_path) as stack:
        yield stack


def test_a_poll_tries_again_what_has_failed_on_a_host(repository, stack, flag):
    flag("hindrance").touch()
    repository.add(
        "late", IDENTITY + f"\ndef initialize(self, args):\n    assert not os.path.exists({str(flag('hindrance'))!r})"
    )
    broker = stack.broker("--model-control-mode=poll", "--repository-poll-secs=1")
    stack.stub_host()
    gateway = stack.gateway()
    eventually(lambda: broker.lines("failed to load 'late'"), 20)
    flag("hindrance").unlink()
    ready(gateway, "late")


SLEEPY = """
def initialize(self, args):
    make = pb_utils.MetricFamily
    self.families = [make(kind, "", getattr(make, kind.upper())) for kind in ("counter", "gauge", "histogram")]
    counter, gauge, histogram = self.families
    self.counter, self.gauge = counter.Metric(labels={"a": "b"}), gauge.Metric(labels={})
    self.histogram = histogram.Metric(labels={}, buckets=[0.05, 0.5])
    self.executed = 0

def execute(self, requests):
    time.sleep(float(values(requests[0])[0]))
    self.counter.increment(1)
    self.executed += 1
    self.gauge.set(self.executed)
    self.histogram.observe(0.25)
    return [respond(request, values(request)) for request in requests]
"""


def test_a_model_that_somebody_has_loaded_outlives_the_broker_with_what_is_inside_it(repository, stack):
    repository.add("sleepy", SLEEPY)
    broker = stack.broker("--model-control-mode=explicit")
    host = stack.stub_host()
    gateway = stack.gateway()
    eventually(lambda: load(gateway, "sleepy") == (200, ""))  # once the gateway knows of the broker's models
    repository.add("configured")
    other = json.dumps({**CONFIG_JSON, "max_batch_size": 3})
    assert load(gateway, "configured", config=other) == (200, "")
    code = base64.b64encode(code_of(NUMBER % 7)).decode()
    assert load(gateway, "brought", config=json.dumps(CONFIG_JSON), **{"file:1/model.py": code}) == (200, "")
    stubs = host.stubs()
    statuses = []
    work = Background(3, lambda: statuses.append(gateway.post("sleepy", [0.1], timeout_s=20).status))
    for _ in range(2):
        done = len(statuses)
        eventually(lambda done=done: len(statuses) > done + 3)
        broker.kill()
        broker = stack.broker("--model-control-mode=explicit")
    done = len(statuses)
    eventually(lambda: len(statuses) > done + 10)
    work.stop()
    assert set(statuses) == {200}
    assert gateway.call("GET", "/v2/models/configured/config").json["max_batch_size"] == 3
    assert gateway.post("brought", [0.0]).data == [7]
    assert host.stubs() == stubs
    count = float(len(statuses))
    assert (
        custom(broker).items()
        >= {
            'counter{a="b"}': count,
            "gauge": count,
            'histogram_bucket{le="0.05"}': 0,
            'histogram_bucket{le="0.5"}': count,
            "histogram_sum": count / 4,
        }.items()
    )


def test_models_of_one_name_are_told_apart_by_their_repositories(repository, stack, tmp_path):
    other = Repository(tmp_path / "other")
    for place, number in ((repository, 1), (other, 2)):
        place.path.mkdir(exist_ok=True)
        place.add("part", NUMBER % number)
        add_chain(place, f"gives{number}", "part")
    flags = "--model-namespacing=true", f"--model-repository={other.path}", "--model-control-mode=explicit"
    broker = stack.broker(*flags)
    host = stack.stub_host("--model=part")
    gateway = stack.gateway()
    for number in (1, 2):
        eventually(lambda number=number: load(gateway, f"gives{number}") == (200, ""))

    def right() -> bool:
        answer = gateway.post("part", [0.0])
        ambiguous = answer.status == 400 and "model namespace must be provided to resolve ambiguity" in answer.error
        return ambiguous and [gateway.post(f"gives{number}", [0.0]).data for number in (1, 2)] == [[1.0], [2.0]]

    assert right()
    assert gateway.post("nope", [0.0]).status == 400
    pids = host.stubs()
    broker.kill()
    stack.broker(*flags)

    def parts_are_back() -> bool:
        index = gateway.call("POST", "/v2/repository/index")
        names = [row["name"] for row in index.json if row.get("state") == "READY"] if index.status == 200 else []
        return names == ["part"] * 2 and host.stubs() == pids

    eventually(parts_are_back)  # nobody has told this one of the ensembles
    for number in (1, 2):
        assert load(gateway, f"gives{number}") == (200, "")
    assert right()


def test_what_a_model_has_loaded_is_there_as_soon_as_it_says_so(repository, stack):
    repository.add("loader", LOADER)
    repository.add("other")
    stack.broker("--model-control-mode=explicit", "--load-model=loader")
    stack.stub_host()
    gateway = ready(stack.gateway(), "loader")
    for _ in range(5):
        assert gateway.post("loader", [1]).data == [1]
        assert gateway.post("other", [2]).data == [2]
        assert gateway.call("POST", "/v2/repository/models/other/unload", b"{}").status == 200
