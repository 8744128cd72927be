"""Requests that wait for a model with dynamic batching: how many, for how long, who goes first, who is told when."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from tests.system.conftest import Answer, Repository, Server, eventually, serving
from tests.system.ensemble_models import add_ensemble, step, tensors

CONFIG = """
backend: "python"
max_batch_size: 4
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }]
dynamic_batching { preferred_batch_size: [ 1 ] %s }
instance_group [{ kind: KIND_CPU count: %d }]
"""

# Writes down what it begins with; ends nothing before a file is there that is named like the model and the value, as
# far as that is below 2.
GATED = """
def initialize(self, args):
    self.path = os.path.join(os.environ["GATES"], args["model_name"])

def execute(self, requests):
    (value,) = [values(request)[0, 0] for request in requests]
    with open(self.path + ".begun", "a") as log:
        log.write("%g " % value)
    if value < 2:
        wait_for("%s.%g" % (self.path, value))
    return [respond(request, values(request)) for request in requests]
"""

LIMITED = "default_queue_policy { max_queue_size: 4 default_timeout_microseconds: 500000 }"
RANKED = """
  priority_levels: 3
  default_priority_level: 2
  priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 100000 } }
"""

# Calls "called" ten times at once; OUT tells how many of the calls ended well, were refused, and waited for too long.
PARENT = """
async def execute(self, requests):
    import asyncio
    tensor = pb_utils.Tensor("IN", np.ones((1, 1), np.float32))
    calls = [pb_utils.InferenceRequest(model_name="called", inputs=[tensor], requested_output_names=["OUT"])
             for _ in range(10)]
    answers = await asyncio.gather(*[call.async_exec() for call in calls])
    texts = [answer.error().message() if answer.has_error() else "" for answer in answers]
    counts = [texts.count(""), sum("Exceeds maximum queue size" in text for text in texts),
              sum("Request timeout expired" in text for text in texts)]
    return [respond(request, np.array(counts, np.float32)) for request in requests]
"""


class Gates:
    """What gated models have begun with, and what lets them end."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, model: str, value: int) -> None:
        (self._path / f"{model}.{value}").touch()

    def begun(self, model: str) -> list[float]:
        file = self._path / f"{model}.begun"
        return [float(text) for text in file.read_text().split()] if file.exists() else []


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    return Gates(tmp_path_factory.mktemp("gates"))


