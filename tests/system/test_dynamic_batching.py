"""What a model is given when requests are batched: a list of requests, each with its own tensors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tritonclient.http as httpclient

from tests.system.conftest import eventually

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
