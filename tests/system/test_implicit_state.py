"""Implicit state: what a model of a sequence answers comes back to it with the next request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from tests.system.conftest import Repository, Server, Start, serving

CONFIG = """
backend: "{backend}"
max_batch_size: 4
input [{{ name: "INPUT__0" data_type: TYPE_FP32 dims: [ 2 ] }}]
output [{{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 2 ] }} {outputs}]
sequence_batching {{
  {strategy}
  state [{{ input_name: "INPUT__1" output_name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ {dims} ] {initial} }}]
}}
"""
# Answers the state and keeps the sum of it and the input. -1 is an error.
PYTHON = """
def execute(self, requests):
    answers = []
    for request in requests:
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        state, value = given["INPUT__1"], given["INPUT__0"]
        old = state.copy()
        state += value
        if value[0, 0] == -1:
            answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("as wanted")))
            continue
        tensors = {"OUTPUT__0": np.zeros((1, 2), np.float32) + old.sum(), "OUTPUT__1": state}
        answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(*one) for one in tensors.items()]))
    return answers
"""
GROWING = PYTHON.replace("state += value", "state = np.concatenate([state, value], 1)")
BOTH = ', { name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 2 ] }'


def config(
    backend: str = "python", strategy: str = "direct {}", dims: str = "2", initial: str = "", outputs: str = ""
) -> str:
    text = f"initial_state {{ name: 'first' data_type: TYPE_FP32 dims: [ 2 ] {initial} }}" if initial else ""
    return CONFIG.format(backend=backend, strategy=strategy, dims=dims, initial=text, outputs=outputs)


def with_file(repository: Repository, name: str, content: bytes) -> None:
    folder = repository.path / name / "initial_state"
    folder.mkdir()
    (folder / "data").write_bytes(content)


def onnx_sum(path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ("N", 2))

    nodes = [
        helper.make_node("Identity", ["INPUT__1"], ["OUTPUT__0"]),
        helper.make_node("Add", ["INPUT__0", "INPUT__1"], ["OUTPUT__1"]),
    ]
    inputs, outputs = [[value(f"{kind}__{number}") for number in (0, 1)] for kind in ("INPUT", "OUTPUT")]
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True)
    onnx.save(model, path)


def torch_sum(path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Sum(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return state, x + state

    path.parent.mkdir(parents=True)
    torch.jit.script(Sum()).save(str(path))


class Sequences:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = tritonclient.grpc.InferenceServerClient(server.grpc)

    def infer(self, model: str, id: int, value: float, flags: str = "") -> Any:
        tensor = tritonclient.grpc.InferInput("INPUT__0", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.full((1, 2), value, np.float32))
        return self.client.infer(
            model, [tensor], sequence_id=id, sequence_start="S" in flags, sequence_end="E" in flags
        )

    def run(self, model: str, id: int, *steps: tuple[float, str]) -> list[list[float]]:
        return [self.infer(model, id, *step).as_numpy("OUTPUT__0").reshape(-1).tolist() for step in steps]


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequences]:
    repository = Repository(tmp_path_factory.mktemp("models"))
    repository.add("direct", PYTHON, config=config())
    repository.add("oldest", PYTHON, config=config(strategy="oldest { max_candidate_sequences: 8 }"))
    repository.add("zeros", PYTHON, config=config(dims="-1", initial="zero_data: true"))
    repository.add("file", PYTHON, config=config(initial="data_file: 'data'"))
    repository.add("growing", GROWING, config=config(dims="-1"))
    repository.add("both", PYTHON, config=config(outputs=BOTH))
    with_file(repository, "file", np.array([3, 4], np.float32).tobytes())
    with serving(repository, tmp_path_factory.mktemp("logs")) as start:
        yield Sequences(start())


STEPS = ((1.0, "S"), (2.0, ""), (3.0, "E"))


@pytest.mark.parametrize("model", ["direct", "oldest", "zeros"])
def test_it_is_kept_for_each_sequence_and_begins_with_zeros(sequences: Sequences, model: str) -> None:
    for _ in range(2):
        assert sequences.run(model, 1, *STEPS) == [[0, 0], [2, 2], [6, 6]]
    for id in (1, 2, 3):
        sequences.infer(model, id, id, "S")
    assert [sequences.run(model, id, (0, "E")) for id in (3, 1, 2)] == [[[6, 6]], [[2, 2]], [[4, 4]]]


def test_it_begins_with_what_a_file_holds(sequences: Sequences) -> None:
    assert sequences.run("file", 1, *STEPS) == [[7, 7], [9, 9], [13, 13]]


def test_a_new_start_begins_anew(sequences: Sequences) -> None:
    assert sequences.run("direct", 1, (1.0, "S"), (1.0, ""), (5.0, "S"), (1.0, "E")) == [
        [0, 0],
        [2, 2],
        [0, 0],
        [10, 10],
    ]


def test_its_shape_may_change(sequences: Sequences) -> None:
    """A variable dimension begins as 1."""
    assert sequences.run("growing", 1, *STEPS) == [[0, 0], [2, 2], [6, 6]]


def test_it_is_answered_too_if_it_is_an_output(sequences: Sequences) -> None:
    result = sequences.infer("both", 1, 4.0, "S")
    assert result.as_numpy("OUTPUT__1").tolist() == [[4, 4]]
    assert sequences.infer("direct", 1, 4.0, "S").as_numpy("OUTPUT__1") is None


def test_a_request_that_fails_leaves_it_as_it_was(sequences: Sequences) -> None:
    sequences.infer("direct", 9, 5.0, "S")
    with pytest.raises(tritonclient.grpc.InferenceServerException, match="as wanted"):
        sequences.infer("direct", 9, -1.0)
    assert sequences.run("direct", 9, (1.0, "E")) == [[10, 10]]


def test_a_file_that_is_too_short_is_refused(repository: Repository, start: Start) -> None:
    repository.add("m", PYTHON, config=config(initial="data_file: 'data'"))
    with_file(repository, "m", b"1234567")
    reason = start("--exit-on-error=false").index()["m:1"]["reason"]
    assert "initial_state setting expects 8 bytes, but the data provided from dataonly has 7 bytes." in reason


@pytest.mark.parametrize(("backend", "make"), [("onnxruntime", onnx_sum), ("pytorch", torch_sum)])
def test_other_backends_keep_it_too(repository: Repository, start: Start, backend: str, make: Any) -> None:
    make(repository.path / "m" / "1" / ("model.onnx" if backend == "onnxruntime" else "model.pt"))
    (repository.path / "m" / "config.pbtxt").write_text(config(backend))
    sequences = Sequences(start())
    for id in (1, 2):
        assert sequences.run("m", id, (1.0, "S")) == [[0, 0]]
    assert sequences.run("m", 2, (2.0, ""), (3.0, "E")) == [[1, 1], [3, 3]]
    assert sequences.run("m", 1, (2.0, "E")) == [[1, 1]]