@pytest.fixture(scope="module")
def server(gates: Gates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("policies")
    repository = Repository(path / "models")
    for model in ("limited", "called", "step"):
        repository.add(model, GATED, config=CONFIG % (LIMITED, 1))
    repository.add("ranked", GATED, config=CONFIG % (RANKED, 1))
    repository.add("ordered", GATED, config=CONFIG % ("preserve_ordering: true", 2))
    repository.add("parent", PARENT)
    unscheduled = [line for line in (CONFIG % ("", 1)).splitlines() if "dynamic_batching" not in line]
    repository.add("unscheduled", GATED, config="\n".join(unscheduled))
    repository.add("batched", GATED, config=CONFIG % ("", 1))
    repository.add("levels", GATED, config=CONFIG % ("priority_levels: 2 default_priority_level: 1", 1))
    io = tensors("input", "IN", dims="1") + tensors("output", "OUT", dims="1")
    add_ensemble(repository, "whole", step("step", {"IN": "IN"}, {"OUT": "OUT"}), io=io, max_batch_size=4)
    with serving(repository, path) as start:
        yield start("--log-verbose=1", environ={"GATES": str(gates._path)})


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(60) as pool:
        yield pool


def send(server: Server, model: str, value: float, **parameters: int) -> Answer:
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    return server.call("POST", f"/v2/models/{model}/infer", body)


def told(answers: list[Future[Answer]]) -> Counter[str]:
    """What went wrong, without the names in it; "" is nothing."""
    texts = []
    for future in answers:
        answer = future.result(60)
        assert answer.status in (200, 503), answer
        texts.append("" if answer.status == 200 else answer.error.split("] ")[-1].split(", ")[-1])
    return Counter(texts)


ONE_RUNS_AND_FOUR_WAIT = {"": 1, "Exceeds maximum queue size": 45, "Request timeout expired": 4}


@pytest.mark.parametrize(("front", "model"), [("limited", "limited"), ("whole", "step")])
def test_a_queue_s_limit_is_exact_and_who_waits_for_too_long_is_told_at_once(server, gates, clients, front, model):
    """Also if it is an ensemble whose step is refused."""
    running = clients.submit(send, server, front, 1)
    eventually(lambda: gates.begun(model))
    others = [clients.submit(send, server, front, 1) for _ in range(49)]
    eventually(lambda: all(one.done() for one in others), what="they are told while the instance is busy")
    gates.open(model, 1)
    assert told([running, *others]) == ONE_RUNS_AND_FOUR_WAIT
    assert server.failures(model) == {"REJECTED": 4}  # those that were refused count nowhere
    assert server.metric("nv_inference_request_success", model) == 1
    assert server.pending(model) == 0


def test_calls_of_a_model_are_refused_and_expire_as_requests_of_clients_do(server, gates, clients):
    parent = clients.submit(server.post, "parent", [0])
    eventually(lambda: gates.begun("called"))
    eventually(lambda: server.failures("called") == {"REJECTED": 4})
    gates.open("called", 1)
    assert parent.result(60).data == [1, 5, 4]
    assert server.failures("parent") == {}


def test_better_priorities_go_first_and_those_that_a_policy_delays_after_their_equals(server, gates, clients):
    def queue(value: int, **parameters: int) -> None:
        before = server.pending("ranked")
        answers.append(clients.submit(send, server, "ranked", value, **parameters))
        eventually(lambda: server.pending("ranked") == before + 1)

    answers = [clients.submit(send, server, "ranked", 1)]
    eventually(lambda: gates.begun("ranked"))
    queue(30, priority=3)
    queue(20)
    queue(21, priority=2)
    queue(22, priority=9)
    queue(10, priority=1)
    delayed_at = time.monotonic() + 0.1
    eventually(lambda: time.monotonic() > delayed_at)
    queue(11, priority=1)
    gates.open("ranked", 1)
    assert [answer.result(60).status for answer in answers] == [200] * 7
    assert gates.begun("ranked") == [1, 11, 10, 20, 21, 22, 30]


def test_with_preserve_ordering_no_response_overtakes_that_to_an_earlier_request(server, gates, clients):
    first = clients.submit(send, server, "ordered", 1)
    eventually(lambda: gates.begun("ordered") == [1])
    second = clients.submit(send, server, "ordered", 2)
    eventually(lambda: server.metric("nv_inference_exec_count", "ordered") == 1)
    assert not second.done()
    gates.open("ordered", 1)
    assert [first.result(60).status, second.result(60).status] == [200, 200]
    assert server.metric("nv_inference_exec_count", "ordered") == 2


@pytest.mark.parametrize("model", ["unscheduled", "batched", "levels"])
def test_a_cancelled_request_leaves_the_queue_and_reaches_no_model(server, gates, clients, model):
    running = clients.submit(send, server, model, 1)
    eventually(lambda: gates.begun(model))
    tensor = tritonclient.grpc.InferInput("IN", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.full((1, 1), 2, np.float32))
    errors = []
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        call = client.async_infer(model, [tensor], lambda result, error: errors.append(error))
        eventually(lambda: server.pending(model) == 1)
        behind = clients.submit(send, server, model, 3)
        eventually(lambda: server.pending(model) == 2)
        call.cancel()
        eventually(lambda: errors and server.pending(model) == 1, what="it goes while the instance is busy")
    gates.open(model, 1)
    assert [running.result(60).status, behind.result(60).status] == [200, 200]
    assert [error.status() for error in errors] == ["StatusCode.CANCELLED"]
    assert gates.begun(model) == [1, 3]
    assert server.failures(model) == {"CANCELED": 1}
