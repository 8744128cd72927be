"""What a model is given when requests are batched: a list of requests, each with its own tensors."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http as httpclient

from tests.system.conftest import Answer, Server, eventually, together
from tests.system.ensemble_models import add_ensemble, step, tensors

CONFIG = """
backend: "python"
max_batch_size: 8
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] %s }]
output [
  { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "GROUP" data_type: TYPE_INT64 dims: [ -1 ] }
]
dynamic_batching { max_queue_delay_microseconds: 1000000 }
"""

# GROUP: how many requests this execution had, and the rows of all of them.
CODE = """
def execute(self, requests):
    rows = sum(values(request).shape[0] for request in requests)
    responses = []
    for request in requests:
        array = values(request)
        group = np.tile(np.array([[len(requests), rows]], np.int64), (array.shape[0], 1))
        tensors = [pb_utils.Tensor("OUT", array * 2), pb_utils.Tensor("GROUP", group)]
        responses.append(pb_utils.InferenceResponse(tensors))
    return responses
"""

SHAPES = [(1, 3), (1, 3), (2, 3), (1, 5)]


def send(address: str, number: int, shape: tuple[int, ...]) -> tuple[int, int]:
    """One request; the group that it was executed in."""
    with httpclient.InferenceServerClient(address) as client:
        array = np.full(shape, number, np.float32)
        given = httpclient.InferInput("IN", shape, "FP32")
        given.set_data_from_numpy(array)
        result = client.infer("m", [given])
        np.testing.assert_array_equal(result.as_numpy("OUT"), array * 2)
        group = result.as_numpy("GROUP")
        assert group.shape == (shape[0], 2)
        return tuple(group[0])


@pytest.mark.parametrize(("ragged", "groups"), [(False, {(3, 4), (1, 1)}), (True, {(4, 5)})])
def test_requests_of_equal_shape_share_an_execution_and_others_too_if_ragged(start, repository, ragged, groups):
    repository.add("m", CODE, config=CONFIG % ("allow_ragged_batch: true" if ragged else ""))
    server = start()
    with ThreadPoolExecutor(len(SHAPES)) as pool:
        answers = []
        for number, shape in enumerate(SHAPES):  # in this order: a batch is cut where the next one does not fit
            answers.append(pool.submit(send, server.http, number, shape))
            eventually(lambda: server.pending("m") == len(answers) or answers[0].done())
        assert {answer.result(60) for answer in answers} == groups
    (stats,) = server.get("/v2/models/m/stats").json["model_stats"]
    assert (stats["inference_count"], stats["execution_count"]) == (5, len(groups))


BATCH = """
backend: "python"
max_batch_size: 8
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }]
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 60000000 }
batch_input [{
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "COUNTS" data_type: TYPE_FP32 source_input: "IN"
}]
"""

# Refuses what is below 0, and what comes with more inputs than one.
PICKY = """
def execute(self, requests):
    def answer(request):
        if values(request)[0, 0] < 0 or len(request.inputs()) > 1:
            bad = pb_utils.TritonError("bad", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(output_tensors=[], error=bad)
        return respond(request, values(request))
    return [answer(request) for request in requests]
"""

PARENT = """
def execute(self, requests):
    (request,) = requests
    tensor = pb_utils.get_input_tensor_by_name(request, "IN")
    call = pb_utils.InferenceRequest(model_name="picky", inputs=[tensor], requested_output_names=["OUT"])
    answer = call.exec()
    if answer.has_error():
        return [pb_utils.InferenceResponse(output_tensors=[], error=answer.error())]
    return [respond(request, answer.output_tensors()[0].as_numpy())]
"""


def test_one_bad_request_of_a_batch_fails_alone_through_other_models_too(start, repository):
    """Why the batch was closed is in the log and among the metrics. What is made of batch_input for other backends is
    not for Python models."""
    repository.add("picky", PICKY, config=BATCH)
    one = BATCH[: BATCH.index("dynamic_batching")]
    repository.add("parent", PARENT, config=one + "instance_group [{ kind: KIND_CPU count: 4 }]")
    io = tensors("input", "IN", dims="1") + tensors("output", "OUT", dims="1")
    add_ensemble(repository, "whole", step("picky", {"IN": "IN"}, {"OUT": "OUT"}), io=io, max_batch_size=8)
    server = start("--log-verbose=1", "--model-control-mode=explicit", "--load-model=*")
    for batches, front in enumerate(("picky", "parent", "whole"), 1):
        jobs = [lambda value=value, front=front: infer(server, front, value) for value in (1, -1, 2, 3)]
        first, bad, *others = together(4, jobs)
        assert [answer.data for answer in (first, *others)] == [[1], [2], [3]]
        assert (bad.status, bad.error.split(", ")[-1]) == (400, "bad")
        (row,) = server.get("/v2/models/picky/stats").json["model_stats"]
        assert [(one["batch_size"], one["compute_infer"]["count"]) for one in row["batch_stats"]] == [(4, batches)]
        assert (row["inference_count"], row["execution_count"]) == (3 * batches, batches)
        assert server.failures("picky") == {"BACKEND": batches}
    closed = server.lines('"batch closed"', "model=picky", "requests=4 batch_size=4", "why=preferred_size", "left=0")
    assert len(closed) == 3
    assert server.metric("tensorbus_batch_closed_total", "picky", reason="preferred_size") == 3
    assert server.call("POST", "/v2/repository/models/picky/unload").status == 200
    eventually(lambda: not any("batch_closed" in line and "picky" in line for line in server.exposition()))


def infer(server: Server, model: str, value: float) -> Answer:
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [value]}
    return server.call("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())


def test_the_first_batch_waits_for_so_many_requests_if_the_environment_says_so(start, repository):
    repository.add("m", CODE, config=CONFIG.replace("1000000", "0") % "")
    server = start(environ={"TRITONSERVER_DELAY_SCHEDULER": "4"})
    jobs = [lambda number=number: send(server.http, number, (1, 3)) for number in range(4)]
    assert together(4, jobs) == [(4, 4)] * 4
    assert send(server.http, 9, (2, 3)) == (1, 2)
    # Each request has the time of its whole batch.
    eventually(lambda: server.statistics("m")["success"]["count"] == 5)
    (row,) = server.get("/v2/models/m/stats").json["model_stats"]
    two, four = row["batch_stats"]
    assert (two["batch_size"], four["batch_size"]) == (2, 4)
    for what in ("compute_input", "compute_infer", "compute_output"):
        assert row["inference_stats"][what]["ns"] == two[what]["ns"] + 4 * four[what]["ns"]
    assert row["inference_stats"]["queue"]["count"] == 5
