"""The onnxruntime backend, with models that are made here."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.system.conftest import Repository, Start, eventually, together

onnx = pytest.importorskip("onnx", reason="the package onnx, which makes the models, is not installed")
pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
httpclient = pytest.importorskip("tritonclient.http")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT, STRING, HALF, BOOL, INT64 = (
    TensorProto.FLOAT,
    TensorProto.STRING,
    TensorProto.FLOAT16,
    TensorProto.BOOL,
    TensorProto.INT64,
)
IDENTITY = [helper.make_node("Identity", ["X"], ["Y"])]


def value(name: str, datatype: int, *dims: int | str) -> Any:
    return helper.make_tensor_value_info(name, datatype, dims)


def make(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], initializers: Sequence[Any] = ()) -> Any:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def identity(datatype: int = FLOAT, *dims: int | str) -> Any:
    dims = dims or ("N", 3)
    return make(IDENTITY, [value("X", datatype, *dims)], [value("Y", datatype, *dims)])


def add(repository: Repository, model: Any, config: str = "", name: str = "m", file: str = "model.onnx") -> Path:
    path = repository.path / name / "1" / file
    path.parent.mkdir(parents=True)
    if isinstance(model, bytes):
        path.write_bytes(model)
    else:
        onnx.save(model, path)
    if config:
        (repository.path / name / "config.pbtxt").write_text(textwrap.dedent(config))
    return path


def infer(server: Any, inputs: dict[str, Any], datatype: str = "FP32", model: str = "m") -> Any:
    """The array of output Y, by the client library."""
    given = []
    for name, array in inputs.items():
        tensor = httpclient.InferInput(name, array.shape, datatype)
        tensor.set_data_from_numpy(array)
        given.append(tensor)
    with httpclient.InferenceServerClient(server.http) as client:
        return client.infer(model, given).as_numpy("Y")


def config_of(server: Any, model: str = "m") -> dict[str, Any]:
    answer = server.get(f"/v2/models/{model}/config")
    assert answer.status == 200, answer
    return answer.json


def reason(start: Start) -> str:
    server = start("--exit-on-error=false")
    return str(server.index()["m:1"]["reason"])


def shapes(config: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry["dims"] for entry in [*config["input"], *config["output"]]}


# --- auto-completion --------------------------------------------------------------------------------------------


def test_a_model_file_is_all_that_a_model_needs(repository: Repository, start: Start) -> None:
    add(repository, identity())
    server = start()
    config = config_of(server)
    assert (config["backend"], config["platform"]) == ("onnxruntime", "onnxruntime_onnx")
    assert config["default_model_filename"] == "model.onnx"
    assert (config["max_batch_size"], config["dynamic_batching"]["preferred_batch_size"]) == (4, [4])
    assert shapes(config) == {"X": [3], "Y": [3]}
    assert [group["count"] for group in config["instance_group"]] == [2]
    assert len(server.stubs("m")) == 2
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(infer(server, {"X": array}), array)
    assert server.get("/v2/models/m").json["platform"] == "onnxruntime_onnx"
    assert server.lines("| onnxruntime |")


def test_a_model_of_fixed_shape_does_not_batch(repository: Repository, start: Start) -> None:
    add(repository, identity(FLOAT, 2, 3))
    server = start()
    config = config_of(server)
    assert config["max_batch_size"] == 0 and "dynamic_batching" not in config
    assert shapes(config) == {"X": [2, 3], "Y": [2, 3]}
    assert infer(server, {"X": np.ones((2, 3), np.float32)}).tolist() == [[1, 1, 1]] * 2


@pytest.mark.parametrize("flag", ["onnxruntime,default-max-batch-size=9", "default-max-batch-size=9"])
def test_the_default_maximum_batch_size_can_be_set(repository: Repository, start: Start, flag: str) -> None:
    add(repository, identity())
    assert config_of(start(f"--backend-config={flag}"))["max_batch_size"] == 9


def test_what_a_configuration_leaves_out_is_filled_in(repository: Repository, start: Start) -> None:
    add(
        repository,
        identity(),
        """
        max_batch_size: 2
        input [{ name: "X" }]
        instance_group [{ kind: KIND_CPU count: 1 }]
        """,
    )
    server = start()
    config = config_of(server)
    assert config["max_batch_size"] == 2
    assert config["input"][0]["data_type"] == "TYPE_FP32"
    assert shapes(config) == {"X": [3], "Y": [3]}
    assert len(server.stubs("m")) == 1


def test_a_complete_configuration_needs_no_completion(repository: Repository, start: Start) -> None:
    add(
        repository,
        identity(),
        """
        backend: "onnxruntime"
        input [{ name: "X" data_type: TYPE_FP32 dims: [ -1, 3 ] }]
        output [{ name: "Y" data_type: TYPE_FP32 dims: [ -1, 3 ] }]
        """,
    )
    server = start("--disable-auto-complete-config")
    assert config_of(server)["max_batch_size"] == 0
    assert infer(server, {"X": np.ones((5, 3), np.float32)}).shape == (5, 3)


REFUSALS = [
    (
        identity(FLOAT, 2, 3),
        "max_batch_size: 2",
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified",
    ),
    (
        identity(),
        'input [{ name: "X" data_type: TYPE_INT32 dims: [ 3 ] }] max_batch_size: 1',
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'X', model provides TYPE_FP32",
    ),
    (
        identity(),
        'input [{ name: "Q" data_type: TYPE_FP32 dims: [ 3 ] }] max_batch_size: 1',
        "unexpected inference input 'Q', allowed inputs are: X",
    ),
    (
        identity(),
        'input [{ name: "X" data_type: TYPE_FP32 dims: [ 4 ] }] max_batch_size: 1',
        "model 'm', tensor 'X': the model expects shape [-1,3] but the model configuration specifies shape [-1,4]",
    ),
    (identity(), 'parameters { key: "intra_op_thread_count" value { string_value: "many" } }', "'many'"),
    (
        identity(),
        """
        optimization { execution_accelerators { cpu_execution_accelerator : [ { name : "nosuch" } ] } }
        instance_group [{ kind: KIND_CPU }]
        """,
        "unknown Execution Accelerator 'nosuch' is requested",
    ),
]


@pytest.mark.parametrize("model, config, text", REFUSALS)
def test_what_the_graph_cannot_do_is_refused_without_a_traceback(
    repository: Repository, start: Start, model: Any, config: str, text: str
) -> None:
    add(repository, model, config)
    said = reason(start)
    assert said.startswith("Invalid argument: ") and text in said
    assert "At:" not in said


def test_a_file_that_is_no_model_is_refused(repository: Repository, start: Start) -> None:
    add(repository, b"hello")
    assert reason(start).startswith("Internal: onnx runtime error 7: ")


def test_an_absent_file_is_named(repository: Repository, start: Start) -> None:
    add(repository, identity(), 'backend: "onnxruntime" default_model_filename: "other.onnx"')
    said = reason(start)
    assert said.startswith("Unavailable: unable to find '") and said.endswith("other.onnx' for model 'm'")


# --- values -----------------------------------------------------------------------------------------------------

VALUES = [
    (FLOAT, "FP32", np.float32([[1, np.nan, -0.0]])),
    (HALF, "FP16", np.float16([[1.5, -2, 65504]])),
    (TensorProto.DOUBLE, "FP64", np.float64([[1e300, 2, 3]])),
    (BOOL, "BOOL", np.array([[True, False, True]])),
    (TensorProto.INT8, "INT8", np.int8([[-128, 0, 127]])),
    (TensorProto.INT16, "INT16", np.int16([[-(2**15), 0, 2**15 - 1]])),
    (TensorProto.INT32, "INT32", np.int32([[-(2**31), 0, 2**31 - 1]])),
    (INT64, "INT64", np.int64([[-(2**63), 0, 2**63 - 1]])),
    (TensorProto.UINT8, "UINT8", np.uint8([[0, 1, 255]])),
    (TensorProto.UINT16, "UINT16", np.uint16([[0, 1, 65535]])),
    (TensorProto.UINT32, "UINT32", np.uint32([[0, 1, 2**32 - 1]])),
    (TensorProto.UINT64, "UINT64", np.uint64([[0, 1, 2**64 - 1]])),
]


def test_every_datatype_goes_through(repository: Repository, start: Start) -> None:
    for number, datatype, _ in VALUES:
        add(repository, identity(number), "instance_group [{ kind: KIND_CPU count: 1 }]", name=datatype)
    server = start()
    for _, datatype, array in VALUES:
        result = infer(server, {"X": array}, datatype, model=datatype)
        assert result.dtype == array.dtype and result.tobytes() == array.tobytes(), datatype


def test_strings_are_text(repository: Repository, start: Start) -> None:
    add(repository, identity(STRING, "N", "M"))
    server = start()
    given = np.array([["a", ""], ["äöü", "x" * 10000]], dtype=object)
    assert infer(server, {"X": given}, "BYTES").tolist() == [[text.encode() for text in row] for row in given]
    none = np.zeros((1, 0), dtype=object)
    assert infer(server, {"X": none}, "BYTES").shape == (1, 0)


def test_an_empty_tensor_is_a_tensor(repository: Repository, start: Start) -> None:
    add(repository, identity(FLOAT, "N", "M"))
    assert infer(start(), {"X": np.zeros((2, 0), np.float32)}).shape == (2, 0)


def test_scalars_are_tensors_of_one_element(repository: Repository, start: Start) -> None:
    add(repository, make(IDENTITY, [value("X", FLOAT)], [value("Y", FLOAT)]), name="single")
    add(repository, identity(FLOAT, "N"), name="batch")
    server = start()
    assert infer(server, {"X": np.float32([3])}, model="single").tolist() == [3]
    assert config_of(server, "batch")["input"][0]["reshape"] == {"shape": []}
    assert infer(server, {"X": np.float32([[3], [4]])}, model="batch").tolist() == [[3], [4]]


def test_an_initializer_that_is_an_input_is_optional(repository: Repository, start: Start) -> None:
    inputs = [value("X", FLOAT, 2), value("W", FLOAT, 2)]
    weights = numpy_helper.from_array(np.float32([10, 20]), "W")
    add(repository, make([helper.make_node("Add", ["X", "W"], ["Y"])], inputs, [value("Y", FLOAT, 2)], [weights]))
    server = start()
    given = np.float32([1, 2])
    assert infer(server, {"X": given}).tolist() == [11, 22]
    assert infer(server, {"X": given, "W": given}).tolist() == [2, 4]


def test_a_model_may_be_a_folder_with_its_weights_beside_it(repository: Repository, start: Start) -> None:
    weights = numpy_helper.from_array(np.arange(4000, dtype=np.float32).reshape(1, 4000), "W")
    model = make(
        [helper.make_node("Add", ["X", "W"], ["Y"])],
        [value("X", FLOAT, "N", 4000)],
        [value("Y", FLOAT, "N", 4000)],
        [weights],
    )
    folder = repository.path / "m" / "1" / "model.onnx"
    folder.mkdir(parents=True)
    onnx.save_model(model, folder / "model.onnx", save_as_external_data=True, location="weights.bin")
    assert (folder / "weights.bin").stat().st_size >= 16000
    result = infer(start(), {"X": np.ones((1, 4000), np.float32)})
    assert result[0, -1] == 4000


# --- running ----------------------------------------------------------------------------------------------------


def test_options_are_handed_on(repository: Repository, start: Start) -> None:
    options = {
        "intra_op_thread_count": "1",
        "inter_op_thread_count": "1",
        "execution_mode": "1",
        "enable_mem_arena": "1",
        "enable_mem_pattern": "0",
        "memory.enable_memory_arena_shrinkage": "cpu:0",
        "session.use_device_allocator_for_initializers": "1",
    }
    given = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}\n' for key, text in options.items()
    )
    for level in (-1, 1, 2):
        add(repository, identity(), given + f"optimization {{ graph {{ level: {level} }} }}", name=f"level{level}")
    server = start()
    for level in (-1, 1, 2):
        assert infer(server, {"X": np.ones((1, 3), np.float32)}, model=f"level{level}").tolist() == [[1, 1, 1]]


def test_a_run_that_fails_is_told_and_the_instance_lives(repository: Repository, start: Start) -> None:
    node = helper.make_node("Reshape", ["X", "S"], ["Y"])
    add(repository, make([node], [value("X", FLOAT, "N"), value("S", INT64, 2)], [value("Y", FLOAT, "A", "B")]))
    server = start()
    (pids,) = [{process.pid for process in server.stubs("m")}]

    def shaped(*shape: int) -> Any:
        inputs = [
            {"name": "X", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]},
            {"name": "S", "datatype": "INT64", "shape": [2], "data": list(shape)},
        ]
        return server.call("POST", "/v2/models/m/infer", json.dumps({"inputs": inputs}).encode())

    failed = shaped(3, 3)
    assert failed.status == 500
    assert failed.error.startswith("onnx runtime error 1: Non-zero status code returned while running Reshape node.")
    assert shaped(2, 2).json["outputs"][0]["shape"] == [2, 2]
    assert {process.pid for process in server.stubs("m")} == pids


def test_many_clients_at_once_get_their_own_answers(repository: Repository, start: Start) -> None:
    add(repository, identity())
    server = start()
    given = [np.full((1 + n % 4, 3), n, np.float32) for n in range(100)]
    results = together(8, [lambda array=array: infer(server, {"X": array}) for array in given])
    assert all(np.array_equal(result, array) for result, array in zip(results, given, strict=True))
    eventually(lambda: server.statistics("m")["success"]["count"] == 100)


RAGGED = """
backend: "onnxruntime"
max_batch_size: 8
input [{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }]
batch_input [{
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO target_name: "ENDS" data_type: TYPE_INT32 source_input: "X"
}]
dynamic_batching { max_queue_delay_microseconds: 200000 }
instance_group [{ count: 1 kind: KIND_CPU }]
"""


def sums_of_ragged_rows() -> Any:
    """Y has the sum of each request: the differences of the running total at the ends."""
    nodes = [
        helper.make_node("CumSum", ["X", "zero"], ["total"]),
        helper.make_node("Concat", ["nothing", "total"], ["totals"], axis=0),
        helper.make_node("Gather", ["totals", "ENDS"], ["at_ends"]),
        helper.make_node("Slice", ["at_ends", "first", "last", "zeros"], ["after"]),
        helper.make_node("Slice", ["at_ends", "zeros", "before_last", "zeros"], ["before"]),
        helper.make_node("Sub", ["after", "before"], ["sums"]),
        helper.make_node("Unsqueeze", ["sums", "first"], ["Y"]),
    ]
    constants = {
        "zero": np.int64(0),
        "nothing": np.float32([0]),
        "zeros": np.int64([0]),
        "first": np.int64([1]),
        "before_last": np.int64([-1]),
        "last": np.int64([2**31]),
    }
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    inputs = [value("X", FLOAT, "N"), value("ENDS", TensorProto.INT32, "M")]
    return make(nodes, inputs, [value("Y", FLOAT, "B", 1)], initializers)


def test_requests_of_any_length_run_as_one(repository: Repository, start: Start) -> None:
    add(repository, sums_of_ragged_rows(), RAGGED)
    server = start()
    given = [np.full((1, length), length, np.float32) for length in (1, 2, 3, 4, 5, 6, 7, 8)]
    results = together(8, [lambda array=array: infer(server, {"X": array}) for array in given])
    assert [result.tolist() for result in results] == [[[array.sum()]] for array in given]
    row = server.get("/v2/models/m/stats").json["model_stats"][0]
    assert (row["inference_count"], row["execution_count"]) == (8, 1)
