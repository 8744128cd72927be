"""A model takes its whole batch as one array, without a copy where the requests came one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.system.conftest import Repository, Server, Start, together

CONFIG = """
backend: "python"
max_batch_size: 8
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 3 ] }]
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 10000000 }
instance_group [{ kind: KIND_CPU count: 1 }]
"""

# The first element of the request's own row; whether the batch was a view; how many rows it had.
TAKES_ONE_ARRAY = """
def execute(self, requests):
    batch = pb_utils.input_batch_as_numpy(requests, "IN")
    is_view = np.shares_memory(batch, values(requests[0]))
    return [respond(request, np.array([[row[0], is_view, len(batch)]], np.float32))
            for request, row in zip(requests, batch)]
"""

KEEPS_IT = TAKES_ONE_ARRAY.replace(
    "    is_view", "    self.kept = getattr(self, 'kept', [])\n    self.kept.append(batch[0])\n    is_view"
)


def rows(server: Server, protocol: str, length: int, marks: list[float]) -> list[list[float]]:
    """The answers to as many requests at once, each of one row whose elements are its mark."""

    def send(mark: float) -> list[float]:
        module = {"grpc": tritonclient.grpc, "http": tritonclient.http}[protocol]
        array = np.full((1, length), mark, np.float32)
        tensor = module.InferInput("IN", array.shape, "FP32")
        tensor.set_data_from_numpy(array)
        with module.InferenceServerClient({"grpc": server.grpc, "http": server.http}[protocol]) as client:
            return list(client.infer("m", [tensor]).as_numpy("OUT")[0])

    return together(len(marks), [lambda mark=mark: send(mark) for mark in marks])  # type: ignore[misc]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_batch_is_one_array(repository: Repository, start: Start, protocol: str) -> None:
    repository.add("m", TAKES_ONE_ARRAY, config=CONFIG)
    server = start()
    for length, is_view in ((16384, 1.0), (262144, 1.0), (16, 0.0)):
        marks = [1.0, 2.0, 3.0, 4.0]
        found = rows(server, protocol, length, marks)
        assert [row[0] for row in found] == marks
        assert [row[2] for row in found] == [4.0] * 4
        if protocol == "grpc" or length < 16384:  # large ones of HTTP clients may end in another order
            assert [row[1] for row in found] == [is_view] * 4, length


def test_a_model_that_keeps_rows_keeps_them_as_they_were(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    repository.add(
        "m",
        KEEPS_IT
        + f"""
def finalize(self):
    open({str(flag("kept"))!r}, "w").write(" ".join(str(float(row.min())) for row in self.kept))
""",
        config=CONFIG,
    )
    server = start()
    for turn in range(12):
        rows(server, "grpc", 16384, [float(turn)] * 4)
    assert server.terminate() == 0
    assert flag("kept").read_text().split() == [str(float(turn)) for turn in range(12)]
