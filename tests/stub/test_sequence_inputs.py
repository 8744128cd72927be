"""What requests of sequences get besides their own inputs, and the null requests among them."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
from _tensorbus_app.protocol import messages

Load = Callable[..., Any]

# Answers every input that it gets, and writes to all of them.
MIRROR = """
import numpy as np
class TritonPythonModel:
    def initialize(self, args):
        self.batches = []

    def execute(self, requests):
        batch, answers = [], []
        for request in requests:
            given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            batch.append({name: array.tolist() for name, array in given.items()})
            for array in given.values():
                array.fill(b"x" if array.dtype == object else 1)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))]))
        self.batches.append(batch)
        return answers
"""


def controls(*rows: tuple[str, str, Any]) -> dict[str, Any]:
    """Of name, kind, and false and true or the data type."""
    fields = {int: "int32_false_true", float: "fp32_false_true", bool: "bool_false_true"}
    return {
        "control_input": [
            {
                "name": name,
                "control": [
                    {"kind": "CONTROL_SEQUENCE_" + kind}
                    | ({"data_type": value} if isinstance(value, str) else {fields[type(value[0])]: value})
                ],
            }
            for name, kind, value in rows
        ]
    }


ALL = controls(
    ("s", "START", [0, 1]), ("e", "END", [-1.0, 1.0]), ("r", "READY", [False, True]), ("c", "CORRID", "TYPE_INT64")
)


def sequence_model(load: Load, batching: dict[str, Any], max_batch_size: int = 4) -> Any:
    return load(MIRROR, sequence_batching=batching, max_batch_size=max_batch_size)


def execute(loaded: Any, requests: list[Any], slots: list[int], places: int = 0) -> list[dict[str, Any]]:
    batch = messages.Batch(7, requests, slots, places)
    executed = loaded.session.execute(batch, loaded.memory.view, [])
    assert [one.request for one in executed.responses] == [one.id for one in requests]
    assert all(one.error is None for one in executed.responses), executed.responses
    return list(loaded.model.instance.batches[-1])


X = {"IN": np.array([[5, 6]], np.float32)}


@pytest.mark.parametrize(("flags", "start", "end"), [(0, 0, -1.0), (1, 1, -1.0), (2, 0, 1.0), (3, 1, 1.0)])
def test_controls_say_what_the_flags_say(load: Load, flags: int, start: int, end: float) -> None:
    loaded = sequence_model(load, ALL)
    for _ in range(2):
        (seen,) = execute(loaded, [loaded.request(X, flags=flags, correlation_id=9)], [2], 0)
        assert seen == {"IN": [[5, 6]], "s": [[start]], "e": [[end]], "r": [[True]], "c": [[9]]}


def test_without_batching_they_have_one_dimension(load: Load) -> None:
    loaded = sequence_model(load, ALL, max_batch_size=0)
    (seen,) = execute(loaded, [loaded.request(X, correlation_id=9)], [0], 1)
    assert (seen["s"], seen["c"]) == ([0], [9])


@pytest.mark.parametrize(
    ("datatype", "id", "shown"),
    [
        ("TYPE_UINT64", 2**64 - 1, 2**64 - 1),
        ("TYPE_INT64", 2**64 - 1, -1),
        ("TYPE_UINT32", 2**32 + 5, 5),
        ("TYPE_INT32", 2**32 - 1, -1),
        ("TYPE_STRING", "größe", "größe".encode()),
    ],
)
def test_a_correlation_id_in_the_type_of_its_input(load: Load, datatype: str, id: Any, shown: Any) -> None:
    loaded = sequence_model(load, controls(("c", "CORRID", datatype)))
    (seen,) = execute(loaded, [loaded.request(X, correlation_id=id)], [0], 1)
    assert seen["c"] == [[shown]]


def test_places_without_a_request_get_null_requests(load: Load) -> None:
    loaded = sequence_model(load, ALL)
    text = {"IN": np.array([[b"long", b"words"]], object), "N": np.ones((1, 3), np.int8)}
    requests = [loaded.request(text, flags=1, correlation_id=9) for _ in range(2)]
    for _ in range(2):
        seen = execute(loaded, requests, [1, 3], 4)
        controls = {"s": [[0]], "e": [[-1.0]], "r": [[False]], "c": [[0]]}
        assert seen[0] == {"IN": [[b"", b""]], "N": [[0, 0, 0]], **controls}
        assert {name: seen[2][name] for name in controls} == controls  # of the rest nothing is promised
        assert [one["r"] for one in seen] == [[[False]], [[True]], [[False]], [[True]]]


def test_a_cancelled_request_leaves_its_place_empty(load: Load) -> None:
    loaded = sequence_model(load, ALL)
    requests = [loaded.request(X), loaded.request(X)]
    loaded.session.cancel(messages.Cancel(messages.CANCEL, [requests[0].id]))
    batch = messages.Batch(7, requests, [0, 1], 2)
    executed = loaded.session.execute(batch, loaded.memory.view, [])
    assert [one.error for one in executed.responses] == [(7, ""), None]
    assert [one["r"] for one in loaded.model.instance.batches[-1]] == [[[False]], [[True]]]
